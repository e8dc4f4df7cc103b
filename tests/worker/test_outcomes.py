"""What a body has done is written down, once, whatever the body raises and whatever stands in the way of the write."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from serving import QUICK, FaultyConnections, serving, until

import xjobs
from xjobs import NO_KEY, job, registry
from xjobs.errors import DriverUnavailable
from xjobs.worker import Worker, settings


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(registry, "_cached", None)


def states(store: xjobs.Queue) -> Counter[str]:
    return Counter(row.state for row in store.jobs(limit=200))


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[Any]:
    return [record.facts for record in caplog.records if getattr(record, "event", None) == name]  # type: ignore[attr-defined]


class Strange(BaseException):
    """None of `Exception`, as some libraries have."""


class Unwritable(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def _odd_syntax_error() -> SyntaxError:
    """One whose traceback Python cannot write."""
    error = SyntaxError("odd")
    error.lineno, error.text, error.filename = "x", 7, 3  # type: ignore[assignment]
    return error


RAISED = {
    "its own class": lambda: Strange("odd"),
    "system exit": lambda: SystemExit(0),
    "keyboard interrupt": KeyboardInterrupt,
    "cancelled": asyncio.CancelledError,
    "a group of others": lambda: BaseExceptionGroup("g", [KeyboardInterrupt()]),
    "a mixed group": lambda: BaseExceptionGroup("g", [Strange(), ValueError()]),
    "pytest's fail": lambda: pytest.fail.Exception("failed"),
    "no text": lambda: Unwritable(),
    "no traceback": _odd_syntax_error,
    "a group without text": lambda: BaseExceptionGroup("g", [Unwritable(), Strange()]),
}


@pytest.mark.parametrize("colour", ["async", "blocking"])
@pytest.mark.parametrize("raised", RAISED)
async def test_whatever_a_body_raises_uses_up_its_attempts(
    connections: FaultyConnections, store: xjobs.Queue, raised: str, colour: str
) -> None:
    """Such jobs ran again at once, for ever, with no attempt spent, or kept their slot until it lapsed."""
    attempts: list[int] = []
    raising: Any = RAISED[raised]

    @job(key=NO_KEY, name="raises", retry=xjobs.Retry(attempts=2, delay=0), concurrency_limit=1)
    async def raises() -> None:
        attempts.append(1)
        raise raising()

    @job(key=NO_KEY, name="raises-blocking", retry=xjobs.Retry(attempts=2, delay=0), concurrency_limit=1)
    def raises_blocking() -> None:
        attempts.append(1)
        raise raising()

    made = store.enqueue((raises if colour == "async" else raises_blocking).call())
    async with serving(connections):
        await until("the job to end", lambda: states(store) == {"dead": 1})
    row = store.job(made.id)
    assert row is not None
    assert (row.attempt, len(attempts)) == (2, 2)
    assert row.last_error


async def test_an_outcome_whose_answer_was_lost_is_told_to_the_hook(
    connections: FaultyConnections, store: xjobs.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """It was sent again, met a row that was done, and counted as somebody else's."""
    told: list[str] = []

    @job(key="{n}", retry=1)
    async def work(n: int) -> None:
        if n:
            raise ValueError(n)

    @work.on_settled
    async def tell(ending: xjobs.Ending) -> None:
        told.append(ending.outcome)

    lost: list[str] = []

    def lose(name: str) -> None:
        if name in ("SQL_ACK", "SQL_NACK") and name not in lost:
            lost.append(name)
            raise DriverUnavailable("the answer was lost", "wait")

    connections.after = lose
    store.enqueue_many([work.call(n=n) for n in range(2)])
    async with serving(connections):
        await until("the hooks", lambda: len(told) == 2)
    assert (sorted(told), sorted(lost)) == (["completed", "dead-lettered"], ["SQL_ACK", "SQL_NACK"])
    assert events(caplog, "jobs.settle.unowned") == []
    assert len(events(caplog, "jobs.attempt.failed")) == 1


async def test_an_outcome_of_a_claim_that_is_somebody_elses_is_none_of_ours(
    connections: FaultyConnections, store: xjobs.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    @job(key=NO_KEY, retry=xjobs.Retry(attempts=5))
    async def work() -> None: ...

    @work.on_settled
    async def tell(ending: xjobs.Ending) -> None:
        told.append(ending.outcome)

    def lose(name: str) -> None:
        if name == "SQL_RENEW":
            raise DriverUnavailable("nothing was sent", "wait")
        if name == "SQL_ACK" and not stolen:
            stolen.extend(store.claim(queues=["default"], worker_id="thief", lease=600).jobs)
            if stolen:
                store.ack([xjobs.Ack(stolen[0])], worker_id="thief")
            raise DriverUnavailable("nothing was sent", "wait")

    stolen: list[xjobs.ClaimedJob] = []
    connections.before = lose
    store.enqueue(work.call())
    async with serving(connections, lease=0.3):
        await until("the refused settle", lambda: events(caplog, "jobs.settle.unowned"))
    assert told == []
    assert states(store) == {"done": 1}


@pytest.fixture
def strict(dsn: str, control: psycopg.Connection[Any]) -> Iterator[str]:
    """The address for a role whose statements hardly wait for a lock."""
    role = f"strict_{control.info.backend_pid}"
    control.execute(f"create role {role} login superuser".encode())
    control.execute(f"alter role {role} set lock_timeout = '50ms'".encode())
    yield psycopg.conninfo.make_conninfo(dsn, user=role)
    control.execute(f"drop role {role}".encode())


async def test_a_settle_that_meets_a_lock_is_written_later_and_the_body_runs_once(
    strict: str, control: psycopg.Connection[Any], queue: xjobs.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """Each error but a lost connection had the outcome dropped, so that the job ran again."""
    from xjobs.worker.connections import PostgresConnections

    ran: list[int] = []
    running, locked = threading.Event(), threading.Event()

    @job(key=NO_KEY, retry=xjobs.Retry(attempts=5))
    def work(n: int) -> None:
        ran.append(n)
        running.set()
        locked.wait(10)

    made = queue.enqueue(work.call(n=1))
    async with serving(FaultyConnections(PostgresConnections(strict)), lease=600):
        await until("the body", running.is_set)
        with control.transaction():
            control.execute("lock table x_jobs in share row exclusive mode")
            locked.set()
            failed = await until("failed settles", lambda: len(events(caplog, "jobs.worker.settle-failed")) > 1)
        await until("the job to be done", lambda: states(queue) == {"done": 1})
    row = queue.job(made.id)
    assert row is not None
    assert (ran, row.attempt, row.claims, failed) == ([1], 1, 1, True)
    assert events(caplog, "jobs.settle.unowned") == []


async def test_jobs_that_could_not_be_handed_back_are_left_and_said_to_be(
    connections: FaultyConnections, store: xjobs.Queue
) -> None:
    """They counted as handed back, and the process ended with 0."""
    going_on = threading.Event()

    @job(key=NO_KEY)
    def work() -> None:
        going_on.wait(30)

    def away(name: str) -> None:
        if name in ("SQL_NACK", "SQL_ACK"):
            raise DriverUnavailable("the store is away", "wait")

    store.enqueue(work.call())
    worker = Worker(connections, settings(worker_id="w", **QUICK))
    task = asyncio.create_task(worker.run())
    await until("the body", lambda: states(store) == {"running": 1})
    connections.before = away
    worker.stop(within=1)
    await asyncio.wait_for(task, 15)
    going_on.set()
    assert connections.sent.count("SQL_NACK") > 1, "it was tried again"
    assert (worker.abandoned, states(store)) == (1, {"running": 1})


async def test_a_hand_back_that_fails_at_first_is_done_again(
    connections: FaultyConnections, store: xjobs.Queue
) -> None:
    going_on = threading.Event()

    @job(key=NO_KEY)
    def work() -> None:
        going_on.wait(30)

    def away_once(name: str) -> None:
        if name == "SQL_NACK" and connections.sent.count("SQL_NACK") == 1:
            raise DriverUnavailable("the store is away", "wait")

    store.enqueue(work.call())
    worker = Worker(connections, settings(worker_id="w", **QUICK))
    task = asyncio.create_task(worker.run())
    await until("the body", lambda: states(store) == {"running": 1})
    connections.before = away_once
    worker.stop(within=3)
    await until("the job to be back", lambda: states(store) == {"ready": 1})
    going_on.set()
    await asyncio.wait_for(task, 15)
    assert worker.abandoned == 0
    (row,) = store.jobs()
    assert row.attempt == 0


async def test_a_worker_that_is_cancelled_hands_back_what_runs(
    connections: FaultyConnections, store: xjobs.Queue
) -> None:
    """Its jobs stayed leased, each to cost an attempt."""
    started: list[int] = []
    cancelled: list[int] = []

    @job(key=NO_KEY)
    async def work(n: int) -> None:
        started.append(n)
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            cancelled.append(n)
            raise

    store.enqueue_many([work.call(n=n) for n in range(3)])
    worker = Worker(connections, settings(worker_id="w", **QUICK))
    task = asyncio.create_task(worker.run())
    await until("the bodies", lambda: len(started) == 3)
    task.cancel()
    await asyncio.wait([task], timeout=15)
    assert task.cancelled()
    assert (sorted(cancelled), states(store)) == ([0, 1, 2], {"ready": 3})
    assert {row.attempt for row in store.jobs()} == {0}


@pytest.mark.parametrize("colour", ["async", "blocking"])
async def test_no_more_hooks_run_at_a_time_than_there_are_slots(
    connections: FaultyConnections, store: xjobs.Queue, colour: str
) -> None:
    """Two thousand quick jobs with a slow hook had two thousand threads."""
    most: list[int] = [0, 0]
    lock = threading.Lock()

    def count(change: int) -> None:
        with lock:
            most[0] += change
            most[1] = max(most)

    @job(key="{n}")
    async def work(n: int) -> None: ...

    if colour == "async":

        @work.on_settled
        async def tell(ending: xjobs.Ending) -> None:
            count(1)
            await asyncio.sleep(0.02)
            count(-1)
    else:

        @work.on_settled
        def tell_blocking(ending: xjobs.Ending) -> None:
            count(1)
            threading.Event().wait(0.02)
            count(-1)

    store.enqueue_many([work.call(n=n) for n in range(60)])
    async with serving(connections, concurrency=3):
        await until("the jobs", lambda: states(store) == {"done": 60})
    assert most == [0, 3]


async def test_jobs_wait_when_their_hooks_do_not_keep_up(
    connections: FaultyConnections, store: xjobs.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xjobs.worker.worker.HOOKS", 5)
    go_on = asyncio.Event()
    ran: list[int] = []

    @job(key="{n}")
    async def work(n: int) -> None:
        ran.append(n)

    @work.on_settled
    async def tell(ending: xjobs.Ending) -> None:
        await go_on.wait()

    store.enqueue_many([work.call(n=n) for n in range(200)])
    async with serving(connections, concurrency=3, lease=0.3):
        await until("claims to be answered by hooks", lambda: len(ran) > 8 and states(store)["done"] == len(ran))
        stopped = len(ran), connections.sent.count("SQL_CLAIM")
        beats = connections.sent.count("SQL_WORKER_ANNOUNCE")
        await until("two heartbeats", lambda: connections.sent.count("SQL_WORKER_ANNOUNCE") > beats + 1)
        assert (len(ran), connections.sent.count("SQL_CLAIM")) == stopped
        assert len(ran) < 200
        go_on.set()
        await until("the jobs", lambda: states(store) == {"done": 200})


async def test_a_hook_that_hangs_is_cancelled_once_and_keeps_no_worker(
    connections: FaultyConnections, store: xjobs.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """The cancellation counted as a failed try, so the hook was called again and the process could not end in order."""
    called: list[int] = []

    @job(key=NO_KEY)
    async def work() -> None: ...

    @work.on_settled
    async def tell(ending: xjobs.Ending) -> None:
        called.append(1)
        await asyncio.sleep(600)

    store.enqueue(work.call())
    worker = Worker(connections, settings(worker_id="w", **QUICK))
    task = asyncio.create_task(worker.run())
    await until("the hook", lambda: called)
    began = time.monotonic()
    worker.stop(within=1)
    await asyncio.wait_for(task, 15)
    assert time.monotonic() - began < 1.5
    assert (len(called), worker.abandoned) == (1, 0)
    assert events(caplog, "jobs.on-settled.left") == [{"hooks": 1}]
    assert events(caplog, "jobs.on-settled.failed") == []


async def test_a_slot_is_kept_until_the_body_of_a_cancelled_job_has_ended(
    connections: FaultyConnections, store: xjobs.Queue
) -> None:
    """Its slot lapsed while the body went on, and another one began beside it."""
    running: list[int] = []
    most: list[int] = []
    go_on = threading.Event()

    @job(key="{n}", concurrency_limit=1)
    def work(n: int) -> None:
        running.append(n)
        most.append(len(running))
        if n == 0:
            go_on.wait(30)
        running.remove(n)

    first = store.enqueue(work.call(n=0))
    async with serving(connections, lease=0.6) as worker:
        await until("the body", lambda: running)
        store.cancel(first.id)
        second = store.enqueue(work.call(n=1))
        renewals = connections.sent.count("SQL_RENEW")
        # A lease goes by, and more.
        await until("renewals", lambda: connections.sent.count("SQL_RENEW") > renewals + 5)
        assert most == [1]
        go_on.set()
        await until("the second job", lambda: store.job(second.id).state == "done")  # type: ignore[union-attr]
        assert worker.state == "running"
    assert most == [1, 1]


async def test_bodies_are_told_to_stop_though_the_keeper_hangs(
    connections: FaultyConnections, store: xjobs.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread that was to tell them waited for the answer to a renewal."""
    told: list[float] = []
    hung, go_on = threading.Event(), threading.Event()

    @job(key=NO_KEY)
    async def work() -> None:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            told.append(time.monotonic())
            raise

    def hang(name: str) -> None:
        if name == "SQL_RENEW":
            hung.set()
            go_on.wait(20)

    connections.before = hang
    store.enqueue(work.call())
    worker = Worker(connections, settings(worker_id="w", **{**QUICK, "lease": 60, "heartbeat": 0.05}))
    task = asyncio.create_task(worker.run())
    await until("the renewal", hung.is_set)
    began = time.monotonic()
    worker.stop(within=2)
    await until("the body to be told", lambda: told)
    go_on.set()
    await asyncio.wait_for(task, 15)
    assert told[0] - began < 1.6
    assert events(caplog, "jobs.worker.drain-cancelling") == [{"jobs": 1}]


async def test_a_job_is_never_claimed_beyond_the_slots_though_it_is_turned_away(
    connections: FaultyConnections, store: xjobs.Queue
) -> None:
    """While jobs of a full limit went back, more were claimed: a crash then cost each an attempt."""
    held: list[int] = []
    go_on = asyncio.Event()

    @job(key="{n}", concurrency_limit=1)
    async def work(n: int) -> None:
        await go_on.wait()

    async def look(when: str, which: str, name: str) -> None:
        if (when, name) == ("after", "SQL_CLAIM"):
            held.append(states(store)["running"])

    connections.hold = look
    store.enqueue_many([work.call(n=n) for n in range(40)])
    async with serving(connections, concurrency=4):
        await until("many claims", lambda: len(held) > 15)
        assert max(held) <= 4
        go_on.set()
        await until("all to be done", lambda: states(store) == {"done": 40}, within=60)


@pytest.mark.parametrize("count", [1, 50, 3_000])
def test_the_more_wait_for_a_limit_the_more_rarely_they_come_back(count: int) -> None:
    from datetime import timedelta

    from xjobs.worker.waits import MOST, Waits

    waits = Waits(timedelta(seconds=0.25))
    delays = [waits.again_in("limit").total_seconds() for _ in range(count)]
    assert delays == sorted(delays), "in the order in which they wait"
    assert delays[0] == 0.25
    assert delays[-1] == pytest.approx(0.25 + 0.01 * (count - 50) if count > 50 else 0.25, rel=0.02)
    assert waits.again_in("limit").total_seconds() <= MOST
    assert waits.again_in("another").total_seconds() == 0.25
    waits.let_in("limit")
    assert waits.again_in("limit").total_seconds() == 0.25


def test_only_so_many_limits_are_remembered() -> None:
    from datetime import timedelta

    from xjobs.worker.waits import AT_ONCE, REMEMBERED, Waits

    waits = Waits(timedelta(seconds=0.25))
    for _ in range(AT_ONCE + 100):
        waits.again_in("full")
    for n in range(3 * REMEMBERED):
        waits.again_in(n)
    assert len(waits._kept_out) <= REMEMBERED
    assert waits.again_in("full").total_seconds() > 1


async def test_a_pass_that_goes_on_failing_is_tried_more_rarely(
    connections: FaultyConnections, store: xjobs.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """Without rights on a table it logged a traceback four times a second."""
    failing = True

    def refuse(name: str) -> None:
        if name == "SQL_CLAIM" and failing:
            raise RuntimeError("permission denied for table x_job_leases")

    @job(key=NO_KEY)
    async def work() -> None: ...

    store.enqueue(work.call())
    connections.before = refuse
    began = time.monotonic()
    async with serving(connections, poll=0.02, idle_poll=0.5):
        await until("five failures", lambda: len(events(caplog, "jobs.worker.tick-failed")) == 5)
        assert time.monotonic() - began > 0.02 * (2 + 4 + 8 + 16)
        failing = False
        await until("the job", lambda: states(store) == {"done": 1})


async def test_a_row_that_cannot_be_read_keeps_no_other_from_running(
    place: Any, dsn: str, queue: xjobs.Queue, control: psycopg.Connection[Any]
) -> None:
    """JSON nested beyond what can be read, written by another hand: every claim that met it failed."""
    from xjobs.worker.connections import PostgresConnections

    @job(key="{n}", retry=xjobs.Retry(attempts=2, delay=0))
    async def work(n: int) -> None: ...

    bad, good = (queue.enqueue(work.call(n=n)) for n in range(2))
    deep = "[" * 5_000 + "]" * 5_000
    control.execute("update x_jobs set input = %s::jsonb where id = %s", [f'{{"n": {deep}}}', bad.id])
    async with serving(FaultyConnections(PostgresConnections(dsn))):
        await until("the jobs to end", lambda: states(queue) == {"done": 1, "dead": 1})
    assert queue.job(good.id).state == "done"  # type: ignore[union-attr]
    row = queue.job(bad.id)
    assert row is not None
    assert "nested" in (row.last_error or "")


@pytest.mark.parametrize("raised", [SystemExit(0), KeyboardInterrupt()], ids=["exit", "interrupt"])
async def test_a_task_of_a_body_that_exits_fails_its_job_alone(
    connections: FaultyConnections, store: xjobs.Queue, raised: BaseException
) -> None:
    """It ended the process at once, with 0, and every job beside it stayed leased."""
    from xjobs.worker.left import guard_tasks

    @job(key=NO_KEY, retry=1)
    async def exits() -> None:
        async def leave() -> None:
            raise raised

        async with asyncio.TaskGroup() as group:
            group.create_task(leave())

    @job(key=NO_KEY)
    async def beside() -> None:
        await asyncio.sleep(0.05)

    store.enqueue_many([beside.call(), exits.call()])
    loop = asyncio.get_running_loop()
    guard_tasks(loop)
    try:
        async with serving(connections):
            await until("the jobs to end", lambda: states(store) == {"done": 1, "dead": 1})
    finally:
        loop.set_task_factory(None)


async def test_a_guarded_task_is_a_task_like_any_other() -> None:
    from xjobs.worker.left import guard_tasks

    async def wait() -> str:
        await asyncio.sleep(0)
        return "done"

    loop = asyncio.get_running_loop()
    guard_tasks(loop)
    try:
        unstarted = asyncio.create_task(wait(), name="unstarted")
        unstarted.cancel()
        with pytest.raises(asyncio.CancelledError):
            await unstarted
        task = asyncio.create_task(wait(), name="named")
        assert (task.get_name(), task.get_coro().__qualname__) == ("named", wait.__qualname__)  # type: ignore[union-attr]
        assert task.get_stack()
        assert await task == "done"
        async with asyncio.timeout(5):
            assert await asyncio.gather(wait(), wait()) == ["done", "done"]
    finally:
        loop.set_task_factory(None)

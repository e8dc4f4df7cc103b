"""The worker in this process, on memory and on Postgres: what it claims, runs, settles, renews and gives back."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from serving import FaultyConnections, serving, until

import xjobs
from xjobs import NO_KEY, Limit, job, points, registry, sql
from xjobs.bridge import run_sync
from xjobs.errors import DriverUnavailable, Invariant
from xjobs.worker import Limiter, Rate, Worker, settings

LONG_POLLS = {"poll": 60, "idle_poll": 60, "idle_poll_woken": 60}


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests declare jobs of any name: each has the registry to itself."""
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(registry, "_cached", None)


def rows(store: xjobs.Queue) -> list[xjobs.JobRow]:
    """Every job, page by page."""
    found = store.jobs(limit=200)
    page = found
    while len(page) == 200:
        page = store.jobs(limit=200, after=page[-1])
        found = [*found, *page]
    return found


def states(store: xjobs.Queue) -> Counter[str]:
    return Counter(row.state for row in rows(store))


async def all_done(store: xjobs.Queue, count: int) -> None:
    await until(f"{count} jobs to be done", lambda: states(store) == {"done": count})


def wake(store: xjobs.Queue, payload: str) -> None:
    run_sync(store.driver.run(sql.SQL_WAKE, payload=payload))


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, Any]]:
    return [record.facts for record in caplog.records if getattr(record, "event", None) == name]  # type: ignore[attr-defined]


async def test_bodies_of_both_colours_run_and_a_def_body_has_a_thread(
    connections: FaultyConnections, store: xjobs.Queue
) -> None:
    seen: dict[str, threading.Thread] = {}

    @job(key=NO_KEY)
    async def on_loop() -> None:
        seen["loop"] = threading.current_thread()

    @job(key=NO_KEY)
    def in_thread() -> None:
        seen["thread"] = threading.current_thread()

    store.enqueue_many([on_loop.call(), in_thread.call()])
    async with serving(connections):
        await all_done(store, 2)
    assert seen["loop"] is threading.main_thread()
    assert seen["thread"] is not threading.main_thread()
    assert store.jobs()[0].attempt == 1


async def test_many_slots_are_filled_by_more_than_one_claim_and_all_of_them_are(
    connections: FaultyConnections, store: xjobs.Queue
) -> None:
    release, running = asyncio.Event(), 0

    @job(key=NO_KEY)
    async def waits() -> None:
        nonlocal running
        running += 1
        await release.wait()

    store.enqueue_many([waits.call() for _ in range(250)])
    async with serving(connections, concurrency=220):
        await until("every slot to be taken", lambda: running == 220)
        assert connections.sent.count("SQL_CLAIM") == 2
        release.set()
        await until("the rest to run", lambda: running == 250)


async def test_a_long_job_keeps_neither_other_slots_nor_other_queues_waiting(
    connections: FaultyConnections, store: xjobs.Queue
) -> None:
    release = asyncio.Event()

    @job(key="{n}")
    async def slow(n: int) -> None:
        await release.wait()

    @job(key="{n}")
    async def quick(n: int) -> None: ...

    @job(key="{n}", queue="other")
    async def elsewhere(n: int) -> None: ...

    store.enqueue(slow.call(n=0))
    store.enqueue_many([body.call(n=n) for n in range(10) for body in (quick, elsewhere)])
    async with serving(connections, concurrency=2):
        await until("the quick ones to be done", lambda: states(store)["done"] == 20)
        assert states(store)["running"] == 1
        release.set()
        await all_done(store, 21)


async def test_a_full_worker_fills_a_freed_slot_at_once(connections: FaultyConnections, store: xjobs.Queue) -> None:
    @job(key="{n}")
    async def work(n: int) -> None:
        await asyncio.sleep(0)

    store.enqueue_many([work.call(n=n) for n in range(30)])
    async with serving(connections, concurrency=1, **LONG_POLLS):
        await all_done(store, 30)


async def test_no_more_bodies_at_once_than_slots(connections: FaultyConnections, store: xjobs.Queue) -> None:
    now = most = 0

    @job(key="{n}")
    async def work(n: int) -> None:
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        await asyncio.sleep(0.01)
        now -= 1

    store.enqueue_many([work.call(n=n) for n in range(20)])
    async with serving(connections, concurrency=3):
        await all_done(store, 20)
    assert most == 3


async def test_each_queue_has_slots_of_its_own_and_any_name(connections: FaultyConnections, store: xjobs.Queue) -> None:
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    async def body(queue: str) -> None:
        running[queue] += 1
        most[queue] = max(most[queue], running[queue])
        await asyncio.sleep(0.02)
        running[queue] -= 1

    @job(key="{n}", queue="constructor")
    async def one(n: int) -> None:
        await body("constructor")

    @job(key="{n}", queue="__class__")
    async def two(n: int) -> None:
        await body("__class__")

    store.enqueue_many([each.call(n=n) for n in range(12) for each in (one, two)])
    async with serving(connections, concurrency={"constructor": 2}):
        await all_done(store, 24)
    assert most == {"constructor": 2, "__class__": 8}


async def test_outcomes_that_come_together_are_settled_together(
    connections: FaultyConnections, store: xjobs.Queue
) -> None:
    @job(key="{n}")
    async def work(n: int) -> None: ...

    store.enqueue_many([work.call(n=n) for n in range(50)])
    async with serving(connections, concurrency=50):
        await all_done(store, 50)
    assert connections.sent.count("SQL_ACK") <= 3
    assert connections.sent.count("SQL_CLAIM") <= 8


async def test_a_retry_is_run_when_it_is_due_and_not_at_the_next_poll(
    connections: FaultyConnections, store: xjobs.Queue
) -> None:
    @job(key=NO_KEY, retry=xjobs.Retry(attempts=3, delay=0.1, backoff="fixed", jitter=False))
    async def fails_twice(ctx: xjobs.AsyncContext) -> None:
        assert ctx.attempt == 3

    made = store.enqueue(fails_twice.call())
    async with serving(connections, **LONG_POLLS):
        await all_done(store, 1)
    row = store.job(made.id)
    assert row is not None
    assert row.attempt == 3


async def test_a_wake_is_heard_long_before_the_next_poll(connections: FaultyConnections, store: xjobs.Queue) -> None:
    @job(key="{n}")
    async def work(n: int) -> None: ...

    async with serving(connections, **LONG_POLLS):
        await until("the wake to be proven", lambda: "SQL_WAKE" in connections.sent)
        await until("the first passes", lambda: connections.sent.count("SQL_CLAIM") >= 2)
        for n, payload in enumerate(["default", ""]):
            store.enqueue(work.call(n=n))
            wake(store, payload)
            await all_done(store, n + 1)


async def test_a_wake_for_a_queue_that_is_not_served_is_ignored(
    connections: FaultyConnections, store: xjobs.Queue
) -> None:
    @job(key="{n}")
    async def work(n: int) -> None: ...

    async with serving(connections, **LONG_POLLS):
        await until("the wake to be proven", lambda: connections.sent.count("SQL_CLAIM") >= 2)
        passes = connections.sent.count("SQL_CLAIM")
        wake(store, "elsewhere")
        wake(store, "")
        await until("the pass that the second one wakes", lambda: connections.sent.count("SQL_CLAIM") > passes)
        assert connections.sent.count("SQL_CLAIM") == passes + 1


async def test_an_idle_worker_looks_ever_more_rarely(connections: FaultyConnections, store: xjobs.Queue) -> None:
    async with serving(connections, poll=0.02, idle_poll=0.32, idle_poll_woken=0.32):
        await until("the wake to be proven", lambda: "SQL_WAKE" in connections.sent)
        loop = asyncio.get_running_loop()
        at: list[float] = []

        def note(name: str) -> None:
            if name == "SQL_CLAIM":
                at.append(loop.time())

        connections.before = note
        await until("ten passes", lambda: len(at) >= 9)
        gaps = [later - earlier for earlier, later in pairwise(at)]
        assert max(gaps) >= 0.3, gaps
        assert min(gaps[-2:]) >= 0.3, gaps


async def test_a_job_that_nothing_declares_is_parked_with_its_attempt(
    connections: FaultyConnections, store: xjobs.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    @job(key="{n}")
    async def gone(n: int) -> None: ...

    made = store.enqueue_many([gone.call(n=n) for n in range(2)])
    registry._jobs.pop("gone")
    async with serving(connections, queues=["default"]):
        await until("both to be parked", lambda: states(store) == {"suspended": 2})
    row = store.job(made[0].id)
    assert row is not None
    assert (row.attempt, row.run_at - row.updated_at) == (0, timedelta(seconds=30))
    assert row.last_error is not None
    assert "X_JOB_UNKNOWN" in row.last_error
    assert [fact["name"] for fact in events(caplog, "jobs.worker.job-unknown")] == ["gone"]


async def test_a_cancelled_job_is_told_so_and_its_end_changes_nothing(
    connections: FaultyConnections, store: xjobs.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[str] = []
    started = asyncio.Event()

    @job(key=NO_KEY)
    async def waits() -> None:
        started.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    made = store.enqueue(waits.call())
    async with serving(connections, lease=1.5):
        await started.wait()
        before = store.cancel(made.id)
        await until("the body to be cancelled", lambda: ended)
        await until("the run to be let go", lambda: store.workers()[0].in_flight == [])
    assert store.job(made.id) == before
    for event in ("jobs.lease.lost", "jobs.settle.unowned"):
        assert events(caplog, event) == []


async def test_a_claim_that_another_worker_has_is_lost_and_the_body_told(
    connections: FaultyConnections, store: xjobs.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[str] = []
    started = asyncio.Event()

    @job(key=NO_KEY)
    async def waits() -> None:
        started.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    made = store.enqueue(waits.call())

    async with serving(connections, lease=0.5, heartbeat=0.4) as worker:
        await started.wait()
        connections.before = _unanswered({"SQL_RENEW", "SQL_CLAIM", "SQL_GIVE_BACK"})
        await until("the body to be cancelled", lambda: ended)
        (stolen,) = store.claim(queues=["default"], worker_id="thief", limit=5).jobs
        connections.before = None
        await until("the refused settle", lambda: events(caplog, "jobs.settle.unowned"))
        assert worker.state == "running"
    assert stolen.id == made.id
    assert stolen.attempt == 2
    assert len(events(caplog, "jobs.lease.lost")) == 1
    assert events(caplog, "jobs.heartbeat.failed") != []
    row = store.job(made.id)
    assert row is not None
    assert (row.state, row.claimed_by) == ("running", "thief")


def _unanswered(names: set[str]) -> Any:
    def fail(name: str) -> None:
        if name in names:
            raise DriverUnavailable("the store is away", "wait")

    return fail


async def test_a_renewal_keeps_leases_and_a_job_that_ends_well_reports_no_loss(
    connections: FaultyConnections, store: xjobs.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    @job(key="{n}")
    async def work(n: int) -> None:
        await asyncio.sleep(1.8)

    @job(key="{n}")
    def also(n: int) -> None:
        threading.Event().wait(1.8)

    store.enqueue_many([each.call(n=n) for n in range(3) for each in (work, also)])
    async with serving(connections, lease=0.9):
        await all_done(store, 6)
    assert {row.claims for row in store.jobs()} == {1}
    for event in ("jobs.lease.lost", "jobs.settle.unowned", "jobs.heartbeat.failed"):
        assert events(caplog, event) == []


async def test_a_renewal_that_meets_a_settle_on_its_way_is_no_loss(
    connections: FaultyConnections, store: xjobs.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    @job(key="{n}")
    async def work(n: int) -> None: ...

    store.enqueue_many([work.call(n=n) for n in range(3)])
    async with serving(connections) as worker:
        # The settle has taken effect, and its answer has not come yet.
        connections.after = lambda name: worker.renew() if name == "SQL_ACK" else None
        await all_done(store, 3)
        await until("the renewal", lambda: "SQL_RENEW" in connections.sent)
    for event in ("jobs.lease.lost", "jobs.settle.unowned"):
        assert events(caplog, event) == []


async def test_claims_whose_answer_was_lost_are_given_back_and_run(
    connections: FaultyConnections, store: xjobs.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    @job(key="{n}", retry=1)
    async def work(n: int) -> None: ...

    store.enqueue_many([work.call(n=n) for n in range(5)])
    lost = iter([True])

    def lose(name: str) -> None:
        if name == "SQL_CLAIM" and next(lost, False):
            raise DriverUnavailable("the connection broke", "connect again")

    connections.after = lose
    async with serving(connections):
        await all_done(store, 5)
    assert [fact["jobs"] for fact in events(caplog, "jobs.claim.answer-lost")] == [5]
    assert {(row.attempt, row.claims) for row in store.jobs()} == {(1, 2)}


async def test_an_event_that_comes_between_the_look_for_it_and_the_parking_wakes_the_run(
    connections: FaultyConnections, store: xjobs.Queue
) -> None:
    """It waited for the keeper's next look, a third of a lease later."""

    @job(key=NO_KEY)
    async def work(ctx: xjobs.AsyncContext) -> None:
        await ctx.step.wait_for_event("paid", "order.paid")

    async def publish(_point: str, facts: dict[str, Any]) -> None:
        if facts["outcome"] == "suspended":
            looks = connections.sent.count("SQL_WAKE_WAITS")
            store.publish("order.paid")
            await until("the look that finds nobody", lambda: connections.sent.count("SQL_WAKE_WAITS") > looks)

    async with serving(connections, lease=600, **LONG_POLLS) as worker:
        await until("the listening", lambda: worker._parts is not None and worker._parts.wake.proven)
        with points.listening(publish, "before_settle"):
            store.enqueue(work.call())
            await all_done(store, 1)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_settle_that_gets_no_answer_is_sent_again(
    connections: FaultyConnections, store: xjobs.Queue, when: str
) -> None:
    runs = 0

    @job(key=NO_KEY)
    async def work() -> None:
        nonlocal runs
        runs += 1

    failures = iter([True, True])

    def fail(name: str) -> None:
        if name == "SQL_ACK" and next(failures, False):
            raise DriverUnavailable("the store is away", "wait")

    setattr(connections, when, fail)
    store.enqueue(work.call())
    async with serving(connections):
        await all_done(store, 1)
        await until("the third try", lambda: connections.sent.count("SQL_ACK") == 3)
    assert runs == 1


async def test_one_outcome_that_cannot_be_written_takes_no_other_along(
    connections: FaultyConnections, store: xjobs.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    @job(key="{n}")
    async def work(n: int) -> None: ...

    store.enqueue_many([work.call(n=n) for n in range(4)])
    failures = iter([True, False, True])

    def fail(name: str) -> None:
        if name == "SQL_ACK" and next(failures, False):
            raise ValueError("this one cannot be written")

    connections.before = fail
    async with serving(connections):
        await until("the other three", lambda: states(store) == {"done": 3, "running": 1})
        await until("the loss to be told", lambda: events(caplog, "jobs.worker.settle-failed"))


async def test_a_failing_pass_does_not_spin_and_a_drain_does_not_wait_for_it(
    connections: FaultyConnections, store: xjobs.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    connections.before = _unanswered({"SQL_CLAIM"})
    async with serving(connections, poll=0.1) as worker:
        for _ in range(5):
            wake(store, "")
            await asyncio.sleep(0.1)
        assert 2 <= connections.sent.count("SQL_CLAIM") <= 8
        worker.retire()
    assert events(caplog, "jobs.worker.tick-failed") != []


async def test_a_worker_is_listed_draining_and_then_forgotten(
    connections: FaultyConnections, store: xjobs.Queue
) -> None:
    release = asyncio.Event()

    @job(key=NO_KEY)
    async def work() -> None:
        await release.wait()

    made = store.enqueue(work.call())
    async with serving(connections, lease=1, host="here", concurrency=3) as worker:
        await until("the job to be listed", lambda: [w.in_flight for w in store.workers()] == [[str(made.id)]])
        (listed,) = store.workers()
        assert (listed.id, listed.host, listed.queues, listed.concurrency) == ("w", "here", ["default"], 3)
        assert listed.draining_at is None
        worker.retire()
        await until("the worker to be listed as draining", lambda: store.workers()[0].draining_at)
        first = store.workers()[0].draining_at
        await until("another announcement", lambda: store.workers()[0].heartbeat_at > listed.heartbeat_at)
        assert store.workers()[0].draining_at == first
        assert store.scaler_depth() == [("default", 0)]
        store.enqueue(work.call())
        release.set()
    assert store.workers() == []
    assert states(store) == {"done": 1, "ready": 1}, "a worker that drains claims nothing more"


async def test_a_worker_runs_again_after_it_stopped_and_once_at_a_time(
    connections: FaultyConnections, store: xjobs.Queue
) -> None:
    @job(key="{n}")
    async def work(n: int) -> None: ...

    worker = Worker(connections, settings(worker_id="w"))
    for n in range(2):
        store.enqueue(work.call(n=n))
        task = asyncio.create_task(worker.run())
        await all_done(store, n + 1)
        with pytest.raises(Invariant, match="running"):
            await worker.run()
        for _ in range(3):
            worker.retire()
        await asyncio.wait_for(task, 10)
        assert worker.state == "stopped"


async def test_a_stop_that_comes_before_the_start_ends_the_run_at_once(connections: FaultyConnections) -> None:
    worker = Worker(connections, settings(worker_id="w"))
    worker.retire()
    await asyncio.wait_for(worker.run(), 10)


async def test_a_worker_ends_though_its_connections_do_not_close(
    connections: FaultyConnections, store: xjobs.Queue
) -> None:
    @job(key="{n}")
    async def work(n: int) -> None: ...

    real, failures = connections.close, iter([True])

    async def close() -> None:
        await real()
        if next(failures, False):
            raise OSError("the socket is gone")

    connections.close = close  # type: ignore[method-assign]
    for n in range(2):
        store.enqueue(work.call(n=n))
        async with serving(connections) as worker:
            await all_done(store, n + 1)
        assert worker.state == "stopped"


@pytest.mark.parametrize("how", ["retire", "stop"])
async def test_a_claim_that_lands_after_the_worker_was_told_to_end_is_handed_back(
    connections: FaultyConnections, store: xjobs.Queue, how: str
) -> None:
    @job(key=NO_KEY)
    async def work() -> None:
        await asyncio.sleep(600)

    made = store.enqueue(work.call())
    worker = Worker(connections, settings(worker_id="w"))
    connections.after = lambda name: getattr(worker, how)() if name == "SQL_CLAIM" else None
    await asyncio.wait_for(worker.run(), 10)
    row = store.job(made.id)
    assert row is not None
    assert (row.state, row.attempt, worker.abandoned) == ("ready", 0, 0)


async def test_what_comes_too_late_is_handed_back_though_the_store_fails_for_a_while(
    connections: FaultyConnections, store: xjobs.Queue
) -> None:
    @job(key=NO_KEY)
    async def work() -> None: ...

    failures = iter([True, True])

    def before(name: str) -> None:
        if name == "SQL_NACK" and next(failures, False):
            raise DriverUnavailable("down", "wait")

    store.enqueue_many([work.call() for _ in range(3)])
    worker = Worker(connections, settings(worker_id="w"))
    connections.before = before
    connections.after = lambda name: worker.retire() if name == "SQL_CLAIM" else None
    await asyncio.wait_for(worker.run(), 10)
    assert [(row.state, row.attempt) for row in store.jobs()] == [("ready", 0)] * 3


async def test_a_process_that_dies_at_a_claim_hands_nothing_back_while_it_ends(
    connections: FaultyConnections, store: xjobs.Queue
) -> None:
    @job(key=NO_KEY)
    async def work() -> None: ...

    made = store.enqueue(work.call())
    worker = Worker(connections, settings(worker_id="w"))

    def die(_point: str, _facts: dict[str, Any]) -> None:
        worker.retire()
        raise points.Crash

    with points.listening(die, "claimed"):
        await asyncio.wait_for(worker.run(), 10)
    row = store.job(made.id)
    assert row is not None
    assert (row.state, row.attempt) == ("running", 1)


async def test_a_late_stop_bounds_a_retirement(connections: FaultyConnections, store: xjobs.Queue) -> None:
    started = asyncio.Event()

    @job(key=NO_KEY)
    async def work() -> None:
        started.set()
        await asyncio.sleep(600)

    made = store.enqueue(work.call())
    async with serving(connections) as worker:
        await started.wait()
        worker.retire()
        worker.stop(within=60)
        worker.stop(within=0.4)
        worker.stop(within=60)
        await until("the end", lambda: worker.state == "stopped", within=5)
    row = store.job(made.id)
    assert row is not None
    assert (row.state, row.attempt) == ("ready", 0)


async def test_shed_jobs_go_back_as_they_were_and_run_later(connections: FaultyConnections, store: xjobs.Queue) -> None:
    now = most = 0

    @job(key="{n}", tenant="{tenant}")
    async def work(n: int, tenant: str) -> None:
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        await asyncio.sleep(0.02)
        now -= 1

    store.enqueue_many([work.call(n=n, tenant="t") for n in range(8)])
    async with serving(connections, limiter=Limiter(per_tenant=2)):
        await all_done(store, 8)
    assert most == 2
    assert {(row.attempt, row.last_error) for row in store.jobs()} == {(1, None)}


async def test_a_rate_per_tenant_lets_others_through(connections: FaultyConnections, store: xjobs.Queue) -> None:
    ran: list[str] = []

    @job(key="{n}", tenant="{tenant}")
    async def work(n: int, tenant: str) -> None:
        ran.append(tenant)

    store.enqueue_many([work.call(n=n, tenant="ann") for n in range(4)])
    store.enqueue_many([work.call(n=9, tenant="bob")])
    async with serving(connections, limiter=Limiter(rate_per_tenant=Rate(2, 3600))):
        await until("the others to have run", lambda: sorted(ran) == ["ann", "ann", "bob"])
        await until("sheds", lambda: "SQL_NACK" in connections.sent)
        assert sorted(ran) == ["ann", "ann", "bob"]


async def test_a_limited_job_never_exceeds_its_limit_and_its_slots_come_back(
    connections: FaultyConnections, store: xjobs.Queue
) -> None:
    now = most = 0

    @job(key="{n}", concurrency_limit=2)
    async def work(n: int) -> None:
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        await asyncio.sleep(0.03)
        now -= 1

    store.enqueue_many([work.call(n=n) for n in range(10)])
    async with serving(connections):
        await all_done(store, 10)
        await until("the slots to be released", lambda: not _holders(store, "job:work"))
    assert most == 2
    assert {(row.attempt, row.last_error) for row in store.jobs()} == {(1, None)}


def _holders(store: xjobs.Queue, key: str) -> list[Any]:
    return run_sync(store.driver.run(sql.SQL_SLOT_HOLDERS, keys=[key]))


async def test_a_slot_that_is_lost_stops_the_run(
    connections: FaultyConnections, store: xjobs.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[BaseException] = []
    started = asyncio.Event()

    @job(key="{n}", concurrency_limit=Limit(1, key="{n}"))
    async def work(n: int) -> None:
        started.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError as cancelled:
            ended.append(cancelled)
            raise

    store.enqueue(work.call(n=7))
    async with serving(connections, lease=3, heartbeat=0.2):
        await started.wait()
        ((key, slot, holder),) = _holders(store, "job-key:work:7")
        run_sync(store.driver.run(sql.SQL_SLOT_RELEASE, keys=[key], slots=[slot], holders=[holder]))
        await until("the body to be cancelled", lambda: ended)
        assert len(events(caplog, "jobs.worker.slot-lost")) == 1


async def test_slots_that_cannot_be_asked_for_give_the_batch_and_the_places_back(
    connections: FaultyConnections, store: xjobs.Queue
) -> None:
    @job(key="{n}", concurrency_limit=5)
    async def limited(n: int) -> None: ...

    failures = iter([True] * 6)

    def fail(name: str) -> None:
        if name == "SQL_SLOT_ACQUIRE" and next(failures, False):
            raise DriverUnavailable("the store is away", "wait")

    connections.before = fail
    store.enqueue_many([limited.call(n=n) for n in range(3)])
    async with serving(connections, concurrency=3, limiter=Limiter(total=3)):
        await all_done(store, 3)
    assert {row.attempt for row in store.jobs()} == {1}


async def test_a_key_that_says_fail_refuses_and_waits_for_a_slot_of_its_own(
    connections: FaultyConnections, store: xjobs.Queue
) -> None:
    release = asyncio.Event()

    @job(key=NO_KEY, concurrency_limit=Limit(1, key="{who}", when_busy="fail"))
    async def work(who: str) -> None:
        await release.wait()

    first = store.enqueue(work.call(who="ann"))
    own = store.enqueue(work.using(delay=3600).call(who="bob"))
    run_sync(
        store.driver.run(
            sql.SQL_SLOT_ACQUIRE,
            keys=["job-key:work:bob"],
            limits=[1],
            holders=[f"before:{own.id}"],
            ttl=timedelta(seconds=1),
        )
    )
    async with serving(connections):
        await until("the first to run", lambda: states(store)["running"])
        store.promote(own.id)
        second = store.enqueue(work.call(who="ann"))
        await until("the second to be refused", lambda: states(store)["failed"] == 1)
        refused = store.job(second.id)
        assert refused is not None
        assert (refused.state, refused.attempt) == ("failed", 0)
        assert refused.last_error is not None
        assert "X_JOB_KEY_BUSY" in refused.last_error
        release.set()
        await until("the others to be done", lambda: states(store) == {"done": 2, "failed": 1})
    for made in (first, own):
        row = store.job(made.id)
        assert row is not None
        assert (row.state, row.attempt, row.last_error) == ("done", 1, None)


async def test_a_key_rule_that_raises_at_the_claim_fails_the_attempt_and_not_the_pass(
    connections: FaultyConnections, store: xjobs.Queue
) -> None:
    ran: list[int] = []
    broken = False

    def rule(n: int) -> str:
        return "" if broken and n == 1 else str(n)

    @job(key="{n}", retry=1, concurrency_limit=Limit(1, key=rule))
    async def work(n: int) -> None:
        ran.append(n)

    store.enqueue_many([work.call(n=n) for n in range(3)])
    broken = True
    async with serving(connections):
        await until("all to end", lambda: states(store) == {"done": 2, "dead": 1})
    assert sorted(ran) == [0, 2]
    dead = next(row for row in store.jobs() if row.state == "dead")
    assert dead.last_error is not None
    assert "X_JOB_DECLARATION_INVALID" in dead.last_error


async def test_a_lease_that_lapsed_on_the_final_attempt_is_told(
    connections: FaultyConnections, store: xjobs.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    @job(key=NO_KEY, retry=1)
    async def poison() -> None: ...

    made = store.enqueue(poison.call())
    store.claim(queues=["default"], worker_id="dead", lease=0.01)
    async with serving(connections):
        await until("the burial", lambda: states(store) == {"dead": 1})
    assert [fact["job"] for fact in events(caplog, "jobs.claim.exhausted")] == [made.id]


async def test_a_worker_works_while_the_queue_stands_still(
    connections: FaultyConnections, store: xjobs.Queue, request: pytest.FixtureRequest
) -> None:
    import freezegun

    @job(key="{n}")
    async def work(n: int) -> None: ...

    async with serving(connections):
        await until("the first passes", lambda: connections.sent.count("SQL_CLAIM") >= 2)
        with freezegun.freeze_time(datetime.now(UTC), real_asyncio=True, ignore=["psycopg", "threading"]):
            store.enqueue(work.call(n=1))
            deadline = asyncio.get_running_loop().time() + 15
            while states(store) != {"done": 1} and asyncio.get_running_loop().time() < deadline:
                await asyncio.sleep(0.01)
        await all_done(store, 1)


async def test_it_says_on_start_what_it_serves_and_once_what_nothing_declares(
    connections: FaultyConnections, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    @job(key=NO_KEY)
    async def known() -> None: ...

    async with serving(connections, queues=["default", "strange"], concurrency={"strange": 2}):
        await until("the start", lambda: events(caplog, "jobs.worker.started"))
    (started,) = events(caplog, "jobs.worker.started")
    assert (started["queues"], started["jobs"]) == ("default:8,strange:2", "known")
    assert events(caplog, "jobs.worker.queue-unregistered") == [{"queue": "strange"}]

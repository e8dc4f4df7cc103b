"""Statements that would wait for another transaction must leave everything as it was, however far they had come."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from conformance.stores import BLOCKED, MemoryTables, PostgresStore, Store, Tables, queue_on

import xjobs
from pytest_xjobs.clock import Clock
from xjobs.bridge import run_sync
from xjobs.drivers.base import Driver
from xjobs.drivers.memory import MemoryDriver
from xjobs.drivers.postgres import ConnectionDriver
from xjobs.operations import claim, enqueue, leases, operate, settle, slots
from xjobs.operations.steps import StepLog
from xjobs.records import ClaimedJob
from xjobs.signals import RunSignal

TERM = timedelta(seconds=30)


@pytest.fixture
def once() -> Any:
    @xjobs.job(key="{n}", retry=1)
    def once(n: int) -> None: ...

    return once


async def test_a_claim_that_waits_for_the_counters_loses_no_job(
    store: Store, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, once: Any
) -> None:
    """The rows that it had found were off memory's queue for good: neither buried nor ever claimed again."""
    clock.freeze()
    settled = await once.aenqueue(n=0)
    (job,) = (await queue.claim(queues=["default"], worker_id="w", lease=600)).jobs
    await once.aenqueue(n=1)
    await queue.claim(queues=["default"], worker_id="dead", lease=1)
    clock.advance(seconds=1)
    fresh = await once.aenqueue(n=2)
    before = tables.jobs()
    counting, claiming = await store.begin(), await store.begin()
    await counting.queue.ack([xjobs.Ack(job)], worker_id="w")
    with pytest.raises(BLOCKED):
        await claiming.queue.claim(queues=["default"], worker_id="v", limit=9)
    await claiming.rollback()
    await counting.rollback()
    assert (tables.jobs(), tables.counters()) == (before, [])
    jobs, buried = await queue.claim(queues=["default"], worker_id="v", limit=9)
    assert ([job.id for job in jobs], [job.input["n"] for job in buried]) == ([fresh.id], [1])
    assert settled.id == job.id


@pytest.mark.parametrize("settle", ["ack", "nack"])
async def test_a_settle_that_waits_for_one_counter_leaves_no_other(
    store: Store, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, once: Any, settle: str
) -> None:
    """Memory had made an empty counter for the first job name of the batch when it met the second one."""

    @xjobs.job(key="{n}", name="another")
    def another(n: int) -> None: ...

    clock.freeze()
    await once.aenqueue(n=0)
    (counted,) = (await queue.claim(queues=["default"], worker_id="w")).jobs
    for job in (another, once):
        await job.aenqueue(n=1)
    batch = (await queue.claim(queues=["default"], worker_id="w", limit=2)).jobs
    before = tables.jobs()
    counting, settling = await store.begin(), await store.begin()
    await counting.queue.ack([xjobs.Ack(counted)], worker_id="w")
    with pytest.raises(BLOCKED):
        if settle == "ack":
            await settling.queue.ack([xjobs.Ack(job) for job in batch], worker_id="w")
        else:
            await settling.queue.nack([xjobs.Nack(job) for job in batch], worker_id="w")
    await settling.rollback()
    await counting.rollback()
    assert (tables.jobs(), tables.counters()) == (before, [])


async def test_in_memory_a_statement_outside_of_transactions_that_waits_leaves_nothing(clock: Clock) -> None:
    """There is no rollback that would put it right."""

    @xjobs.job(key="{n}", retry=1)
    def once(n: int) -> None: ...

    @xjobs.job(key="{n}", name="another")
    def another(n: int) -> None: ...

    clock.freeze()
    memory = MemoryDriver(clock=lambda: clock.now)
    queue, tables = queue_on(memory), MemoryTables(memory)
    await queue.enqueue_many([once.call(n=0), another.call(n=0), once.call(n=1), another.call(n=1)])
    jobs = (await queue.claim(queues=["default"], worker_id="w", limit=4, lease=1)).jobs
    counting = memory.begin()
    await queue_on(counting).ack([xjobs.Ack(jobs[0])], worker_id="w")
    before = tables.jobs()
    with pytest.raises(xjobs.WouldBlock):
        await queue.ack([xjobs.Ack(jobs[1]), xjobs.Ack(jobs[2])], worker_id="w")
    assert (tables.jobs(), tables.counters(), len(memory.store.counters)) == (before, [], 1)
    clock.advance(seconds=1)
    with pytest.raises(xjobs.WouldBlock):
        await queue.claim(queues=["default"], worker_id="v", limit=9)
    counting.rollback()
    assert memory.store.counters == {}
    again, buried = await queue.claim(queues=["default"], worker_id="v", limit=9)
    assert sorted(job.name for job in (*again, *buried)) == ["another", "another", "once", "once"]
    assert len({job.id for job in (*again, *buried)}) == 4


async def test_a_batch_with_one_key_that_waits_puts_nothing_in(
    store: Store, queue: xjobs.AsyncQueue, tables: Tables, once: Any
) -> None:
    """All or none, also when the second call of the list is the one that has to wait."""
    holding, putting = await store.begin(), await store.begin()
    await holding.queue.enqueue(once.call(n=2))
    with pytest.raises(BLOCKED):
        await putting.queue.enqueue_many([once.call(n=n) for n in (1, 2, 3)])
    await putting.rollback()
    await holding.rollback()
    assert tables.jobs() == []
    assert [answer.deduped for answer in await queue.enqueue_many([once.call(n=n) for n in (1, 2, 3)])] == [False] * 3


async def test_a_given_id_does_not_wait_where_the_key_has_an_answer_already(
    store: Store, queue: xjobs.AsyncQueue, once: Any
) -> None:
    """Memory looked at the id first and waited; Postgres comes to the primary key only with a key that is free."""
    holder = await once.aenqueue(n=1)
    other, asking = await store.begin(), await store.begin()
    given = once.using(id="01890a5d-ac96-774b-bcce-b302099a8057")
    await other.queue.enqueue(given.call(n=2))
    assert await asking.queue.enqueue(given.call(n=1)) == holder._replace(deduped=True)


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_a_key_that_was_taken_and_freed_in_one_transaction_is_free_after_it(
    store: Store, queue: xjobs.AsyncQueue, once: Any, ending: str
) -> None:
    """After a rollback memory still waited for the transaction that had put the job in and settled it: for ever."""
    other = await store.begin()
    for _ in range(2):
        await other.queue.enqueue(once.call(n=1))
        (job,) = (await other.queue.claim(queues=["default"], worker_id="w")).jobs
        await other.queue.ack([xjobs.Ack(job)], worker_id="w")
    await getattr(other, ending)()
    assert (await once.aenqueue(n=1)).deduped is False
    assert len(await queue.jobs()) == (3 if ending == "commit" else 1)


async def test_a_row_that_a_transaction_took_and_gave_back_is_found_once(
    store: Store, queue: xjobs.AsyncQueue, clock: Clock, once: Any
) -> None:
    """A rollback entered the row in memory's order again, beside the entry that was still there."""
    clock.freeze()
    await queue.enqueue_many(once.call(n=n) for n in range(3))
    held = (await queue.claim(queues=["default"], worker_id="w", limit=2, lease=5)).jobs
    for _ in range(2):
        other = await store.begin()
        await other.queue.claim(queues=["default"], worker_id="v", limit=9)
        await other.queue.heartbeat(held, worker_id="w", lease=5)
        await other.queue.nack([xjobs.Nack(job) for job in held], worker_id="w")
        await other.rollback()
    clock.advance(seconds=5)
    jobs, buried = await queue.claim(queues=["default"], worker_id="v", limit=9)
    assert ([job.input["n"] for job in jobs], [job.input["n"] for job in buried]) == ([2], [0, 1])
    assert timedelta(0) <= clock.now - held[0].run_at


async def test_a_requeue_that_waits_for_a_step_drops_no_other(
    store: Store, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, once: Any
) -> None:
    """Memory had dropped the first step of the run when it met the second one, which another job of the run wrote."""

    def log(driver: Any) -> StepLog:
        return StepLog(driver, running, worker_id="w", signal=RunSignal(), clock=lambda: clock.now)

    async def nothing() -> None: ...

    clock.freeze()
    made = await once.aenqueue(n=0)
    await queue.cancel(made.id)
    await once.using(run_id=made.run_id).aenqueue(n=1)
    (running,) = (await queue.claim(queues=["default"], worker_id="w")).jobs
    recorded = log(store.driver)
    await recorded.run("a", nothing)
    await recorded.run("b", nothing)
    before = tables.steps()
    writing = await store.begin()
    again = log(writing.queue.driver)
    again._records = {}  # it knows nothing of them, and writes the second one anew
    await again.run("b", nothing)
    # Postgres waits as long as it is let, which it is in a transaction of the tests.
    waiting = None if store.kind == "memory" else await store.begin()
    with pytest.raises(BLOCKED):
        await (queue if waiting is None else waiting.queue).requeue(made.id, from_step="a")
    for transaction in (waiting, writing):
        if transaction is not None:
            await transaction.rollback()
    assert tables.steps() == before


def after_waiting(
    postgres: PostgresStore, write: Callable[[Driver], Awaitable[Any]], ending: str, act: Callable[[Driver], Any]
) -> Any:
    """What `act` answers when it had to wait for a transaction that has written what it needs, until that ended."""
    answers: list[Any] = []
    with psycopg.connect(postgres.dsn) as connection:
        run_sync(write(ConnectionDriver(connection)))
        thread = threading.Thread(target=lambda: answers.append(run_sync(act(postgres.driver))))
        thread.start()
        while postgres.control.execute("select count(*) from pg_locks where not granted").fetchone() == (0,):
            assert thread.is_alive()
        getattr(connection, ending)()
        thread.join()
    (answer,) = answers
    return answer


@pytest.mark.parametrize("postgres", ["blocking"], indirect=True)
@pytest.mark.parametrize("ending", ["commit", "rollback"])
class TestMoved:
    """A row that another transaction has written is at another place then, which the snapshot of a statement that
    waited for it does not see: a statement that goes by the place it has just locked misses it.
    """

    @pytest.mark.parametrize("settling", ["ack", "nack"])
    @pytest.mark.parametrize("writing", ["heartbeat", "cancel"])
    def test_a_settle(self, postgres: PostgresStore, once: Any, writing: str, settling: str, ending: str) -> None:
        queue = queue_on(postgres.driver)
        made = run_sync(queue.enqueue_many([once.call(n=n) for n in range(3)]))
        jobs = run_sync(queue.claim(queues=["default"], worker_id="w", limit=3)).jobs

        def write(driver: Driver) -> Any:
            if writing == "heartbeat":
                return claim.heartbeat(driver, [jobs[1]], worker_id="w")
            return operate.cancel(driver, jobs[1].id)

        def act(driver: Driver) -> Any:
            if settling == "ack":
                return settle.ack(driver, [xjobs.Ack(job) for job in jobs], worker_id="w")
            return settle.nack(driver, [xjobs.Nack(job) for job in jobs], worker_id="w")

        landed = after_waiting(postgres, write, ending, act)
        lost = {made[1].id} if (writing, ending) == ("cancel", "commit") else set()
        assert landed == {answer.id for answer in made} - lost
        states = {row.id: row.state for row in run_sync(queue.jobs())}
        settled = "done" if settling == "ack" else "ready"
        assert states == {answer.id: "cancelled" if answer.id in lost else settled for answer in made}

    def test_a_slot_that_is_given_back_while_it_is_renewed(self, postgres: PostgresStore, ending: str) -> None:
        """It stayed taken for the rest of its time, and the limit was lower by one."""
        requests = [slots.Request(key, 1, "w:1") for key in ("a", "b")]
        taken = [slot for slot in run_sync(slots.acquire(postgres.driver, requests, ttl=TERM)) if slot is not None]
        freed = after_waiting(
            postgres,
            lambda driver: leases.renew_all(driver, [], taken[:1], worker_id="w", lease=TERM),
            ending,
            lambda driver: slots.release(driver, taken),
        )
        assert freed == 2
        assert run_sync(slots.holders(postgres.driver, ["a", "b"])) == []

    def test_a_renewal_of_what_is_being_renewed(self, postgres: PostgresStore, once: Any, ending: str) -> None:
        queue = queue_on(postgres.driver)
        run_sync(queue.enqueue(once.call(n=1)))
        jobs = run_sync(queue.claim(queues=["default"], worker_id="w")).jobs
        (slot,) = run_sync(slots.acquire(postgres.driver, [slots.Request("a", 1, "w:1")], ttl=TERM))
        assert slot is not None
        renewed = after_waiting(
            postgres,
            lambda driver: leases.renew_all(driver, jobs, [slot], worker_id="w", lease=TERM),
            ending,
            lambda driver: leases.renew_all(driver, jobs, [slot], worker_id="w", lease=10 * TERM),
        )
        assert renewed == leases.Renewed(["held"], ["held"])
        ends = "select visible_at - now() from x_jobs union all select expires_at - now() from x_job_leases"
        assert [left > 5 * TERM for (left,) in postgres.control.execute(ends).fetchall()] == [True, True]

    def test_a_renewal_says_that_its_job_was_cancelled(self, postgres: PostgresStore, once: Any, ending: str) -> None:
        """It said that the lease was lost, which is an error in the log and no end that a body knows how to take."""
        job = started(postgres, once)
        renewed = after_waiting(
            postgres,
            lambda driver: operate.cancel(driver, job.id),
            ending,
            lambda driver: leases.renew_all(driver, [job], [], worker_id="w", lease=TERM),
        )
        assert renewed.leases == ["cancelled" if ending == "commit" else "held"]

    def test_a_remove_takes_the_steps_that_came_meanwhile(
        self, postgres: PostgresStore, once: Any, ending: str
    ) -> None:
        job = started(postgres, once)

        async def write(driver: Driver) -> None:
            await put_step(driver, job, "late")
            await settle.ack(driver, [xjobs.Ack(job)], worker_id="w")

        async def act(driver: Driver) -> Any:
            try:
                return await operate.remove(driver, job.id)
            except xjobs.JobNotRemovable as refused:
                return refused

        removed = after_waiting(postgres, write, ending, act)
        assert isinstance(removed, xjobs.JobNotRemovable) is (ending == "rollback")
        assert postgres.tables.steps() == []

    def test_a_remove_keeps_the_steps_of_a_run_that_another_job_carries_on(
        self, postgres: PostgresStore, once: Any, ending: str
    ) -> None:
        """They were deleted, and what they had done would have been done again."""
        job = started(postgres, once)
        run_sync(put_step(postgres.driver, job, "a"))
        run_sync(operate.cancel(postgres.driver, job.id))

        async def write(driver: Driver) -> None:
            await enqueue.enqueue(driver, once.using(run_id=job.run_id).call(n=2))
            await operate.requeue(driver, job.id)
            await operate.cancel(driver, job.id)

        after_waiting(postgres, write, ending, lambda driver: operate.remove(driver, job.id))
        assert [step[1] for step in postgres.tables.steps()] == (["a"] if ending == "commit" else [])

    def test_a_requeue_from_a_step_drops_the_step_that_came_meanwhile(
        self, postgres: PostgresStore, once: Any, ending: str
    ) -> None:
        """It stayed, and would have been replayed."""
        job = started(postgres, once)
        run_sync(put_step(postgres.driver, job, "a"))

        async def write(driver: Driver) -> None:
            await put_step(driver, job, "late")
            await settle.ack(driver, [xjobs.Ack(job)], worker_id="w")

        async def act(driver: Driver) -> Any:
            try:
                return (await operate.requeue(driver, job.id, from_step="a")).state
            except xjobs.JobNotRequeueable:
                return "refused"

        assert after_waiting(postgres, write, ending, act) == ("ready" if ending == "commit" else "refused")
        assert [step[1] for step in postgres.tables.steps()] == ([] if ending == "commit" else ["a"])


def started(postgres: PostgresStore, once: Any) -> ClaimedJob:
    queue = queue_on(postgres.driver)
    run_sync(queue.enqueue(once.call(n=1)))
    (job,) = run_sync(queue.claim(queues=["default"], worker_id="w")).jobs
    return job


async def put_step(driver: Driver, job: ClaimedJob, name: str) -> None:
    log = StepLog(driver, job, worker_id="w", signal=RunSignal(), clock=lambda: datetime.now(UTC))

    async def produce() -> str:
        return name

    await log.run(name, produce)

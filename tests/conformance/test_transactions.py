"""Enqueueing inside a transaction: hidden until it commits, gone when it rolls back, and never ended by the queue."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.adapt import Loader
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

import xjobs
from conformance.fixtures import Work, postgres_store
from conformance.stores import BLOCKED, PostgresStore, Store, Tables, queue_on
from pytest_xjobs.clock import Clock
from xjobs.drivers.memory import MemoryDriver, MemoryTransaction
from xjobs.in_use import TestUse
from xjobs.queue import Drivers

IDLE, OPEN, FAILED = TransactionStatus.IDLE, TransactionStatus.INTRANS, TransactionStatus.INERROR


class TestEveryDriver:
    """A transaction of another session, as each driver has it."""

    @pytest.mark.parametrize("ending", ["commit", "rollback"])
    async def test_its_jobs_are_hidden_until_it_commits(
        self, store: Store, queue: xjobs.AsyncQueue, tables: Tables, work: Work, ending: str
    ) -> None:
        other = await store.begin()
        made = await other.queue.enqueue(work.call(n=1))
        assert (await queue.job(made.id), await queue.jobs(), await queue.stats()) == (None, [], [])
        assert (await queue.claim(queues=["default"], worker_id="w")).jobs == []
        row = await other.queue.job(made.id)
        assert row is not None
        await getattr(other, ending)()
        assert await queue.job(made.id) == (row if ending == "commit" else None)
        claimed = (await queue.claim(queues=["default"], worker_id="w")).jobs
        assert [job.id for job in claimed] == ([made.id] if ending == "commit" else [])

    async def test_it_sees_its_own_jobs_and_dedupes_among_them(
        self, store: Store, queue: xjobs.AsyncQueue, work: Work
    ) -> None:
        other = await store.begin()
        made = await other.queue.enqueue(work.call(n=1))
        assert await other.queue.enqueue(work.call(n=1)) == made._replace(deduped=True)
        (claimed,) = (await other.queue.claim(queues=["default"], worker_id="w")).jobs
        assert await other.queue.ack([xjobs.Ack(claimed)], worker_id="w") == {made.id}
        assert (await other.queue.enqueue(work.call(n=1))).deduped is False
        await other.rollback()
        assert await queue.jobs() == []

    async def test_its_changes_are_hidden_and_undone(
        self, store: Store, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work
    ) -> None:
        clock.freeze()
        await queue.enqueue_many(work.call(n=n) for n in range(3))
        done, failed, renewed = (await queue.claim(queues=["default"], worker_id="w", limit=3)).jobs
        before = tables.jobs()
        other = await store.begin()
        await other.queue.ack([xjobs.Ack(done)], worker_id="w")
        await other.queue.nack([xjobs.Nack(failed, dead_letter=True, error="e", stack="s")], worker_id="w")
        await other.queue.heartbeat([renewed], worker_id="w", lease=600)
        assert [row.state for row in await queue.jobs()] == ["running"] * 3
        assert [row.state for row in await other.queue.jobs()] == ["running", "dead", "done"]
        await other.rollback()
        assert (tables.jobs(), tables.counters()) == (before, [])
        clock.advance(seconds=30)
        again = (await queue.claim(queues=["default"], worker_id="v", limit=9)).jobs
        assert [(job.input["n"], job.attempt) for job in again] == [(0, 2), (1, 2), (2, 2)]

    async def test_a_commit_makes_its_changes_plain(
        self, store: Store, queue: xjobs.AsyncQueue, tables: Tables, work: Work
    ) -> None:
        made = await work.aenqueue(n=1)
        other = await store.begin()
        (job,) = (await other.queue.claim(queues=["default"], worker_id="w")).jobs
        await other.queue.ack([xjobs.Ack(job)], worker_id="w")
        await other.commit()
        row = await queue.job(made.id)
        assert row is not None
        assert (row.state, [counter[3] for counter in tables.counters()]) == ("done", [1])
        assert (await work.aenqueue(n=1)).deduped is False

    async def test_a_key_that_it_holds_is_waited_for(self, store: Store, work: Work) -> None:
        first, second = await store.begin(), await store.begin()
        await first.queue.enqueue(work.call(n=1))
        with pytest.raises(BLOCKED):
            await second.queue.enqueue(work.call(n=1))

    async def test_an_id_that_it_holds_is_waited_for(self, store: Store, work: Work) -> None:
        given = work.using(id=UUID(int=7))
        first, second = await store.begin(), await store.begin()
        await first.queue.enqueue(given.call(n=1))
        with pytest.raises(BLOCKED):
            await second.queue.enqueue(given.call(n=2))

    async def test_a_key_that_it_frees_is_waited_for(self, store: Store, queue: xjobs.AsyncQueue, work: Work) -> None:
        made = await work.aenqueue(n=1)
        (job,) = (await queue.claim(queues=["default"], worker_id="w")).jobs
        first, second, third = [await store.begin() for _ in range(3)]
        await first.queue.ack([xjobs.Ack(job)], worker_id="w")
        with pytest.raises(BLOCKED):
            await second.queue.enqueue(work.call(n=1))
        await second.rollback()
        await first.rollback()
        assert await third.queue.enqueue(work.call(n=1)) == made._replace(deduped=True)

    async def test_a_claim_that_it_settles_is_waited_for(
        self, store: Store, queue: xjobs.AsyncQueue, tables: Tables, work: Work
    ) -> None:
        await work.aenqueue(n=1)
        (job,) = (await queue.claim(queues=["default"], worker_id="w")).jobs
        first = await store.begin()
        await first.queue.ack([xjobs.Ack(job)], worker_id="w")
        for settle in ("ack", "nack", "heartbeat"):
            other = await store.begin()
            with pytest.raises(BLOCKED):
                if settle == "ack":
                    await other.queue.ack([xjobs.Ack(job)], worker_id="w")
                elif settle == "nack":
                    await other.queue.nack([xjobs.Nack(job)], worker_id="w")
                else:
                    await other.queue.heartbeat([job], worker_id="w")
            await other.rollback()
        await first.commit()
        assert [counter[3] for counter in tables.counters()] == [1]
        assert await queue.nack([xjobs.Nack(job)], worker_id="w") == set()

    @pytest.mark.parametrize("ending", ["commit", "rollback"])
    async def test_a_claim_keeps_what_it_looked_at_beyond_its_limit(
        self, store: Store, queue: xjobs.AsyncQueue, work: Work, ending: str
    ) -> None:
        """Of two queues it locks up to the limit in each, and takes the limit in all."""
        made = [await work.using(queue=name).aenqueue(n=1 + at) for at, name in enumerate("ab")]
        other = await store.begin()
        claimed = await other.queue.claim(queues=["a", "b"], worker_id="w", limit=1)
        assert [job.id for job in claimed.jobs] == [made[0].id]
        assert (await queue.claim(queues=["a", "b"], worker_id="v", limit=9)).jobs == []
        await getattr(other, ending)()
        jobs = (await queue.claim(queues=["a", "b"], worker_id="v", limit=9)).jobs
        assert [job.id for job in jobs] == [answer.id for answer in made[ending == "commit" :]]

    async def test_other_keys_do_not_wait(self, store: Store, work: Work) -> None:
        first, second = await store.begin(), await store.begin()
        await first.queue.enqueue(work.call(n=1))
        assert (await second.queue.enqueue(work.using(tenant="t").call(n=1))).deduped is False
        assert (await second.queue.enqueue(work.call(n=2))).deduped is False

    async def test_a_failed_one_takes_no_more_statements_and_commits_nothing(
        self, store: Store, queue: xjobs.AsyncQueue, work: Work
    ) -> None:
        first, second = await store.begin(), await store.begin()
        await first.queue.enqueue(work.call(n=1))
        await second.queue.enqueue(work.call(n=2))
        with pytest.raises(BLOCKED):
            await second.queue.enqueue(work.call(n=1))
        with pytest.raises(xjobs.TransactionAborted) as caught:
            await second.queue.enqueue(work.call(n=3))
        assert caught.value.code == "X_TRANSACTION_ABORTED"
        await second.commit()
        await first.commit()
        assert [row.input["n"] for row in await queue.jobs()] == [1]

    async def test_a_rolled_back_id_and_key_are_free_again_in_the_same_instant(
        self, store: Store, queue: xjobs.AsyncQueue, clock: Clock, work: Work
    ) -> None:
        clock.freeze()
        given = work.using(id=UUID(int=7))
        for _ in range(3):
            other = await store.begin()
            assert (await other.queue.enqueue(given.call(n=1))).deduped is False
            await other.rollback()
        assert (await given.aenqueue(n=1)).deduped is False
        claimed = (await queue.claim(queues=["default"], worker_id="w", limit=9)).jobs
        assert [(job.id, job.attempt) for job in claimed] == [(UUID(int=7), 1)]


class TestMemory:
    """What memory's transactions have beside."""

    @pytest.fixture
    def memory(self, clock: Clock) -> MemoryDriver:
        return MemoryDriver(clock=lambda: clock.now)

    @pytest.fixture
    def job(self) -> Any:
        @xjobs.job(key="{n}")
        def work(n: int) -> None: ...

        return work

    async def test_a_savepoint_undoes_what_came_after_it(self, memory: MemoryDriver, job: Any) -> None:
        transaction = memory.begin()
        inside, outside = queue_on(transaction), queue_on(memory)
        await inside.enqueue(job.call(n=1))
        outer = transaction.mark()
        await inside.enqueue(job.call(n=2))
        inner = transaction.mark()
        await inside.enqueue(job.call(n=3))
        transaction.rollback_to(inner)
        assert [row.input["n"] for row in await inside.jobs()] == [2, 1]
        transaction.rollback_to(outer)
        assert (await inside.enqueue(job.call(n=2))).deduped is False
        transaction.commit()
        assert [row.input["n"] for row in await outside.jobs()] == [2, 1]

    async def test_going_back_to_a_savepoint_heals_a_failure(self, memory: MemoryDriver, job: Any) -> None:
        holder, transaction = memory.begin(), memory.begin()
        await queue_on(holder).enqueue(job.call(n=1))
        await queue_on(transaction).enqueue(job.call(n=2))
        mark = transaction.mark()
        with pytest.raises(xjobs.WouldBlock):
            await queue_on(transaction).enqueue(job.call(n=1))
        transaction.rollback_to(mark)
        await queue_on(transaction).enqueue(job.call(n=3))
        transaction.commit()
        assert [row.input["n"] for row in await queue_on(memory).jobs()] == [3, 2]

    @pytest.mark.parametrize("first", ["commit", "rollback"])
    @pytest.mark.parametrize("second", ["commit", "rollback"])
    async def test_an_ended_transaction_stays_as_it_ended(
        self, memory: MemoryDriver, job: Any, first: str, second: str
    ) -> None:
        transaction = memory.begin()
        inside = queue_on(transaction)
        await inside.enqueue(job.call(n=1))
        (claimed,) = (await inside.claim(queues=["default"], worker_id="w")).jobs
        await inside.ack([xjobs.Ack(claimed)], worker_id="w")
        assert transaction.open
        for ending in (first, second):
            getattr(transaction, ending)()
            assert not transaction.open
        assert len(await queue_on(memory).jobs()) == len(memory.store.counters) == (1 if first == "commit" else 0)
        with pytest.raises(xjobs.TransactionAborted):
            await inside.jobs()

    async def test_nothing_is_kept_of_transactions_that_have_ended(self, memory: MemoryDriver, job: Any) -> None:
        for n in range(4):
            transaction = memory.begin()
            await queue_on(transaction).enqueue(job.call(n=n))
            transaction.commit() if n % 2 else transaction.rollback()
        assert all(row.writer is None and row.before is None for row in memory.store.jobs.values())
        assert memory.store.freeing == {}


class Caller:
    """An app's own connection, and its way of enqueueing on it."""

    def __init__(self, store: PostgresStore, colour: str) -> None:
        self.store, self.colour = store, colour
        self.connection: Any = None

    async def open(self, **options: Any) -> Any:
        """Connect as an app would."""
        if self.colour == "async":
            self.connection = await psycopg.AsyncConnection.connect(self.store.dsn, **options)
        else:
            self.connection = psycopg.connect(self.store.dsn, **options)
        return self.connection

    async def do(self, name: str, *args: Any) -> Any:
        """Call a method of the connection."""
        answer = getattr(self.connection, name)(*args)
        return await answer if self.colour == "async" else answer

    async def enqueue(self, job: Any, **values: Any) -> xjobs.Enqueued:
        """Enqueue on the connection."""
        configured = job.using(**{**values.pop("using", {}), "connection": self.connection})
        if self.colour == "blocking":
            made: xjobs.Enqueued = configured.enqueue(**values)
            return made
        return await configured.aenqueue(**values)  # type: ignore[no-any-return]

    @property
    def status(self) -> TransactionStatus:
        return self.connection.info.transaction_status  # type: ignore[no-any-return]


class TestCallersConnection:
    """A job written on the caller's own psycopg connection."""

    @pytest.fixture(params=["blocking", "async", "async over a blocking connection"])
    def caller(self, request: pytest.FixtureRequest, clock: Clock, run: Any) -> Iterator[Caller]:
        for store in postgres_store(run, clock, "blocking"):
            kind = _Mixed if " " in request.param else Caller
            caller = kind(store, request.param)
            with TestUse(Drivers(blocking=store.driver, awaiting=store.driver)):
                yield caller
            if caller.connection is not None:
                caller.connection.pgconn.finish()

    @pytest.fixture
    def outside(self, caller: Caller) -> xjobs.AsyncQueue:
        return queue_on(caller.store.driver)

    @pytest.fixture
    def job(self, caller: Caller) -> Any:
        @xjobs.job(key="{n}")
        def work(n: int) -> None: ...

        return work

    @pytest.mark.parametrize("ending", ["commit", "rollback"])
    async def test_the_job_shares_the_fate_of_the_transaction(
        self, caller: Caller, outside: xjobs.AsyncQueue, job: Any, ending: str
    ) -> None:
        await caller.open()
        made = await caller.enqueue(job, n=1)
        assert caller.status == OPEN
        assert await outside.job(made.id) is None
        await caller.do(ending)
        assert (await outside.job(made.id) is not None) == (ending == "commit")

    async def test_it_joins_a_transaction_that_is_open_and_leaves_it_open(
        self, caller: Caller, outside: xjobs.AsyncQueue, job: Any
    ) -> None:
        await caller.open()
        await caller.do("execute", "create temporary table orders (id int) on commit drop")
        await caller.do("execute", "insert into orders values (1)")
        await caller.enqueue(job, n=1)
        assert caller.status == OPEN
        cursor = await caller.do("execute", "select id from orders")
        assert (await cursor.fetchone() if caller.colour == "async" else cursor.fetchone()) == (1,)
        await caller.do("rollback")
        assert await outside.jobs() == []

    async def test_on_an_autocommit_connection_it_stands_at_once(
        self, caller: Caller, outside: xjobs.AsyncQueue, job: Any
    ) -> None:
        await caller.open(autocommit=True)
        made = await caller.enqueue(job, n=1)
        assert caller.status == IDLE
        assert await outside.job(made.id) is not None

    async def test_a_transaction_block_of_the_caller_decides(
        self, caller: Caller, outside: xjobs.AsyncQueue, job: Any
    ) -> None:
        await caller.open(autocommit=True)
        await caller.do("execute", "begin")
        await caller.enqueue(job, n=1)
        await caller.do("execute", "savepoint one")
        await caller.enqueue(job, n=2)
        await caller.do("execute", "rollback to savepoint one")
        assert caller.status == OPEN
        await caller.do("execute", "commit")
        assert [row.input["n"] for row in await outside.jobs()] == [1]

    async def test_many_calls_go_on_one_connection(self, caller: Caller, outside: xjobs.AsyncQueue, job: Any) -> None:
        connection = await caller.open()
        calls = [job.call(n=n) for n in range(3)]
        if caller.colour == "blocking":
            made = xjobs.enqueue_many(calls, connection=connection)
        else:
            made = await xjobs.aenqueue_many(calls, connection=connection)
        assert await outside.jobs() == []
        await caller.do("commit")
        assert {row.id for row in await outside.jobs()} == {answer.id for answer in made}

    async def test_an_aborted_transaction_is_refused_first(
        self, caller: Caller, outside: xjobs.AsyncQueue, job: Any
    ) -> None:
        await caller.open()
        with pytest.raises(psycopg.errors.DivisionByZero):
            await caller.do("execute", "select 1/0")
        with pytest.raises(xjobs.TransactionAborted) as caught:
            await caller.enqueue(job, n=1)
        assert (caught.value.code, caller.status) == ("X_TRANSACTION_ABORTED", FAILED)
        await caller.do("rollback")
        await caller.enqueue(job, n=1)
        await caller.do("commit")
        assert len(await outside.jobs()) == 1

    async def test_a_closed_connection_is_refused(self, caller: Caller, outside: xjobs.AsyncQueue, job: Any) -> None:
        await caller.open()
        await caller.do("close")
        with pytest.raises(xjobs.ConnectionUnsupported, match="closed"):
            await caller.enqueue(job, n=1)
        assert await outside.jobs() == []

    async def test_a_key_conflict_is_an_answer_and_leaves_the_transaction_whole(
        self, caller: Caller, outside: xjobs.AsyncQueue, job: Any
    ) -> None:
        await caller.open()
        holder = await outside.enqueue(job.call(n=1))
        assert await caller.enqueue(job, n=1) == holder._replace(deduped=True)
        with pytest.raises(xjobs.JobDuplicate):
            await caller.enqueue(job, n=1, using={"on_conflict": "error"})
        await caller.enqueue(job, n=2)
        assert caller.status == OPEN
        await caller.do("commit")
        assert len(await outside.jobs()) == 2

    async def test_input_that_is_refused_never_reaches_the_connection(self, caller: Caller, job: Any) -> None:
        await caller.open()
        with pytest.raises(xjobs.InputInvalid):
            await caller.enqueue(job, n="one")
        assert caller.status == IDLE

    async def test_the_callers_way_of_reading_rows_does_not_matter(
        self, caller: Caller, outside: xjobs.AsyncQueue, job: Any
    ) -> None:
        class Shouting(Loader):
            def load(self, data: Any) -> str:
                return "not what the server said"

        connection = await caller.open(row_factory=dict_row)
        for name in ("uuid", "bool", "text", "timestamptz", "jsonb", "int4"):
            connection.adapters.register_loader(name, Shouting)
        made = await caller.enqueue(job, n=1)
        assert isinstance(made.id, UUID)
        assert isinstance(made.run_id, UUID)
        assert made.deduped is False
        assert await caller.enqueue(job, n=1) == made._replace(deduped=True)
        await caller.do("commit")
        assert connection.row_factory is dict_row
        assert await outside.job(made.id) is not None

    async def test_a_prepared_statement_limit_of_the_caller_is_kept(
        self, caller: Caller, outside: xjobs.AsyncQueue, job: Any
    ) -> None:
        """None is what poolers that share sessions ask for."""
        connection = await caller.open(prepare_threshold=None)
        for n in range(8):
            await caller.enqueue(job, n=n)
        cursor = await caller.do("execute", "select count(*) from pg_prepared_statements")
        assert (await cursor.fetchone() if caller.colour == "async" else cursor.fetchone()) == (0,)
        assert connection.prepare_threshold is None

    @pytest.mark.parametrize("level", list(psycopg.IsolationLevel))
    async def test_the_isolation_level_does_not_matter(
        self, caller: Caller, outside: xjobs.AsyncQueue, job: Any, level: psycopg.IsolationLevel
    ) -> None:
        connection = await caller.open()
        if caller.colour == "async":
            await connection.set_isolation_level(level)
        else:
            connection.isolation_level = level
        holder = await outside.enqueue(job.call(n=1))
        assert await caller.enqueue(job, n=1) == holder._replace(deduped=True)
        assert (await caller.enqueue(job, n=2)).deduped is False
        await caller.do("commit")
        assert len(await outside.jobs()) == 2

    @pytest.mark.parametrize("level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
    async def test_a_key_taken_behind_the_snapshot_is_a_conflict(
        self, caller: Caller, outside: xjobs.AsyncQueue, job: Any, level: psycopg.IsolationLevel
    ) -> None:
        """The transaction cannot see the holder and so cannot answer it; it has to be done again as a whole."""
        connection = await caller.open()
        if caller.colour == "async":
            await connection.set_isolation_level(level)
        else:
            connection.isolation_level = level
        await caller.do("execute", "select from x_jobs")
        holder = await outside.enqueue(job.call(n=1))
        with pytest.raises(xjobs.TransactionConflict) as caught:
            await caller.enqueue(job, n=1)
        assert caught.value.code == "X_TRANSACTION_CONFLICT"
        assert isinstance(caught.value.__cause__, psycopg.errors.SerializationFailure)
        assert caller.status == FAILED
        await caller.do("rollback")
        assert await caller.enqueue(job, n=1) == holder._replace(deduped=True)

    async def test_the_time_zone_of_the_session_does_not_matter(
        self, caller: Caller, outside: xjobs.AsyncQueue, clock: Clock, job: Any
    ) -> None:
        """The night in which New York's clocks go forward has 23 hours; a delay of a day has 24."""
        now = clock.freeze(datetime(2024, 3, 9, 20, tzinfo=UTC))
        await caller.open()
        await caller.do("execute", "set time zone 'America/New_York'")
        await caller.do("execute", "set intervalstyle to 'sql_standard'")
        await caller.do("execute", "set datestyle to 'German'")
        made = {
            delay: await caller.enqueue(job, n=n, using={"delay": delay})
            for n, delay in enumerate([timedelta(days=1), timedelta(days=30), timedelta(hours=-36, microseconds=1)])
        }
        at = await caller.enqueue(job, n=9, using={"run_at": datetime(2024, 3, 10, 7, 30, tzinfo=UTC)})
        await caller.do("commit")
        for delay, answer in made.items():
            row = await outside.job(answer.id)
            assert row is not None
            assert row.run_at == now + delay
        row = await outside.job(at.id)
        assert row is not None
        assert row.run_at.isoformat() == "2024-03-10T07:30:00+00:00"

    async def test_a_statement_of_an_older_schema_is_explained(self, caller: Caller, job: Any) -> None:
        await caller.open()
        await caller.do("execute", "set search_path to pg_temp")
        with pytest.raises(xjobs.SchemaMissing, match="xjobs schema install") as caught:
            await caller.enqueue(job, n=1)
        assert caught.value.code == "X_SCHEMA_MISSING"


class _Mixed(Caller):
    """An async call that is given a blocking connection."""

    async def enqueue(self, job: Any, **values: Any) -> xjobs.Enqueued:
        configured = job.using(**{**values.pop("using", {}), "connection": self.connection})
        return await configured.aenqueue(**values)  # type: ignore[no-any-return]


class TestWhatCannotBeJoined:
    async def test_an_async_connection_in_a_blocking_call(self, postgres: PostgresStore) -> None:
        @xjobs.job(key="{n}")
        def work(n: int) -> None: ...

        connection = await psycopg.AsyncConnection.connect(postgres.dsn)
        async with connection:
            own = TestUse(Drivers(blocking=postgres.driver, awaiting=postgres.driver))
            with own, pytest.raises(xjobs.ConnectionUnsupported, match="await aenqueue"):
                work.using(connection=connection).enqueue(n=1)
        assert postgres.tables.jobs() == []

    @pytest.mark.parametrize("connection", ["postgresql://localhost", 3, object()])
    async def test_what_is_no_connection(
        self, queue: xjobs.AsyncQueue, tables: Tables, work: Work, connection: Any
    ) -> None:
        with pytest.raises(xjobs.ConnectionUnsupported) as caught:
            await work.using(connection=connection).aenqueue(n=1)
        with pytest.raises(xjobs.ConnectionUnsupported):
            await queue.enqueue_many([work.call(n=1)], connection=connection)
        assert (caught.value.code, tables.jobs()) == ("X_CONNECTION_UNSUPPORTED", [])

    async def test_a_call_with_a_connection_of_its_own_among_many(
        self, queue: xjobs.AsyncQueue, tables: Tables, work: Work
    ) -> None:
        with pytest.raises(xjobs.Invariant, match="connection"):
            await queue.enqueue_many([work.call(n=1), work.using(connection=object()).call(n=2)])
        assert tables.jobs() == []

    def test_a_memory_transaction_is_a_driver_with_the_same_tables(self) -> None:
        memory = MemoryDriver()
        assert isinstance(memory.begin(), MemoryTransaction)
        assert memory.begin().store is memory.store

"""The stores under test, and what no operation does: reading whole tables, writing rows and pauses directly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar
from uuid import UUID

import psycopg
from psycopg.rows import dict_row, tuple_row
from psycopg.types.json import Jsonb

from xjobs import AsyncQueue, WouldBlock
from xjobs.bridge import run_sync
from xjobs.drivers.async_postgres import AsyncConnectionDriver, AsyncPostgresDriver
from xjobs.drivers.base import Driver
from xjobs.drivers.memory import MemoryDriver
from xjobs.drivers.memory.steps import Step
from xjobs.drivers.memory.store import Job, Session
from xjobs.drivers.postgres import ConnectionDriver, PostgresDriver
from xjobs.queue import Drivers
from xjobs.states import LIVE

BLOCKED = (WouldBlock, psycopg.errors.LockNotAvailable)
"""What a statement raises that would wait for another transaction: in memory, and on Postgres under `lock_timeout`."""

COLUMNS = tuple(sorted(Job.__slots__))
WORKER_COLUMNS = (
    "id",
    "host",
    "queues",
    "concurrency",
    "in_flight",
    "started_at",
    "heartbeat_at",
    "expires_at",
    "draining_at",
)
STEP_COLUMNS = (
    "run_id",
    "name",
    "status",
    "output",
    "started_at",
    "completed_at",
    "wake_at",
    "event",
    "correlation_key",
    "attempts",
    "error",
)
_JSON = ("input", "progress")
_COUNTERS = "job, bucket_ms, bucket_start, done, retried, failed, dead, duration_ms"

T = TypeVar("T")
Counter = tuple[str, int, datetime, int, int, int, int, int]


class Tables(Protocol):
    """The tables of a store, behind the queue's back, as they are committed."""

    def jobs(self) -> list[dict[str, Any]]:
        """Every row with every column, by id."""
        ...

    def counters(self) -> list[Counter]:
        """Every counter, by job and bucket."""
        ...

    def pauses(self) -> list[tuple[str, str, datetime]]:
        """Every pause, by kind and name."""
        ...

    def steps(self) -> list[tuple[Any, ...]]:
        """Every step, by run and name: run, name, status, output, completed, wake, event, key, attempts, error."""
        ...

    def events(self) -> list[tuple[Any, ...]]:
        """Every event, by id: id, name, payload, key, published, expires."""
        ...

    def slots(self) -> list[tuple[Any, ...]]:
        """Every slot, by key and slot: key, slot, holder, end."""
        ...

    def workers(self) -> list[tuple[Any, ...]]:
        """Every worker, by id: the columns of `WORKER_COLUMNS`."""
        ...

    def pause(self, name: str, kind: str = "queue") -> None:
        """Pause a queue."""
        ...

    def resume(self, name: str, kind: str = "queue") -> None:
        """End a pause."""
        ...

    def change(self, id: UUID, **columns: Any) -> None:  # noqa: A002 - the column's name
        """Set columns of one row."""
        ...

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Add jobs, each with every column."""
        ...

    def add_step(self, run_id: UUID, name: str, *, waits_for: str | None = None) -> None:
        """Add a step that was completed a second ago, or one that waits for an event from now on."""
        ...


class MemoryTables:
    def __init__(self, driver: MemoryDriver) -> None:
        self._store = driver.store

    def jobs(self) -> list[dict[str, Any]]:
        def value(job: Job, name: str) -> Any:
            stored = getattr(job, name)
            return json.loads(stored) if name in _JSON and stored is not None else stored

        seen = Session(self._store, None).visible
        rows = sorted((row for job in self._store.jobs.values() if (row := seen(job))), key=lambda job: job.id)
        return [{name: value(job, name) for name in COLUMNS} for job in rows]

    def counters(self) -> list[Counter]:
        seen = Session(self._store, None).visible
        return sorted(
            (*key, row.done, row.retried, row.failed, row.dead, row.duration_ms)
            for key, counter in self._store.counters.items()
            if (row := seen(counter))
        )

    def pauses(self) -> list[tuple[str, str, datetime]]:
        seen = Session(self._store, None).visible
        return sorted((*key, row.paused_at) for key, pause in self._store.pauses.items() if (row := seen(pause)))

    def steps(self) -> list[tuple[Any, ...]]:
        seen = Session(self._store, None).visible
        return sorted(
            tuple(
                json.loads(value) if column == "output" and value is not None else value
                for column in STEP_COLUMNS
                for value in [getattr(row, column)]
            )
            for table in self._store.steps.values()
            for step in table.values()
            if (row := seen(step))
        )

    def events(self) -> list[tuple[Any, ...]]:
        seen = Session(self._store, None).visible
        return sorted(
            (row.id, row.name, json.loads(row.payload), row.correlation_key, row.published_at, row.expires_at)
            for table in self._store.events.values()
            for event in table.values()
            if (row := seen(event))
        )

    def slots(self) -> list[tuple[Any, ...]]:
        seen = Session(self._store, None).visible
        return sorted(
            (*place, row.holder, row.expires_at) for place, slot in self._store.slots.items() if (row := seen(slot))
        )

    def workers(self) -> list[tuple[Any, ...]]:
        seen = Session(self._store, None).visible
        return sorted(
            tuple(
                json.loads(value) if column in ("queues", "in_flight") else value
                for column in WORKER_COLUMNS
                for value in [getattr(row, column)]
            )
            for worker in self._store.workers.values()
            if (row := seen(worker))
        )

    def pause(self, name: str, kind: str = "queue") -> None:
        Session(self._store, None).add_pause(kind, name)

    def resume(self, name: str, kind: str = "queue") -> None:
        Session(self._store, None).drop_pause(kind, name)

    def change(self, id: UUID, **columns: Any) -> None:  # noqa: A002
        columns = {name: json.dumps(value) if name in _JSON else value for name, value in columns.items()}
        Session(self._store, None).change(self._store.jobs[id.int], **columns)

    def add(self, rows: list[dict[str, Any]]) -> None:
        session = Session(self._store, None)
        # Rows are born ready: one that is finished must not take the key of one that is live.
        for row in sorted(rows, key=lambda row: row["state"] in LIVE):
            key = row["name"], row["tenant_id"] or "", row["idempotency_key"]
            job = Job(session.now, key, row["id"], *key[:1], row["queue"], "{}", key[2], row["run_id"], 1, *[None] * 5)
            for name in COLUMNS:
                value = row[name]
                setattr(job, name, json.dumps(value) if name in _JSON and value is not None else value)
            job.state = "ready"
            session.insert(job)
            session.change(job, state=row["state"])
            job.updated_at = row["updated_at"]

    def add_step(self, run_id: UUID, name: str, *, waits_for: str | None = None) -> None:
        session = Session(self._store, None)
        step = Step(run_id, name, session.now - timedelta(seconds=0 if waits_for else 1))
        step.status, step.event = "waiting" if waits_for else "completed", waits_for
        session.put(self._store.steps.setdefault(run_id, {}), name, step)
        if waits_for:
            self._store.waits[run_id, name] = step


class PostgresTables:
    def __init__(self, control: psycopg.Connection[Any]) -> None:
        self._control = control

    def jobs(self) -> list[dict[str, Any]]:
        cursor = self._control.cursor(binary=True, row_factory=dict_row)
        return cursor.execute(f"select {', '.join(COLUMNS)} from x_jobs order by id").fetchall()

    def counters(self) -> list[Counter]:
        cursor = self._control.cursor(binary=True, row_factory=tuple_row)
        return cursor.execute(f'select {_COUNTERS} from x_job_counters order by job collate "C", 2, 3').fetchall()

    def pauses(self) -> list[tuple[str, str, datetime]]:
        cursor = self._control.cursor(binary=True, row_factory=tuple_row)
        return cursor.execute("select kind, name, paused_at from x_job_pauses order by 1, 2").fetchall()

    def steps(self) -> list[tuple[Any, ...]]:
        cursor = self._control.cursor(binary=True, row_factory=tuple_row)
        columns = ", ".join(STEP_COLUMNS)
        return cursor.execute(f'select {columns} from x_job_steps order by run_id, name collate "C"').fetchall()  # type: ignore[arg-type]

    def events(self) -> list[tuple[Any, ...]]:
        cursor = self._control.cursor(binary=True, row_factory=tuple_row)
        return cursor.execute(
            "select id, name, payload, correlation_key, published_at, expires_at from x_job_events order by id"
        ).fetchall()

    def slots(self) -> list[tuple[Any, ...]]:
        cursor = self._control.cursor(binary=True, row_factory=tuple_row)
        return cursor.execute(
            'select lease_key, slot, holder, expires_at from x_job_leases order by lease_key collate "C", slot'
        ).fetchall()

    def workers(self) -> list[tuple[Any, ...]]:
        cursor = self._control.cursor(binary=True, row_factory=tuple_row)
        columns = ", ".join(WORKER_COLUMNS)
        return cursor.execute(f'select {columns} from x_job_workers order by id collate "C"').fetchall()  # type: ignore[arg-type]

    def pause(self, name: str, kind: str = "queue") -> None:
        self._control.execute(
            "insert into x_job_pauses (kind, name) values (%s, %s) on conflict do nothing", (kind, name)
        )

    def resume(self, name: str, kind: str = "queue") -> None:
        self._control.execute("delete from x_job_pauses where kind = %s and name = %s", (kind, name))

    def change(self, id: UUID, **columns: Any) -> None:  # noqa: A002
        columns = {name: Jsonb(value) if name in _JSON else value for name, value in columns.items()}
        assignments = ", ".join(f"{name} = %s" for name in columns)
        self._control.execute(
            f"update x_jobs set {assignments}, updated_at = now() where id = %s",  # type: ignore[arg-type]
            [*columns.values(), id],
        )

    def add(self, rows: list[dict[str, Any]]) -> None:
        columns = ", ".join(COLUMNS)
        self._control.execute(
            f"insert into x_jobs ({columns}) select {columns} from jsonb_populate_recordset(null::x_jobs, %s)",
            [Jsonb(rows, dumps=lambda value: json.dumps(value, default=str))],
        )

    def add_step(self, run_id: UUID, name: str, *, waits_for: str | None = None) -> None:
        self._control.execute(
            "insert into x_job_steps (run_id, name, status, event, started_at) values (%s, %s, %s, %s, now() - %s)",
            (
                run_id,
                name,
                "waiting" if waits_for else "completed",
                waits_for,
                timedelta(seconds=0 if waits_for else 1),
            ),
        )


class Transaction(Protocol):
    """An open transaction of another session: `queue` works in it."""

    queue: AsyncQueue

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...


class _MemoryTransaction:
    def __init__(self, driver: MemoryDriver) -> None:
        self._driver = driver.begin()
        self.queue = queue_on(self._driver)

    async def commit(self) -> None:
        self._driver.commit()

    async def rollback(self) -> None:
        self._driver.rollback()


class _BlockingTransaction:
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self.queue = queue_on(ConnectionDriver(connection))

    async def commit(self) -> None:
        self._connection.commit()

    async def rollback(self) -> None:
        self._connection.rollback()


class _AsyncTransaction:
    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection
        self.queue = queue_on(AsyncConnectionDriver(connection))

    async def commit(self) -> None:
        await self._connection.commit()

    async def rollback(self) -> None:
        await self._connection.rollback()


class Store:
    """One store under test.

    Attributes:
        kind: `memory`, `blocking` or `async`.
        driver: on it, for the queue under test.
        blocking: on it, for `def` bodies; the same one where that is blocking.
        tables: its tables.
    """

    kind: str
    driver: Driver
    blocking: Driver
    tables: Tables

    def another(self) -> Driver:
        """A driver with a session of its own."""
        raise NotImplementedError

    async def begin(self) -> Transaction:
        """Open a transaction; on Postgres its statements wait for locks no longer than a moment."""
        raise NotImplementedError

    def close(self) -> None:
        """End what was opened."""

    async def at_once(self, count: int, act: Callable[[AsyncQueue], Coroutine[Any, Any, T]]) -> list[T]:
        """Do the same from several sessions at a time: in threads, or in tasks on async drivers."""
        queues = [queue_on(self.another()) for _ in range(count)]
        if self.kind == "async":
            return await asyncio.gather(*map(act, queues))
        return await asyncio.gather(*(asyncio.to_thread(lambda q=q: run_sync(act(q))) for q in queues))


class MemoryStore(Store):
    kind = "memory"

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self.driver: MemoryDriver = MemoryDriver(clock=clock)
        self.blocking = self.driver
        self.tables = MemoryTables(self.driver)

    def another(self) -> Driver:
        return self.driver

    async def begin(self) -> Transaction:
        return _MemoryTransaction(self.driver)


class PostgresStore(Store):
    def __init__(self, kind: str, dsn: str, control: psycopg.Connection[Any], blocking: PostgresDriver) -> None:
        self.kind = kind
        self.dsn, self.control = dsn, control
        self.tables = PostgresTables(control)
        self._opened: list[Any] = []
        self.blocking = blocking
        self.driver = blocking if kind == "blocking" else self.another()

    def another(self) -> Driver:
        driver = PostgresDriver(self.dsn) if self.kind == "blocking" else AsyncPostgresDriver(self.dsn)
        self._opened.append(driver)
        return driver

    async def begin(self) -> Transaction:
        options = "-c lock_timeout=100ms"
        if self.kind == "blocking":
            connection = psycopg.connect(self.dsn, options=options)
            self._opened.append(connection)
            return _BlockingTransaction(connection)
        awaiting = await psycopg.AsyncConnection.connect(self.dsn, options=options)
        self._opened.append(awaiting)
        return _AsyncTransaction(awaiting)

    def close(self) -> None:
        for opened in self._opened:
            if isinstance(opened, AsyncPostgresDriver):
                opened.abandon()
            elif isinstance(opened, psycopg.AsyncConnection):
                opened.pgconn.finish()  # its loop is gone
            elif isinstance(opened, PostgresDriver):
                opened.connection().close()
            else:
                opened.close()


def queue_on(driver: Driver) -> AsyncQueue:
    """A queue over one driver, whatever its colour."""
    return AsyncQueue(Drivers(awaiting=driver))

"""Queue and AsyncQueue: two tables of operations over one source of drivers, and which of them handles enqueue through.

A queue binds a backend. `Queue` is for blocking code, `AsyncQueue` for code on an event loop; what they do is written
once, in `xjobs.operations`. A source hands out the driver for each colour: memory has one for both, a Postgres source
has one or both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self
from uuid import UUID

from xjobs.bridge import blocking, run_sync
from xjobs.drivers.base import Driver
from xjobs.errors import DriverUnavailable, Invariant
from xjobs.jobs import Call, JobHandle
from xjobs.limits import check_count
from xjobs.operations import claim as claims, enqueue as enqueues, inspect, settle, stats as counting
from xjobs.records import ClaimedJob, Enqueued, JobRow, QueueStats
from xjobs.sql import SQL_JOBS_TABLE
from xjobs.transactions import join

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool, ConnectionPool

Colour = Literal["blocking", "async"]


class Source(Protocol):
    """Where a queue's drivers come from."""

    def driver(self, colour: Colour) -> Driver | None:
        """The driver for blocking or for async callers; None when this source has none."""
        ...


class DriverSource:
    """Drivers that exist already; one that serves both colours is given twice."""

    def __init__(self, *, blocking: Driver | None = None, awaiting: Driver | None = None) -> None:
        self._drivers: dict[Colour, Driver | None] = {"blocking": blocking, "async": awaiting}

    def driver(self, colour: Colour) -> Driver | None:
        """The driver for that colour, or None."""
        return self._drivers[colour]


class _Base:
    """What both colours of queue share: the source, being in use, and the refusal to leave a test's queue."""

    _colour: Colour

    def __init__(self, source: Source | Driver, *, pinned: bool = True) -> None:
        """Bind a source or a driver.

        `pinned=False` is for queues that application code connects: while a test's queue is in use, they lead there.
        """
        self._source = source if hasattr(source, "driver") else _source_of(source, self._colour)
        self._pinned = pinned

    @property
    def source(self) -> Source:
        """Where the drivers come from: the test's queue, while one is in use and this queue was connected by the app."""
        return self._source if self._pinned or _in_use.test is None else _in_use.test

    @property
    def driver(self) -> Driver:
        """The driver of this queue's colour.

        Raises:
            DriverUnavailable: its source has none of that colour.
        """
        driver = self.source.driver(self._colour)
        if driver is None:
            raise _wrong_colour(self._colour)
        return driver

    @property
    def backend(self) -> str:
        """`memory` or `postgres`."""
        return self.driver.backend

    async def _enqueue(self, call: Call) -> Enqueued:
        return await enqueues.enqueue(await _driver_for(self.source, self._colour, call.options.connection), call)

    async def _enqueue_many(self, calls: Sequence[Call], *, connection: Any = None) -> list[Enqueued]:
        calls = list(calls)
        for call in calls:
            if not isinstance(call, Call):
                raise Invariant(f"{call!r} is not a call", "pass what handle.call(...) answers")
            if call.options.connection is not None and call.options.connection is not connection:
                raise Invariant(f"{call!r} names a connection of its own", "give connection= to enqueue_many instead")
        return await enqueues.enqueue_many(await _driver_for(self.source, self._colour, connection), calls)

    async def _install_schema(self) -> None:
        await self.driver.run_script(SQL_JOBS_TABLE)

    async def _close(self) -> None:
        if self._pinned or _in_use.test is None:
            await self.driver.aclose()

    async def _job(self, id: UUID | str) -> JobRow | None:  # noqa: A002 - the column's name
        return await inspect.job(self.driver, id)

    async def _jobs(
        self,
        job: JobHandle[Any, Any, Any] | str | None = None,
        *,
        queue: str | None = None,
        state: str | None = None,
        limit: int = 100,
    ) -> list[JobRow]:
        return await inspect.jobs(self.driver, job, queue=queue, state=state, limit=limit)

    async def _stats(self) -> list[QueueStats]:
        return await counting.stats(self.driver)

    async def _claim(
        self, *, queues: Sequence[str], worker_id: str, limit: int = 1, lease: timedelta | float = claims.LEASE
    ) -> claims.Claimed:
        return await claims.claim(self.driver, queues=queues, worker_id=worker_id, limit=limit, lease=lease)

    async def _heartbeat(
        self, jobs: Sequence[ClaimedJob], *, worker_id: str, lease: timedelta | float = claims.LEASE
    ) -> set[UUID]:
        return await claims.heartbeat(self.driver, jobs, worker_id=worker_id, lease=lease)

    async def _ack(self, acks: Sequence[settle.Ack], *, worker_id: str, counted: bool = True) -> set[UUID]:
        return await settle.ack(self.driver, acks, worker_id=worker_id, counted=counted)

    async def _nack(self, nacks: Sequence[settle.Nack], *, worker_id: str) -> set[UUID]:
        return await settle.nack(self.driver, nacks, worker_id=worker_id)

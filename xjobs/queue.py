"""Queue and AsyncQueue: two tables of operations over one source of drivers.

`Queue` is for blocking code, `AsyncQueue` for code on an event loop. What they do is written once, in
`xjobs.operations`. A source hands out the driver for each colour of call: memory has one for both, the Postgres sources
have one.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from xjobs import in_use, operations as ops, sql
from xjobs.bridge import awaiting, blocking, run_sync
from xjobs.drivers.base import Driver
from xjobs.errors import Invariant
from xjobs.jobs import Call
from xjobs.limits import check_count
from xjobs.records import Enqueued, Event
from xjobs.transactions import Colour, join

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool, ConnectionPool

SQLALCHEMY_SCHEME = "postgresql+psycopg"

POOL_SIZE = 10
"""The most connections that a queue made by `connect` opens."""


@runtime_checkable
class Source(Protocol):
    """Where a queue's drivers come from."""

    def driver(self, colour: Colour) -> Driver | None:
        """The driver for blocking or for async callers; None when this source has none."""
        ...


class Drivers:
    """A source of drivers that exist already; one that serves both colours is given twice."""

    def __init__(self, *, blocking: Driver | None = None, awaiting: Driver | None = None) -> None:
        self._drivers: dict[Colour, Driver | None] = {"blocking": blocking, "async": awaiting}

    def driver(self, colour: Colour) -> Driver | None:
        """The driver for that colour, or None."""
        return self._drivers[colour]


class _Queue:
    """What both colours share: a source, and the way to the test's queue while one is in use."""

    _colour: Colour

    def __init__(self, source: Source | Driver, *, from_app: bool = False) -> None:
        """Bind a source or a driver.

        Args:
            source: where the drivers come from.
            from_app: the queue leads to the test's queue while one is in use, as all queues do that `connect` and
                `over` make, so that no test reaches another database by accident.
        """
        self._own = source if isinstance(source, Source) else self._source_of(source)
        self._from_app = from_app

    @classmethod
    def _source_of(cls, driver: Driver) -> Source:
        if driver.backend == "memory":
            return Drivers(blocking=driver, awaiting=driver)
        return Drivers(blocking=driver) if cls._colour == "blocking" else Drivers(awaiting=driver)

    @property
    def source(self) -> Source:
        """Where the drivers come from at this moment."""
        return in_use.test_source if self._from_app and in_use.test_source is not None else self._own

    @property
    def driver(self) -> Driver:
        """The driver of this queue's colour.

        Raises:
            DriverUnavailable: its source has none of that colour.
        """
        source = self._own
        if self._from_app and in_use.test_source is not None:
            source = in_use.test_source
        driver = source.driver(self._colour)
        if driver is None:
            raise in_use.wrong_colour(self._colour)
        return driver

    @property
    def backend(self) -> str:
        """`memory` or `postgres`."""
        return self.driver.backend

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.backend}>"

    async def _close(self) -> None:
        if self.source is self._own:
            await self.driver.aclose()


class Queue(_Queue):
    """A queue for blocking code: Flask, Django, scripts, threads. Threads may share one."""

    _colour = "blocking"

    @classmethod
    def connect(cls, url: str, *, pool_size: int = POOL_SIZE) -> Self:
        """A queue by its address: `memory://`, or a Postgres connection string or URL, also SQLAlchemy's for psycopg.

        Nothing is connected before the first call. On Postgres, up to `pool_size` connections are opened as needed.

        Raises:
            Invariant: the address or the size cannot be.
        """
        check_count(pool_size, "pool_size", low=1)
        if _is_memory(url):
            return cls(_memory_driver(), from_app=True)
        from xjobs.drivers.postgres import PoolDriver, make_pool
        from xjobs.drivers.session import complete

        complete(url := _for_libpq(url))
        return cls(PoolDriver(lambda: make_pool(url, pool_size), conninfo=url, owned=True), from_app=True)

    @classmethod
    def over(cls, pool: ConnectionPool[Any]) -> Self:
        """A queue on a psycopg pool that the app has already; closing the queue leaves the pool open."""
        from xjobs.drivers.postgres import PoolDriver
        from xjobs.drivers.session import address_of

        return cls(PoolDriver(pool, conninfo=address_of(pool), owned=False), from_app=True)

    def enqueue(self, call: Call, *, connection: Any = None) -> Enqueued:
        """Queue one call of a job (`handle.call(...)`) here, whichever queue is in use; see `JobHandle.enqueue`."""
        return run_sync(_enqueue(self, call, connection))

    def enqueue_many(self, calls: Iterable[Call], *, connection: Any = None) -> list[Enqueued]:
        """Queue many calls in one round trip, all or none; the answers are in the order of the calls.

        Two calls with one key become one job, of which the second answer says `deduped`.

        Raises:
            Invariant: something is not a call, or says `on_conflict="error"`.
        """
        return run_sync(_enqueue_many(self, calls, connection))

    def publish(
        self,
        name: str,
        payload: Any = None,
        *,
        correlation_key: str | None = None,
        ttl: timedelta | float = ops.events.TTL,
        connection: Any = None,
    ) -> Event:
        """Publish an event for the runs that wait for it (`ctx.step.wait_for_event`), now or until it expires.

        Args:
            name: what happened, such as `parcel.picked`.
            payload: strict JSON values.
            correlation_key: whom it concerns; waits compare it with their `match`.
            ttl: how long it can be found, a timedelta or seconds; seven days when not given.
            connection: publish on this connection, inside the caller's transaction; it is never ended here.

        Raises:
            InputInvalid: the payload is not strict JSON; the message names the path.
            Invariant: a name, key or ttl that cannot be.
            TransactionAborted, ConnectionUnsupported: the connection cannot take it.
        """
        return run_sync(_publish_on(self.driver, self._colour, connection, name, payload, correlation_key, ttl))

    def install_schema(self) -> None:
        """Create what is missing of the queue's tables and indexes, in one transaction; repeatable.

        A memory queue has nothing to install.
        """
        run_sync(self.driver.run_script(sql.SQL_JOBS_TABLE))

    def close(self) -> None:
        """Close the connections that the queue has opened. A later call opens new ones."""
        run_sync(self._close())

    job = blocking(ops.inspect.job)
    jobs = blocking(ops.inspect.jobs)
    stats = blocking(ops.stats.stats)
    scaler_depth = blocking(ops.stats.scaler_depth)
    workers = blocking(ops.workers.workers)
    claim = blocking(ops.claim.claim)
    heartbeat = blocking(ops.claim.heartbeat)
    ack = blocking(ops.settle.ack)
    nack = blocking(ops.settle.nack)
    cancel = blocking(ops.operate.cancel)
    requeue = blocking(ops.operate.requeue)
    promote = blocking(ops.operate.promote)
    remove = blocking(ops.operate.remove)
    cancel_many = blocking(ops.operate.cancel_many)
    requeue_many = blocking(ops.operate.requeue_many)
    promote_many = blocking(ops.operate.promote_many)
    remove_many = blocking(ops.operate.remove_many)
    pause_queue = blocking(ops.pauses.pause_queue)
    resume_queue = blocking(ops.pauses.resume_queue)
    paused_queues = blocking(ops.pauses.paused_queues)
    steps = blocking(ops.steps.steps)
    events = blocking(ops.events.events)
    purge_events = blocking(ops.events.purge_events)
    wake_waits = blocking(ops.events.wake_waits)


class AsyncQueue(_Queue):
    """A queue for code on an event loop. Each method is the coroutine of the one in `Queue`."""

    _colour = "async"

    @classmethod
    def connect(cls, url: str, *, pool_size: int = POOL_SIZE) -> Self:
        """A queue by its address; see `Queue.connect`."""
        check_count(pool_size, "pool_size", low=1)
        if _is_memory(url):
            return cls(_memory_driver(), from_app=True)
        from xjobs.drivers.async_postgres import AsyncPoolDriver, make_pool
        from xjobs.drivers.session import complete

        complete(url := _for_libpq(url))
        return cls(AsyncPoolDriver(lambda: make_pool(url, pool_size), conninfo=url, owned=True), from_app=True)

    @classmethod
    def over(cls, pool: AsyncConnectionPool[Any]) -> Self:
        """A queue on a psycopg pool that the app has already; closing the queue leaves the pool open."""
        from xjobs.drivers.async_postgres import AsyncPoolDriver
        from xjobs.drivers.session import address_of

        return cls(AsyncPoolDriver(pool, conninfo=address_of(pool), owned=False), from_app=True)

    def enqueue(self, call: Call, *, connection: Any = None) -> Coroutine[Any, Any, Enqueued]:
        """Queue one call; see `Queue.enqueue`."""
        return _enqueue(self, call, connection)

    def enqueue_many(self, calls: Iterable[Call], *, connection: Any = None) -> Coroutine[Any, Any, list[Enqueued]]:
        """Queue many calls; see `Queue.enqueue_many`."""
        return _enqueue_many(self, calls, connection)

    def publish(
        self,
        name: str,
        payload: Any = None,
        *,
        correlation_key: str | None = None,
        ttl: timedelta | float = ops.events.TTL,
        connection: Any = None,
    ) -> Coroutine[Any, Any, Event]:
        """Publish an event; see `Queue.publish`."""
        return _publish_on(self.driver, self._colour, connection, name, payload, correlation_key, ttl)

    def install_schema(self) -> Coroutine[Any, Any, None]:
        """Install the schema; see `Queue.install_schema`."""
        return self.driver.run_script(sql.SQL_JOBS_TABLE)

    def close(self) -> Coroutine[Any, Any, None]:
        """Close the connections; see `Queue.close`."""
        return self._close()

    job = awaiting(ops.inspect.job)
    jobs = awaiting(ops.inspect.jobs)
    stats = awaiting(ops.stats.stats)
    scaler_depth = awaiting(ops.stats.scaler_depth)
    workers = awaiting(ops.workers.workers)
    claim = awaiting(ops.claim.claim)
    heartbeat = awaiting(ops.claim.heartbeat)
    ack = awaiting(ops.settle.ack)
    nack = awaiting(ops.settle.nack)
    cancel = awaiting(ops.operate.cancel)
    requeue = awaiting(ops.operate.requeue)
    promote = awaiting(ops.operate.promote)
    remove = awaiting(ops.operate.remove)
    cancel_many = awaiting(ops.operate.cancel_many)
    requeue_many = awaiting(ops.operate.requeue_many)
    promote_many = awaiting(ops.operate.promote_many)
    remove_many = awaiting(ops.operate.remove_many)
    pause_queue = awaiting(ops.pauses.pause_queue)
    resume_queue = awaiting(ops.pauses.resume_queue)
    paused_queues = awaiting(ops.pauses.paused_queues)
    steps = awaiting(ops.steps.steps)
    events = awaiting(ops.events.events)
    purge_events = awaiting(ops.events.purge_events)
    wake_waits = awaiting(ops.events.wake_waits)


def use(queue: Queue | AsyncQueue) -> in_use.Using:
    """Make `queue` the one that handles enqueue through, in the whole process.

    Uses nest: `with xjobs.use(queue): ...`, or `.stop()` on what is answered, brings back what was in use before. While
    a test's queue is in use this has no effect on handles, and ends with the test.
    """
    if not isinstance(queue, Queue | AsyncQueue):
        raise Invariant(f"use() was given {queue!r}", "give an xjobs.Queue or an xjobs.AsyncQueue")
    return in_use.push(queue._own)  # noqa: SLF001 - the same module; what it leads to now ends with the test


def enqueue_many(calls: Iterable[Call], *, connection: Any = None) -> list[Enqueued]:
    """Queue many calls on the queue in use; see `Queue.enqueue_many`."""
    return Queue(in_use.source_for("blocking")[0]).enqueue_many(calls, connection=connection)


def aenqueue_many(calls: Iterable[Call], *, connection: Any = None) -> Coroutine[Any, Any, list[Enqueued]]:
    """Queue many calls on the queue in use, from async code; see `Queue.enqueue_many`."""
    return AsyncQueue(in_use.source_for("async")[0]).enqueue_many(calls, connection=connection)


def publish(
    name: str,
    payload: Any = None,
    *,
    correlation_key: str | None = None,
    ttl: timedelta | float = ops.events.TTL,
    connection: Any = None,
) -> Event:
    """Publish an event on the queue in use; see `Queue.publish`."""
    driver = in_use.source_for("blocking")[1]
    return run_sync(_publish_on(driver, "blocking", connection, name, payload, correlation_key, ttl))


def apublish(
    name: str,
    payload: Any = None,
    *,
    correlation_key: str | None = None,
    ttl: timedelta | float = ops.events.TTL,
    connection: Any = None,
) -> Coroutine[Any, Any, Event]:
    """Publish an event on the queue in use, from async code; see `Queue.publish`."""
    driver = in_use.source_for("async")[1]
    return _publish_on(driver, "async", connection, name, payload, correlation_key, ttl)


def enqueue_in_use(call: Call, colour: Colour) -> Coroutine[Any, Any, Enqueued]:
    """Queue a call on the queue in use, for the handles."""
    driver, connection = in_use.source_for(colour)[1], call.options.connection
    if connection is None:
        return ops.enqueue.enqueue(driver, call)
    return _enqueue_joined(driver, call, connection, colour)


def _enqueue(queue: Queue | AsyncQueue, call: Call, connection: Any) -> Coroutine[Any, Any, Enqueued]:
    if type(call) is not Call:
        _check_call(call)
    connection = connection or call.options.connection
    if connection is None:
        return ops.enqueue.enqueue(queue.driver, call)
    return _enqueue_joined(queue.driver, call, connection, queue._colour)  # noqa: SLF001 - the same module


async def _enqueue_joined(driver: Driver, call: Call, connection: Any, colour: Colour) -> Enqueued:
    return await ops.enqueue.enqueue(join(driver, connection, colour), call)


async def _publish_on(
    driver: Driver,
    colour: Colour,
    connection: Any,
    name: str,
    payload: Any,
    correlation_key: str | None,
    ttl: timedelta | float,
) -> Event:
    if connection is not None:
        driver = join(driver, connection, colour)
    return await ops.events.publish(driver, name, payload, correlation_key=correlation_key, ttl=ttl)


async def _enqueue_many(queue: Queue | AsyncQueue, calls: Iterable[Call], connection: Any) -> list[Enqueued]:
    given = list(calls)
    for call in given:
        _check_call(call)
        if call.options.connection is not None and call.options.connection is not connection:
            raise Invariant(f"{call!r} names a connection of its own", "give connection= to enqueue_many instead")
    driver = queue.driver
    if connection is not None:
        driver = join(driver, connection, queue._colour)  # noqa: SLF001 - the same module
    return await ops.enqueue.enqueue_many(driver, given)


def _check_call(call: object) -> None:
    if not isinstance(call, Call):
        raise Invariant(f"{call!r} is not a call of a job", "pass what handle.call(...) answers")


def _is_memory(url: object) -> bool:
    if not isinstance(url, str) or not url:
        raise Invariant(f"the address of the queue is {url!r}", "give memory://, or a Postgres connection string")
    if url.startswith("memory:") and url != "memory://":
        raise Invariant(f"the address of the queue is {url!r}", "write memory:// and nothing behind it")
    scheme, separator, _ = url.partition("://")
    if separator and scheme not in ("memory", "postgresql", "postgres", SQLALCHEMY_SCHEME) and "=" not in scheme:
        raise Invariant(f"the address of the queue begins with {scheme!r}", "give memory:// or postgresql://...")
    return url == "memory://"


def _for_libpq(url: str) -> str:
    """The address without the driver that SQLAlchemy has in its scheme."""
    scheme, separator, rest = url.partition("://")
    return f"postgresql://{rest}" if separator and scheme == SQLALCHEMY_SCHEME else url


def _memory_driver() -> Driver:
    from xjobs.drivers.memory import MemoryDriver

    return MemoryDriver()


__all__ = ["AsyncQueue", "Queue", "aenqueue_many", "apublish", "enqueue_many", "publish", "use"]

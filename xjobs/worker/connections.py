"""The connections of one worker: claims, settles and renewals each have one of their own; bodies share a pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from xjobs.drivers.base import Driver
from xjobs.errors import Invariant

if TYPE_CHECKING:
    from xjobs.drivers.memory import MemoryDriver

BODIES = 10
"""The most connections of each colour that bodies of one worker use at a time."""


class Ears(Protocol):
    """What hears of work and of events."""

    async def hear(self, within: float | None = None) -> list[tuple[str, str]]:
        """Wait for notifications, `within` seconds at most, and answer each channel and payload.

        Raises:
            DriverUnavailable: the connection broke.
        """
        ...

    async def close(self) -> None:
        """Stop listening."""
        ...


class Connections(Protocol):
    """Where a worker's statements go.

    Attributes:
        claims, settles: for the event loop, so that a settle and the next claim are under way together.
        keeper: blocking, for the thread that renews.
        blocking, awaiting: for what bodies ask of the queue.
    """

    claims: Driver
    settles: Driver
    keeper: Driver
    blocking: Driver
    awaiting: Driver

    async def listen(self) -> Ears:
        """Begin to listen for work.

        Raises:
            DriverUnavailable: nothing answered.
        """
        ...

    async def close(self) -> None:
        """Close those that are open; bodies that still run may open theirs again."""
        ...


class PostgresConnections:
    """Connections to a Postgres database, opened when they are first used; their attempts share one gate.

    Args:
        conninfo: a libpq connection string or URL.
        before: called before each statement of the worker itself.
    """

    def __init__(self, conninfo: str, *, before: Callable[[], None] | None = None) -> None:
        from xjobs.drivers.async_postgres import AsyncPoolDriver, AsyncPostgresDriver, make_pool
        from xjobs.drivers.gate import ConnectGate
        from xjobs.drivers.postgres import PoolDriver, PostgresDriver, make_pool as make_blocking_pool

        self._conninfo = conninfo
        self._gate = ConnectGate()
        self.claims: Driver = AsyncPostgresDriver(conninfo, before=before, gate=self._gate)
        self.settles: Driver = AsyncPostgresDriver(conninfo, before=before, gate=self._gate)
        self.keeper: Driver = PostgresDriver(conninfo, before=before, gate=self._gate)
        self.blocking: Driver = PoolDriver(lambda: make_blocking_pool(conninfo, BODIES), conninfo=conninfo, owned=True)
        self.awaiting: Driver = AsyncPoolDriver(lambda: make_pool(conninfo, BODIES), conninfo=conninfo, owned=True)

    async def listen(self) -> Ears:
        """Open the session that listens."""
        from xjobs.drivers.notifications import Listener

        return await Listener.connect(self._conninfo, self._gate)

    async def close(self) -> None:
        """Close what is open."""
        for driver in (self.claims, self.settles, self.keeper, self.blocking, self.awaiting):
            await driver.aclose()


class MemoryConnections:
    """The one memory driver, whose tables live in this process."""

    def __init__(self, driver: MemoryDriver) -> None:
        self._driver = driver
        self.claims: Driver = driver
        self.settles: Driver = driver
        self.keeper: Driver = driver
        self.blocking: Driver = driver
        self.awaiting: Driver = driver

    async def listen(self) -> Ears:
        """Listen at the tables themselves."""
        return _MemoryEars(self._driver)

    async def close(self) -> None:
        """Leave the tables to their queue."""


class _MemoryEars:
    def __init__(self, driver: MemoryDriver) -> None:
        self._store = driver.store
        self._loop = asyncio.get_running_loop()
        self._heard: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._store.listeners.append(self._tell)

    def _tell(self, channel: str, payload: str) -> None:
        with suppress(RuntimeError):  # the loop has ended without this having been closed
            self._loop.call_soon_threadsafe(self._heard.put_nowait, (channel, payload))

    async def hear(self, within: float | None = None) -> list[tuple[str, str]]:
        try:
            async with asyncio.timeout(within):
                return [await self._heard.get()]
        except TimeoutError:
            return []

    async def close(self) -> None:
        self._store.listeners.remove(self._tell)


def connections_to(url: str) -> Connections:
    """The connections of a worker by the address of its queue.

    Raises:
        Invariant: it is not the address of a database.
    """
    if url == "memory://":
        raise Invariant(
            "the address of the queue is 'memory://', which is empty in every process",
            "give a Postgres connection string; to run a memory queue's jobs, drain it, or use Worker.over(queue)",
        )
    return PostgresConnections(url)

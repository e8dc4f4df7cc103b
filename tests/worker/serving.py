"""Workers in the test's own process, on memory and on Postgres, with connections that can be made to fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from xjobs.drivers.base import Driver, Row
from xjobs.sql import Statement
from xjobs.worker import Worker, settings
from xjobs.worker.connections import Connections, Ears

T = TypeVar("T")
QUICK = {"poll": 0.02, "idle_poll": 0.1, "idle_poll_woken": 0.1}


async def until(what: str, look: Callable[[], T], *, within: float = 15) -> T:
    """The first true answer of `look`; an AssertionError when there is none in time."""
    deadline = time.monotonic() + within
    while not (answer := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {within:g} s for {what}; the last look answered {answer!r}")
        await asyncio.sleep(0.01)
    return answer


class Faulty:
    """A driver in front of which something may happen to a statement: `fault(name, send)` sends it, or does not."""

    def __init__(self, driver: Driver, owner: FaultyConnections, which: str) -> None:
        self._driver = driver
        self._owner = owner
        self._which = which
        self.backend = driver.backend

    async def run(self, statement: Statement, **parameters: Any) -> list[Row]:
        self._owner.sent.append(statement.name)
        if self._owner.before is not None:
            self._owner.before(statement.name)
        await self._held("before", statement)
        rows = await self._driver.run(statement, **parameters)
        if self._owner.after is not None:
            self._owner.after(statement.name)
        await self._held("after", statement)
        return rows

    async def _held(self, when: str, statement: Statement) -> None:
        waits = None if self._owner.hold is None else self._owner.hold(when, self._which, statement.name)
        if waits is not None:
            await waits

    async def run_script(self, text: str) -> None:
        await self._driver.run_script(text)

    async def aclose(self) -> None:
        await self._driver.aclose()


class FaultyConnections:
    """A worker's connections, each statement of which may be made to fail before it is sent, or after it took effect.

    Attributes:
        before, after: called with each statement's name; what they raise is what the worker gets.
        hold: called with "before" or "after", the connection's name and the statement's; what it answers is awaited.
        sent: the names of the statements so far.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.before: Callable[[str], None] | None = None
        self.after: Callable[[str], None] | None = None
        self.hold: Callable[[str, str, str], Awaitable[Any] | None] | None = None
        self.sent: list[str] = []
        self.claims: Driver = Faulty(connections.claims, self, "claims")
        self.settles: Driver = Faulty(connections.settles, self, "settles")
        self.keeper: Driver = Faulty(connections.keeper, self, "keeper")
        self.blocking: Driver = connections.blocking
        self.awaiting: Driver = connections.awaiting

    async def listen(self) -> Ears:
        return await self._connections.listen()

    async def close(self) -> None:
        await self._connections.close()


@asynccontextmanager
async def serving(connections: Connections, **options: Any) -> AsyncIterator[Worker]:
    """A worker that runs for the length of the block, and ends by itself after it."""
    given = {"worker_id": "w", **QUICK, **options}
    more = {name: given.pop(name) for name in ("limiter", "clock") if name in given}
    worker = Worker(connections, settings(**given), **more)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop(within=10)
        await asyncio.wait_for(task, 20)

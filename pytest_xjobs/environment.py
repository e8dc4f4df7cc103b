"""The surroundings of one test: its backend, its clock, and the drivers of its queue."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from pytest_xjobs.clock import Clock
from pytest_xjobs.plugin import CONTEXT, OPTIONS
from pytest_xjobs.provision.waiting import seconds
from xjobs import registry
from xjobs.queue import Drivers

if TYPE_CHECKING:
    from pytest_xjobs.drivers import AsyncQueueDriver
    from pytest_xjobs.leaks import Earlier
    from pytest_xjobs.runtime import Place
    from xjobs.drivers.base import Driver, Row
    from xjobs.sql import Statement


_GONE_WITHIN = 0.2
"""Seconds that the server is given to notice that a connection was closed."""


class XjobsWarning(pytest.PytestWarning):
    """Something that the plugin noticed about a test and has put right."""


@dataclass
class Environment:
    """What the fixtures of one test share.

    Attributes:
        backend: `memory` or `pg`.
        clock: the test's clock.
        source: the drivers.
        dsn: of the test's database, or None in memory.
        uncommitted: answers, one line each, what sits in transactions that are open now.
        random: for retry jitter, seeded from the run's seed and the test's name.
        seed: the run's.
        drain_budget: how many attempts a drain of this test runs at most.
        context: what bodies find in context variables: what the process had set before any test ran.
    """

    backend: str
    clock: Clock
    source: Drivers
    dsn: str | None
    uncommitted: Callable[[], list[str]]
    random: Random
    seed: int
    drain_budget: int
    context: Context

    def describe(self) -> str:
        """What a reader of a failure needs to know, for the report."""
        clock = "is real" if self.clock.state.mode == "real" else f"shows {self.clock.now.isoformat()}"
        lines = [
            f"backend {self.backend}, the clock {clock}",
            f"--xjobs-seed={self.seed} repeats the jitter of retries",
        ]
        return "\n".join(lines + self.uncommitted())


@contextmanager
def environment(request: pytest.FixtureRequest, backend: str) -> Iterator[Environment]:
    """Set up one test's surroundings and put everything back after it."""
    options = request.config.stash[OPTIONS]
    # Without the parameters, so that a test sees the same randomness on every backend.
    name = f"{options.seed.value}:{request.path.name}:{getattr(request.node, 'originalname', request.node.name)}"
    clock = Clock()
    opened = _memory(clock) if backend == "memory" else _postgres(request, clock)
    with registry.scope(), opened as (source, dsn, uncommitted):
        try:
            yield Environment(
                backend,
                clock,
                source,
                dsn,
                uncommitted,
                Random(name),
                options.seed.value,
                options.drain_budget.value,
                request.config.stash.get(CONTEXT, Context()),
            )
        finally:
            clock.close()


_Opened = tuple[Drivers, str | None, Callable[[], list[str]]]


@contextmanager
def _memory(clock: Clock) -> Iterator[_Opened]:
    from pytest_xjobs.atomic import describe, open_blocks
    from xjobs.drivers.memory import MemoryDriver

    driver = MemoryDriver(clock=lambda: clock.now)

    def uncommitted() -> list[str]:
        lines = [
            f"  job {job.name!r} ({job.id}) is in a transaction that has not been committed"
            for job in driver.store.jobs.values()
            if job.writer is not None
        ]
        return lines + [f"    {describe(block.alias)}" for block in open_blocks() if lines]

    yield Drivers(blocking=driver, awaiting=driver), None, uncommitted


@contextmanager
def _postgres(request: pytest.FixtureRequest, clock: Clock) -> Iterator[_Opened]:
    from pytest_xjobs.atomic import name_blocks, open_blocks
    from pytest_xjobs.clock import set_time
    from pytest_xjobs.leaks import Earlier, leaked_transactions
    from pytest_xjobs.runtime import runtime

    run = runtime(request)
    own = _isolation(request) == "database"
    place = run.own() if own else run.shared()
    try:
        earlier = Earlier.now(place.control, [block.pid for block in open_blocks() if block.pid is not None])
        place.database.reset(place.control)
        unsubscribe = clock.subscribe(lambda state: set_time(place.control, state))
        place.blocking.before = place.awaiting.before = clock.sync

        def uncommitted() -> list[str]:
            left = name_blocks(leaked_transactions(place.control))
            return [f"  a transaction has not been committed: {text}" for text in left]

        awaiting = ByThread(place.awaiting)
        yield Drivers(blocking=place.blocking, awaiting=awaiting), place.database.dsn, uncommitted
        awaiting.abandon()
        clock.close()
        unsubscribe()
        _end_leaked_transactions(place, earlier)
    finally:
        place.blocking.before = place.awaiting.before = None
        place.awaiting.abandon()
        if own:
            run.drop(place)


class ByThread:
    """The async driver of a test's queue: the test's thread uses the one that is kept, others have one of their own.

    Bodies of a worker in a thread await on that thread's loop, while the test may be awaiting on its own.
    """

    backend = "postgres"

    def __init__(self, kept: AsyncQueueDriver) -> None:
        self._drivers = {threading.get_ident(): kept}
        self._kept = kept

    def _driver(self) -> AsyncQueueDriver:
        driver = self._drivers.get(threading.get_ident())
        if driver is None:
            driver = self._drivers[threading.get_ident()] = self._kept.sibling()
        return driver

    async def run(self, statement: Statement, **parameters: Any) -> list[Row]:
        """Run one statement."""
        return await self._driver().run(statement, **parameters)

    async def run_script(self, text: str) -> None:
        """Run schema text in one transaction."""
        await self._driver().run_script(text)

    def joined(self, driver: Driver) -> Driver:
        """The driver for a connection that a caller gives."""
        return self._kept.joined(driver)

    async def aclose(self) -> None:
        """Close this thread's connection."""
        await self._driver().aclose()

    def abandon(self) -> None:
        """Close the connections of other threads, whose loops are gone."""
        for driver in list(self._drivers.values())[1:]:
            driver.abandon()


def _isolation(request: pytest.FixtureRequest) -> str:
    marker = request.node.get_closest_marker("xjobs")
    asked = marker.kwargs.get("isolation") if marker is not None else None
    if asked not in (None, "delete", "database"):
        raise pytest.UsageError(
            f"{request.node.nodeid}: the xjobs marker says isolation={asked!r}: name delete or database"
        )
    return asked or request.config.stash[OPTIONS].isolation.value


def _end_leaked_transactions(place: Place, earlier: Earlier) -> None:
    """End transactions that the test left open: what they hold would land in the next test.

    Those that were open before it stay: whoever holds them open around tests, as Django's TestCase does, ends them.
    """
    from pytest_xjobs.leaks import leaked_transactions, terminate

    leaks = leaked_transactions(place.control, earlier)
    deadline = seconds() + _GONE_WITHIN
    while leaks and seconds() < deadline:
        # A connection that was closed a moment ago may still be listed: its backend ends by itself.
        time.sleep(_GONE_WITHIN / 20)
        leaks = leaked_transactions(place.control, earlier)
    if leaks:
        terminate(place.control, leaks)
        listed = "".join(f"\n  {leak}" for leak in leaks)
        warnings.warn(
            XjobsWarning(f"the test left transactions open, which have been ended; commit or roll back:{listed}"),
            stacklevel=2,
        )

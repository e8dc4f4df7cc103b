"""One test, every driver: memory, blocking Postgres and async Postgres.

A conformance test is an `async def` over `queue`, an AsyncQueue. Its driver may be the blocking one, whose coroutines
never suspend. Time is moved by `clock`, on all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_xjobs.clock import Clock, set_time
from pytest_xjobs.runtime import Runtime
from xjobs import AsyncQueue, registry
from xjobs.drivers.async_postgres import AsyncPostgresDriver
from xjobs.drivers.base import Driver
from xjobs.drivers.memory import MemoryDriver
from xjobs.drivers.postgres import PostgresDriver
from xjobs.in_use import TestUse
from xjobs.queue import Drivers

DRIVERS = ("memory", "blocking", "async")
_names = itertools.count()


@dataclass
class Store:
    """One store under test: `driver` on it, and `another()` for a second session."""

    driver: Driver
    another: Callable[[], Driver]


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock()
    yield clock
    clock.close()


@pytest.fixture(params=DRIVERS)
def store(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Store]:
    with registry.scope():
        if request.param == "memory":
            memory = MemoryDriver(clock=lambda: clock.now)
            yield Store(memory, lambda: memory)
        else:
            yield from _postgres(request.getfixturevalue("run"), clock, request.param)


def _postgres(run: Runtime, clock: Clock, kind: str) -> Iterator[Store]:
    place = run.shared()
    place.database.reset(place.control)
    clock.subscribe(lambda state: set_time(place.control, state))
    opened: list[Any] = []

    def open_driver() -> Driver:
        make: Any = PostgresDriver if kind == "blocking" else AsyncPostgresDriver
        opened.append(make(place.database.dsn))
        return opened[-1]

    yield Store(place.blocking if kind == "blocking" else open_driver(), open_driver)
    clock.close()
    for driver in opened:
        if isinstance(driver, AsyncPostgresDriver):
            driver.abandon()
        else:
            driver.connection().close()


@pytest.fixture
def driver(store: Store) -> Driver:
    return store.driver


@pytest.fixture
def queue(driver: Driver) -> Iterator[AsyncQueue]:
    """The queue under test; handles enqueue to it by `aenqueue`."""
    source = Drivers(awaiting=driver)
    with TestUse(source):
        yield AsyncQueue(source)


@pytest.fixture
def second(store: Store) -> AsyncQueue:
    """A second session on the same store."""
    return AsyncQueue(Drivers(awaiting=store.another()))


@pytest.fixture
def worker_id() -> str:
    return f"worker-{next(_names)}"

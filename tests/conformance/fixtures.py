"""The fixtures of tests that run on every driver, for the conftest files that want them."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import xjobs
from conformance.stores import MemoryStore, PostgresStore, Store, Tables, queue_on
from pytest_xjobs.clock import Clock, set_time
from pytest_xjobs.drain import on_loop
from xjobs import AsyncQueue, registry
from xjobs.in_use import TestUse
from xjobs.operations import drain as draining
from xjobs.operations.drain import DrainSetup
from xjobs.queue import Drivers

if TYPE_CHECKING:
    from pytest_xjobs.runtime import Runtime

DRIVERS = ("memory", "blocking", "async")
_names = itertools.count()

Work = xjobs.JobHandle[[int], [int], None]
Drain = Callable[..., Awaitable[xjobs.DrainReport]]


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests declare jobs of any name: each has the registry to itself."""
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(registry, "_cached", None)


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock()
    yield clock
    clock.close()


@pytest.fixture(params=DRIVERS)
def store(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore(lambda: clock.now)
    else:
        yield from postgres_store(request.getfixturevalue("run"), clock, request.param)


@pytest.fixture(params=DRIVERS[1:])
def postgres(request: pytest.FixtureRequest, clock: Clock, run: Runtime) -> Iterator[PostgresStore]:
    """What only Postgres has: for tests of the caller's connection and of the server's own behaviour."""
    yield from postgres_store(run, clock, request.param)


def postgres_store(run: Runtime, clock: Clock, kind: str) -> Iterator[PostgresStore]:
    place = run.shared()
    place.database.reset(place.control)
    clock.subscribe(lambda state: set_time(place.control, state))
    store = PostgresStore(kind, place.database.dsn, place.control, place.blocking)
    yield store
    clock.close()
    store.close()


@pytest.fixture
def tables(store: Store) -> Tables:
    return store.tables


@pytest.fixture
def queue(store: Store) -> Iterator[AsyncQueue]:
    """The queue under test; handles enqueue to it by `aenqueue`."""
    with TestUse(Drivers(awaiting=store.driver)):
        yield queue_on(store.driver)


@pytest.fixture
def second(store: Store) -> AsyncQueue:
    """A second session on the same store."""
    return queue_on(store.another())


@pytest.fixture
def worker_id() -> str:
    return f"worker-{next(_names)}"


@pytest.fixture
def work(store: Store) -> Work:
    """A job whose key is its one argument."""

    @xjobs.job(key="{n}")
    def work(n: int) -> None: ...

    return work


@pytest.fixture
def drain_setup(store: Store, clock: Clock, worker_id: str) -> DrainSetup:
    return DrainSetup(
        call=on_loop,
        clock=lambda: clock.now,
        random=Random(7),
        worker_id=worker_id,
        queues={"default"},
        running=[],
        bodies=lambda handle: store.driver if handle.is_async else store.blocking,
        move=clock.move_to,
    )


@pytest.fixture
def drain_of(clock: Clock, worker_id: str) -> Callable[[AsyncQueue], Drain]:
    """A drain of a queue that a test has made; its bodies are `async def`."""

    def drain_of(queue: AsyncQueue) -> Drain:
        setup = DrainSetup(
            call=on_loop,
            clock=lambda: clock.now,
            random=Random(7),
            worker_id=worker_id,
            queues={"default"},
            running=[],
            move=clock.move_to,
        )

        def drain(**arguments: Any) -> Awaitable[xjobs.DrainReport]:
            return draining.drain(queue.driver, setup, **arguments)

        return drain

    return drain_of


@pytest.fixture
def drain(queue: AsyncQueue, drain_setup: DrainSetup) -> Drain:
    """Drain the queue under test; the arguments are those of `operations.drain.drain`."""

    def drain(**arguments: Any) -> Awaitable[xjobs.DrainReport]:
        return draining.drain(queue.driver, drain_setup, **arguments)

    return drain

"""Publishing on the caller's connection: the event comes with the commit, whatever the isolation, and never without."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel

import xjobs
from conformance.fixtures import Drain, postgres_store
from conformance.stores import queue_on
from pytest_xjobs.clock import Clock
from pytest_xjobs.runtime import Runtime
from xjobs.drivers.memory import MemoryDriver
from xjobs.in_use import TestUse
from xjobs.queue import Drivers

LEVELS = [IsolationLevel.READ_COMMITTED, IsolationLevel.REPEATABLE_READ]


@pytest.fixture(params=["blocking", "async", "memory"])
def published_to(request: pytest.FixtureRequest, clock: Clock, run: Runtime) -> Any:
    """A Postgres database to have connections to, and a queue: on it, or in memory."""
    for store in postgres_store(run, clock, "async" if request.param == "async" else "blocking"):
        driver: Any = store.driver
        if request.param == "memory":
            driver = MemoryDriver(clock=lambda: clock.now)
            store.blocking = driver
        with TestUse(Drivers(awaiting=driver, blocking=None if request.param == "async" else driver)):
            yield request.param, store.dsn, queue_on(driver)


@pytest.fixture
def queue(published_to: Any) -> xjobs.AsyncQueue:
    return published_to[2]  # type: ignore[no-any-return]


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_wait_finds_what_was_committed_after_its_first_look(
    published_to: Any, queue: xjobs.AsyncQueue, clock: Clock, drain_of: Any, level: IsolationLevel, end: str
) -> None:
    kind, dsn, _ = published_to
    got: list[Any] = []

    @xjobs.job(key=xjobs.NO_KEY)
    async def waits(ctx: xjobs.AsyncContext) -> None:
        got.append(await ctx.step.wait_for_event("w", "paid", match="7", timeout=timedelta(hours=1)))

    drain: Drain = drain_of(queue)
    clock.freeze()
    await waits.aenqueue()
    clock.advance(1)
    if kind == "async":
        connection: Any = await psycopg.AsyncConnection.connect(dsn)
        await connection.set_isolation_level(level)
        await connection.execute("select 1")  # its snapshot, in REPEATABLE READ, is from before the wait
        await drain()
        event = await xjobs.apublish("paid", {"n": 1}, correlation_key="7", connection=connection)
        await drain()
        await getattr(connection, end)()
        await connection.close()
    else:
        connection = psycopg.connect(dsn)
        connection.isolation_level = level
        connection.execute("select 1")
        await drain()
        event = xjobs.publish("paid", {"n": 1}, correlation_key="7", connection=connection)
        await drain()
        getattr(connection, end)()
        connection.close()
    assert got == []
    await drain()
    assert got == ([event] if end == "commit" else [])
    if end == "rollback":
        await drain(advance=True)
        assert got == [None]


async def test_an_aborted_transaction_is_refused(published_to: Any, queue: xjobs.AsyncQueue) -> None:
    kind, dsn, _ = published_to
    if kind == "async":
        awaiting = await psycopg.AsyncConnection.connect(dsn)
        with pytest.raises(psycopg.Error):
            await awaiting.execute("select 1/0")
        with pytest.raises(xjobs.TransactionAborted):
            await xjobs.apublish("paid", connection=awaiting)
        await awaiting.close()
    else:
        with psycopg.connect(dsn) as connection:
            with pytest.raises(psycopg.Error):
                connection.execute("select 1/0")
            with pytest.raises(xjobs.TransactionAborted):
                xjobs.publish("paid", connection=connection)
            connection.rollback()
    assert await queue.events() == []


@pytest.mark.parametrize("published_to", ["blocking", "async"], indirect=True)
async def test_workers_are_told_its_name_at_the_commit_when_a_run_waits_for_it(
    published_to: Any, queue: xjobs.AsyncQueue, drain_of: Any
) -> None:
    _, dsn, _ = published_to

    @xjobs.job(key=xjobs.NO_KEY)
    async def waits(ctx: xjobs.AsyncContext) -> None:
        await ctx.step.wait_for_event("w", "paid")

    await waits.aenqueue()
    await drain_of(queue)()
    with psycopg.connect(dsn, autocommit=True) as listener:
        listener.execute("listen x_events_wake")
        await queue.publish("nobody waits for this")
        await queue.publish("paid")
        (notice,) = listener.notifies(timeout=5, stop_after=1)
        assert notice.payload == "paid"
        assert list(listener.notifies(timeout=0)) == []

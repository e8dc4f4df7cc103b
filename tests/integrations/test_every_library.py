"""Enqueueing inside a transaction on Postgres, by every library, with the queue in that database and in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from app_transactions import LIBRARIES, App, run_in, settled

import xjobs
from pytest_xjobs.queue import XjobsQueue
from pytest_xjobs.runtime import Runtime

Work = xjobs.JobHandle[Any, Any, Any]
Run = Callable[[Callable[[App], Awaitable[None]]], None]


@pytest.fixture(params=["memory", "pg"], autouse=True)
def xjobs_backend(request: pytest.FixtureRequest) -> str:
    """Both backends, whatever the run was asked for."""
    return str(request.param)


@pytest.fixture(params=list(LIBRARIES))
def within(request: pytest.FixtureRequest, run: Runtime) -> Run:
    """Runs a scenario in a transaction of the library."""
    return partial(run_in, request.param, run.shared().database.dsn)


@pytest.fixture
def work() -> Work:
    @xjobs.job(key="work:{n}")
    def work(n: int) -> None: ...

    return work


def queued(queue: XjobsQueue) -> list[int]:
    return sorted(row.input["n"] for row in queue.jobs())


async def fails(app: App, statement: str = "select 1/0") -> None:
    with pytest.raises(Exception, match="division by zero"):
        await app.execute(statement)


def test_the_commit_of_a_failed_transaction_rolls_back(xjobs_queue: XjobsQueue, within: Run, work: Work) -> None:
    """Postgres answers it with ROLLBACK and no error: memory had the job, the database nothing."""

    async def scenario(app: App) -> None:
        await app.enqueue(work, 1)
        await fails(app)
        await app.commit()
        assert queued(xjobs_queue) == []
        assert not (await app.enqueue(work, 1)).deduped
        await app.commit()
        assert queued(xjobs_queue) == [1]

    within(scenario)


def test_a_failed_transaction_is_refused(xjobs_queue: XjobsQueue, within: Run, work: Work) -> None:
    async def scenario(app: App) -> None:
        await fails(app)
        with pytest.raises(xjobs.TransactionAborted):
            await app.enqueue(work, 1)
        await app.rollback()
        await app.enqueue(work, 2)
        await fails(app)
        with pytest.raises(xjobs.TransactionAborted):
            await app.enqueue(work, 3)
        await app.rollback()

    within(scenario)
    assert queued(xjobs_queue) == []


def test_savepoints_that_are_sent_as_text(xjobs_queue: XjobsQueue, within: Run, work: Work) -> None:
    async def scenario(app: App) -> None:
        await app.enqueue(work, 1)
        await app.execute("savepoint a")
        await app.enqueue(work, 2)
        await app.execute("rollback to a")
        assert not (await app.enqueue(work, 2)).deduped, "the key went with the savepoint"
        await fails(app)
        await app.execute("rollback to a")
        await app.enqueue(work, 3)
        await app.commit()

    within(scenario)
    assert queued(xjobs_queue) == [1, 3]


def test_an_end_that_is_sent_as_text(xjobs_queue: XjobsQueue, within: Run, work: Work) -> None:
    async def scenario(app: App) -> None:
        await app.enqueue(work, 1)
        await app.execute("rollback")
        assert queued(xjobs_queue) == []
        await app.enqueue(work, 2)
        await app.execute("commit")
        assert queued(xjobs_queue) == [2]
        await app.enqueue(work, 3)
        await app.rollback()

    within(scenario)
    assert queued(xjobs_queue) == [2]


def test_an_end_on_the_connection_underneath(xjobs_queue: XjobsQueue, within: Run, work: Work) -> None:
    async def scenario(app: App) -> None:
        await app.enqueue(work, 1)
        await settled(app.raw().rollback())
        await app.commit()
        assert queued(xjobs_queue) == []
        await app.enqueue(work, 2)
        await settled(app.raw().commit())
        assert queued(xjobs_queue) == [2]

    within(scenario)


def test_a_read_only_transaction_is_refused(xjobs_queue: XjobsQueue, within: Run, work: Work) -> None:
    """In memory it was not, and on Postgres the error was Postgres's own."""

    async def scenario(app: App) -> None:
        await app.execute("set transaction read only")
        with pytest.raises(xjobs.ConnectionUnsupported, match="is read-only"):
            await app.enqueue(work, 1)
        with pytest.raises(xjobs.TransactionAborted):
            await app.enqueue(work, 1)
        await app.rollback()
        await app.enqueue(work, 2)
        await app.execute("set transaction read only")
        with pytest.raises(xjobs.ConnectionUnsupported, match="is read-only"):
            await app.enqueue(work, 3)
        await app.rollback()
        await app.enqueue(work, 4)
        await app.commit()

    within(scenario)
    assert queued(xjobs_queue) == [4]


@pytest.mark.parametrize("xjobs_backend", ["memory"], indirect=True)
def test_nothing_stays_connected_when_the_app_has_closed(
    xjobs_queue: XjobsQueue, within: Run, run: Runtime, work: Work
) -> None:
    """A database to which something is connected cannot be dropped, as Django does after its tests."""

    async def scenario(app: App) -> None:
        await app.enqueue(work, 1)
        await app.commit()
        await app.enqueue(work, 2)

    within(scenario)
    control = run.shared().control
    watching = "select count(*) from pg_stat_activity where datname = current_database() and application_name = %s"
    # The server takes a moment to end a session.
    assert any(control.execute(watching, ["xjobs follow"]).fetchone() == (0,) for _ in range(10_000))

"""What a test's queue has a say in: connections that callers give, and statements of other threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import freezegun
import psycopg
import pytest
import time_machine
from inner_run import Inner
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import xjobs
from pytest_xjobs import XjobsQueue

THEN = datetime(2031, 1, 1, tzinfo=UTC)
LATER = datetime(2031, 1, 2, tzinfo=UTC)
FREEZES: dict[str, Callable[[datetime], Any]] = {
    "freezegun": lambda at: freezegun.freeze_time(at, real_asyncio=True),
    "time-machine": lambda at: time_machine.travel(at, tick=False),
}
Work = xjobs.JobHandle[Any, Any, Any]


@pytest.fixture
def work() -> Work:
    @xjobs.job(key=xjobs.NO_KEY)
    def work(n: int) -> None: ...

    return work


@pytest.fixture(params=FREEZES)
def freeze(request: pytest.FixtureRequest, xjobs_queue: XjobsQueue) -> Iterator[None]:
    """A freeze that the test makes itself, of which the queue is told nothing."""
    with FREEZES[request.param](THEN):
        yield


def url_of(queue: XjobsQueue, sqlite: str) -> str:
    return (queue.dsn or f"{sqlite}://").replace("postgresql:", "postgresql+psycopg:")


def check(queue: XjobsQueue) -> None:
    """It is as old as the freeze, and one with a delay is not due."""
    with FREEZES["freezegun"](THEN):
        assert [row.created_at for row in queue.jobs()] == [THEN] * 2
        assert len(queue.drain().runs) == 1


def enqueue(work: Work, connection: Any) -> None:
    work.using(connection=connection).enqueue(n=1)
    work.using(connection=connection, delay=60).enqueue(n=2)


async def aenqueue(work: Work, connection: Any) -> None:
    await work.using(connection=connection).aenqueue(n=1)
    await work.using(connection=connection, delay=60).aenqueue(n=2)


@pytest.mark.usefixtures("freeze")
def test_a_freeze_is_followed_on_a_session(xjobs_queue: XjobsQueue, work: Work) -> None:
    engine = create_engine(url_of(xjobs_queue, "sqlite"))
    with Session(engine) as session:
        enqueue(work, session)
        session.commit()
    engine.dispose()
    check(xjobs_queue)


@pytest.mark.usefixtures("freeze")
def test_a_freeze_is_followed_on_an_async_session(xjobs_queue: XjobsQueue, work: Work) -> None:
    async def main() -> None:
        engine = create_async_engine(url_of(xjobs_queue, "sqlite+aiosqlite"))
        async with AsyncSession(engine) as session:
            await aenqueue(work, session)
            await session.commit()
        await engine.dispose()

    asyncio.run(main())
    check(xjobs_queue)


@pytest.mark.usefixtures("freeze")
def test_a_freeze_is_followed_by_awaits_in_other_threads(xjobs_queue: XjobsQueue, work: Work) -> None:
    thread = threading.Thread(target=lambda: asyncio.run(aenqueue(work, None)))
    thread.start()
    thread.join()
    check(xjobs_queue)


@pytest.mark.parametrize("xjobs_environment", ["pg"], indirect=True)
def test_events_that_are_published_on_a_connection_follow_too(xjobs_queue: XjobsQueue) -> None:
    assert xjobs_queue.dsn is not None
    with psycopg.connect(xjobs_queue.dsn) as connection, FREEZES["freezegun"](THEN):
        assert xjobs.publish("paid", connection=connection).published_at == THEN
        connection.commit()
        with FREEZES["freezegun"](LATER):
            assert xjobs_queue.publish("paid", connection=connection).published_at == LATER


def test_a_connection_to_another_database_is_refused(inner: Inner) -> None:
    inner.file(
        """
        import psycopg, pytest, xjobs
        from pytest_postgresql import factories

        postgresql = factories.postgresql("xjobs_server")

        @xjobs.job(key=xjobs.NO_KEY)
        def work(): ...

        def test_blocking(xjobs_queue, postgresql, xjobs_session_dsn):
            other = postgresql.info.dbname
            with pytest.raises(xjobs.ConnectionUnsupported) as refused:
                work.using(connection=postgresql).enqueue()
            own = psycopg.conninfo.conninfo_to_dict(xjobs_queue.dsn)["dbname"]
            assert f"dbname={other} " in str(refused.value) and f"dbname={own} " in str(refused.value)
            assert "connect to xjobs_dsn" in str(refused.value)
            with pytest.raises(xjobs.ConnectionUnsupported):
                xjobs.publish("paid", connection=postgresql)

        async def test_async(xjobs_queue, postgresql):
            info = postgresql.info
            async with await psycopg.AsyncConnection.connect(info.dsn, password=info.password) as connection:
                with pytest.raises(xjobs.ConnectionUnsupported):
                    await work.using(connection=connection).aenqueue()

        @pytest.mark.xjobs(isolation="database")
        def test_a_database_of_its_own(xjobs_queue, xjobs_dsn, xjobs_session_dsn):
            with psycopg.connect(xjobs_session_dsn) as connection:
                with pytest.raises(xjobs.ConnectionUnsupported):
                    work.using(connection=connection).enqueue()
            with psycopg.connect(xjobs_dsn) as connection:
                work.using(connection=connection).enqueue()
            xjobs_queue.assert_enqueued(work)
        """
    )
    inner.run(inner.pg).assert_outcomes(passed=3)

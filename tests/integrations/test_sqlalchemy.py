"""Enqueueing inside a SQLAlchemy transaction: on Postgres on the connection itself, in memory by following it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import xjobs
from pytest_xjobs.queue import XjobsQueue
from pytest_xjobs.runtime import Runtime


@pytest.fixture
def url(request: pytest.FixtureRequest, xjobs_backend: str, tmp_path: Path) -> str:
    if xjobs_backend == "memory":
        return f"sqlite:///{tmp_path}/app.db"
    dsn: str = request.getfixturevalue("xjobs_dsn")
    return dsn.replace("postgresql://", "postgresql+psycopg://")


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = create_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture
def work() -> xjobs.JobHandle[Any, Any, Any]:
    @xjobs.job(key="work:{n}")
    def work(n: int) -> None: ...

    return work


Work = xjobs.JobHandle[Any, Any, Any]


@pytest.fixture(params=["memory", "pg"], autouse=True)
def xjobs_backend(request: pytest.FixtureRequest) -> str:
    """Both backends, whatever the run was asked for."""
    return str(request.param)


def test_a_job_of_a_session_appears_with_the_commit(xjobs_queue: XjobsQueue, engine: Engine, work: Work) -> None:
    with Session(engine) as session:
        made = work.using(connection=session).enqueue(n=1)
        xjobs_queue.assert_not_enqueued(work)
        session.commit()
        assert xjobs_queue.assert_enqueued(work.call(n=1)).id == made.id


def test_a_job_of_a_session_vanishes_with_the_rollback(xjobs_queue: XjobsQueue, engine: Engine, work: Work) -> None:
    with Session(engine) as session:
        work.using(connection=session).enqueue(n=1)
        session.rollback()
        xjobs_queue.assert_not_enqueued(work)
        # The session goes on with another transaction, which is followed anew.
        work.using(connection=session).enqueue(n=2)
        session.commit()
    assert xjobs_queue.assert_enqueued(work).input == {"n": 2}


def test_a_session_that_is_closed_rolls_its_jobs_back(xjobs_queue: XjobsQueue, engine: Engine, work: Work) -> None:
    with Session(engine) as session:
        work.using(connection=session).enqueue(n=1)
    xjobs_queue.assert_not_enqueued(work)


def test_only_the_jobs_of_a_rolled_back_savepoint_vanish(xjobs_queue: XjobsQueue, engine: Engine, work: Work) -> None:
    with Session(engine) as session:
        work.using(connection=session).enqueue(n=1)
        with session.begin_nested():
            work.using(connection=session).enqueue(n=2)
        inner = session.begin_nested()
        work.using(connection=session).enqueue(n=3)
        inner.rollback()
        work.using(connection=session).enqueue(n=4)
        session.commit()
    assert [row.input["n"] for row in xjobs_queue.assert_enqueued(work, count=3)] == [1, 2, 4]


def test_a_key_freed_by_a_savepoint_rollback_can_be_taken_again(
    xjobs_queue: XjobsQueue, engine: Engine, work: Work
) -> None:
    with Session(engine) as session:
        inner = session.begin_nested()
        first = work.using(connection=session).enqueue(n=1)
        inner.rollback()
        again = work.using(connection=session).enqueue(n=1)
        assert (again.deduped, again.id != first.id) == (False, True)
        session.commit()
    assert xjobs_queue.assert_enqueued(work).id == again.id


def test_a_duplicate_inside_one_transaction_is_answered(xjobs_queue: XjobsQueue, engine: Engine, work: Work) -> None:
    with Session(engine) as session:
        first = work.using(connection=session).enqueue(n=1)
        assert work.using(connection=session).enqueue(n=1) == (first.id, first.run_id, True)
        session.commit()
    xjobs_queue.assert_enqueued(work, count=1)


def test_a_core_connection_and_a_scoped_session(xjobs_queue: XjobsQueue, engine: Engine, work: Work) -> None:
    with engine.begin() as connection:
        assert isinstance(connection, Connection)
        work.using(connection=connection).enqueue(n=1)
    session = scoped_session(sessionmaker(engine))
    work.using(connection=session).enqueue(n=2)
    session.commit()
    session.remove()
    xjobs_queue.assert_enqueued(work, count=2)


def test_a_two_phase_transaction_is_refused(xjobs_queue: XjobsQueue, run: Runtime, work: Work) -> None:
    """Postgres prepares none that has notified: it failed at its end, unless nobody had to be woken."""
    engine = create_engine(run.shared().database.dsn.replace("postgresql://", "postgresql+psycopg://"))
    refused = pytest.raises(xjobs.ConnectionUnsupported, match="two-phase")
    with closing(engine.connect()) as connection:
        transaction = connection.begin_twophase()
        with refused:
            work.using(connection=connection).enqueue(n=1)
        transaction.commit()
        with connection.begin():
            work.using(connection=connection).enqueue(n=2)
    with Session(engine, twophase=True) as session:
        with refused:
            work.using(connection=session).enqueue(n=3)
        session.rollback()
    engine.dispose()
    assert xjobs_queue.assert_enqueued(work).input == {"n": 2}


def test_many_jobs_in_one_transaction(xjobs_queue: XjobsQueue, engine: Engine, work: Work) -> None:
    with Session(engine) as session:
        xjobs.enqueue_many([work.call(n=n) for n in range(5)], connection=session)
        xjobs_queue.assert_not_enqueued(work)
        session.commit()
    xjobs_queue.assert_enqueued(work, count=5)


def test_jobs_and_rows_share_their_fate(xjobs_queue: XjobsQueue, engine: Engine, work: Work) -> None:
    with engine.begin() as connection:
        connection.execute(text("create table if not exists app_rows (n int primary key)"))
        connection.execute(text("delete from app_rows"))
        connection.execute(text("insert into app_rows values (1)"))
    with Session(engine) as session:
        work.using(connection=session).enqueue(n=1)
        with pytest.raises(Exception, match=r"(?i)unique"):
            session.execute(text("insert into app_rows values (1)"))
        session.rollback()
    xjobs_queue.assert_not_enqueued(work)


def test_the_body_runs_only_after_the_commit(xjobs_queue: XjobsQueue, engine: Engine, work: Work) -> None:
    with Session(engine) as session:
        work.using(connection=session).enqueue(n=1)
        assert xjobs_queue.drain().runs == ()
        session.commit()
    assert len(xjobs_queue.drain().runs) == 1


async def test_an_async_session(xjobs_queue: XjobsQueue, url: str, xjobs_backend: str, work: Work) -> None:
    if xjobs_backend == "memory":
        url = url.replace("sqlite://", "sqlite+aiosqlite://")
    engine = create_async_engine(url)
    async with AsyncSession(engine) as session:
        await work.using(connection=session).aenqueue(n=1)
        await session.rollback()
        await work.using(connection=session).aenqueue(n=2)
        xjobs_queue.assert_not_enqueued(work)
        await session.commit()
    await engine.dispose()
    assert xjobs_queue.assert_enqueued(work).input == {"n": 2}


@pytest.fixture
async def async_engine(url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(url.replace("sqlite://", "sqlite+aiosqlite://"))
    yield engine
    await engine.dispose()


async def test_blocking_code_that_sqlalchemy_runs_on_an_async_session(
    xjobs_queue: XjobsQueue, async_engine: AsyncEngine, work: Work
) -> None:
    """On Postgres its statement was sent and not awaited, which broke the caller's connection."""

    def enqueue(given: Session | Connection, n: int) -> None:
        assert not work.using(connection=given).enqueue(n=n).deduped
        assert work.using(connection=given).enqueue(n=n).deduped
        xjobs.enqueue_many([work.call(n=n + 1)], connection=given)

    async with AsyncSession(async_engine) as session:
        await session.run_sync(enqueue, 10)
        await session.rollback()
        await session.run_sync(enqueue, 20)
        event.listen(session.sync_session, "before_commit", lambda given: enqueue(given, 30))
        xjobs_queue.assert_not_enqueued(work)
        await session.commit()
    async with async_engine.begin() as connection:
        await connection.run_sync(enqueue, 40)
    assert sorted(row.input["n"] for row in xjobs_queue.jobs()) == [20, 21, 30, 31, 40, 41]


async def test_what_sqlalchemy_hides_behind_an_async_session_is_refused_where_nothing_runs_it(
    xjobs_queue: XjobsQueue, async_engine: AsyncEngine, work: Work
) -> None:
    async with AsyncSession(async_engine) as session, async_engine.connect() as connection:
        await session.execute(text("select 1"))
        for hidden in (session.sync_session, connection.sync_connection):
            with pytest.raises(xjobs.ConnectionUnsupported, match=r"await aenqueue\(\) with the AsyncSession"):
                await work.using(connection=hidden).aenqueue(n=1)
            with pytest.raises(xjobs.ConnectionUnsupported, match="inside of run_sync"):
                work.using(connection=hidden).enqueue(n=1)
        assert (await session.execute(text("select 1"))).scalar() == 1, "nothing was sent"
        await work.using(connection=session).aenqueue(n=2)
        await session.commit()
    assert xjobs_queue.assert_enqueued(work).input == {"n": 2}


@pytest.mark.parametrize("steps", range(6))
async def test_a_commit_that_is_cancelled(
    xjobs_queue: XjobsQueue, async_engine: AsyncEngine, work: Work, steps: int
) -> None:
    """aiosqlite carries it out all the same: in memory the job was lost beside the row."""
    async with async_engine.begin() as connection:
        await connection.execute(text("drop table if exists app_cancelled"))
        await connection.execute(text("create table app_cancelled (n int)"))
    async with AsyncSession(async_engine) as session:
        await session.execute(text("insert into app_cancelled values (1)"))
        await work.using(connection=session).aenqueue(n=1)
        committing = asyncio.create_task(session.commit())
        for _ in range(steps):
            await asyncio.sleep(0)
        committing.cancel()
        await asyncio.wait([committing])
    async with async_engine.begin() as connection:
        # Waits for what is under way.
        await connection.execute(text("insert into app_cancelled values (2)"))
        rows = (await connection.execute(text("select n from app_cancelled where n = 1"))).all()
        await connection.execute(text("drop table app_cancelled"))
    assert len(xjobs_queue.jobs()) == len(rows)


def test_an_async_session_in_a_blocking_call_is_refused(xjobs_queue: XjobsQueue, url: str, work: Work) -> None:
    session = AsyncSession(create_async_engine(url.replace("sqlite://", "sqlite+aiosqlite://")))
    with pytest.raises(xjobs.ConnectionUnsupported, match="aenqueue"):
        work.using(connection=session).enqueue(n=1)


@pytest.mark.parametrize("xjobs_backend", ["pg"], indirect=True)  # in memory, sessions on every database are followed
def test_a_session_on_another_database_library_is_refused(xjobs_queue: XjobsQueue, tmp_path: Path, work: Work) -> None:
    other = create_engine(f"sqlite:///{tmp_path}/other.db")
    with Session(other) as session, pytest.raises(xjobs.ConnectionUnsupported, match=r"postgresql\+psycopg"):
        work.using(connection=session).enqueue(n=1)
    other.dispose()


def test_an_unknown_connection_is_refused_by_name(xjobs_queue: XjobsQueue, work: Work) -> None:
    with (
        closing(sqlite3.connect(":memory:")) as connection,
        pytest.raises(xjobs.ConnectionUnsupported, match=r"sqlite3\.Connection"),
    ):
        work.using(connection=connection).enqueue(n=1)
    xjobs_queue.assert_not_enqueued(work)


@pytest.mark.parametrize("level", ["of the engine", "of the connection"])
def test_where_each_statement_commits_so_does_the_enqueue(
    xjobs_queue: XjobsQueue, work: xjobs.JobHandle[Any, Any, Any], url: str, level: str
) -> None:
    """In memory it waited for a commit that never came, and a rollback took it back."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT") if level == "of the engine" else create_engine(url)
    with engine.connect() as connection:
        if level == "of the connection":
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        work.using(connection=connection).enqueue(n=1)
        xjobs_queue.assert_enqueued(work.call(n=1))
        connection.rollback()
    xjobs_queue.assert_enqueued(work.call(n=1))
    engine.dispose()

"""Enqueueing inside a psycopg transaction: on Postgres on the connection itself, in memory by following it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

import xjobs
from pytest_xjobs.queue import XjobsQueue
from pytest_xjobs.runtime import Runtime

Work = xjobs.JobHandle[Any, Any, Any]


@pytest.fixture(params=["memory", "pg"], autouse=True)
def xjobs_backend(request: pytest.FixtureRequest) -> str:
    """Both backends, whatever the run was asked for."""
    return str(request.param)


@pytest.fixture
def dsn(run: Runtime) -> str:
    """A database for the app's connection; in memory the queue is not in it."""
    return run.shared().database.dsn


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn) as connection:
        yield connection


@pytest.fixture
def sever(run: Runtime) -> Callable[..., None]:
    """Ends the sessions of some applications on the server."""

    def sever(*applications: str) -> None:
        run.shared().control.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where datname = current_database() and application_name = any(%s)",
            [list(applications)],
        )

    return sever


@pytest.fixture
def work() -> Work:
    @xjobs.job(key="work:{n}")
    def work(n: int) -> None: ...

    return work


def queued(queue: XjobsQueue) -> list[int]:
    return sorted(row.input["n"] for row in queue.jobs())


def test_commit_and_rollback(xjobs_queue: XjobsQueue, connection: psycopg.Connection[Any], work: Work) -> None:
    work.using(connection=connection).enqueue(n=1)
    assert queued(xjobs_queue) == []
    connection.commit()
    assert queued(xjobs_queue) == [1]
    work.using(connection=connection).enqueue(n=2)
    connection.rollback()
    assert queued(xjobs_queue) == [1]


def test_savepoints(xjobs_queue: XjobsQueue, connection: psycopg.Connection[Any], work: Work) -> None:
    here = work.using(connection=connection)
    here.enqueue(n=1)
    with connection.transaction():
        here.enqueue(n=2)
    with connection.transaction(force_rollback=True):
        here.enqueue(n=3)
        here.enqueue(n=4)
    assert not here.enqueue(n=4).deduped, "the key went with the savepoint"
    with connection.transaction(force_rollback=True):
        here.enqueue(n=5)
    connection.commit()
    assert queued(xjobs_queue) == [1, 2, 4]


def test_a_key_is_shared_inside_one_transaction(
    xjobs_queue: XjobsQueue, connection: psycopg.Connection[Any], work: Work
) -> None:
    first = work.using(connection=connection).enqueue(n=1)
    assert work.using(connection=connection).enqueue(n=1) == (first.id, first.run_id, True)
    connection.commit()
    assert queued(xjobs_queue) == [1]


def test_a_connection_that_is_closed_rolls_back(xjobs_queue: XjobsQueue, dsn: str, work: Work) -> None:
    connection = psycopg.connect(dsn)
    work.using(connection=connection).enqueue(n=1)
    connection.close()
    assert queued(xjobs_queue) == []


def test_autocommit_and_a_transaction_on_it(xjobs_queue: XjobsQueue, dsn: str, work: Work) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        work.using(connection=connection).enqueue(n=1)
        assert queued(xjobs_queue) == [1]
        with connection.transaction():
            work.using(connection=connection).enqueue(n=2)
            assert queued(xjobs_queue) == [1]
        assert queued(xjobs_queue) == [1, 2]


def test_what_is_refused_does_not_touch_the_connection(
    xjobs_queue: XjobsQueue, connection: psycopg.Connection[Any], work: Work
) -> None:
    """In memory it had a transaction begun on it."""

    @xjobs.job(key="{order[id]}")
    def keyed(order: dict[str, int]) -> None: ...

    assert xjobs.enqueue_many([], connection=connection) == []
    with pytest.raises(xjobs.Error):
        keyed.using(connection=connection).enqueue(order={})
    with pytest.raises(xjobs.Invariant):
        xjobs.enqueue_many([work.using(on_conflict="error").call(n=1)], connection=connection)
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_two_connections(xjobs_queue: XjobsQueue, dsn: str, work: Work) -> None:
    with psycopg.connect(dsn) as one, psycopg.connect(dsn) as other:
        work.using(connection=one).enqueue(n=1)
        work.using(connection=other).enqueue(n=2)
        other.commit()
        assert queued(xjobs_queue) == [2]
        one.rollback()
    assert queued(xjobs_queue) == [2]


def test_a_failed_transaction_is_refused(
    xjobs_queue: XjobsQueue, connection: psycopg.Connection[Any], work: Work
) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection.execute("select 1/0")
    with pytest.raises(xjobs.TransactionAborted):
        work.using(connection=connection).enqueue(n=1)
    connection.rollback()
    work.using(connection=connection).enqueue(n=2)
    connection.commit()
    assert queued(xjobs_queue) == [2]


def test_a_pipeline(xjobs_queue: XjobsQueue, connection: psycopg.Connection[Any], work: Work) -> None:
    with connection.pipeline():
        connection.execute("select 1")
        work.using(connection=connection).enqueue(n=1)
    assert queued(xjobs_queue) == []
    connection.commit()
    assert queued(xjobs_queue) == [1]


def test_a_pipeline_in_autocommit_is_a_transaction_up_to_its_sync(
    xjobs_queue: XjobsQueue, dsn: str, work: Work
) -> None:
    """In memory the job was there at once, and stayed when a later statement failed."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        here = work.using(connection=connection)
        with connection.pipeline() as pipeline:
            here.enqueue(n=1)
            here.enqueue(n=2)
            assert queued(xjobs_queue) == []
            pipeline.sync()
            assert queued(xjobs_queue) == [1, 2]
            here.enqueue(n=3)
        assert queued(xjobs_queue) == [1, 2, 3]
        with pytest.raises(psycopg.errors.DivisionByZero), connection.pipeline():
            here.enqueue(n=4)
            connection.execute("select 1/0")
        assert queued(xjobs_queue) == [1, 2, 3]
        with connection.pipeline() as pipeline:
            with pytest.raises(psycopg.errors.DivisionByZero):
                connection.execute("select 1/0").fetchone()
            with pytest.raises(psycopg.errors.PipelineAborted):
                here.enqueue(n=5)
            pipeline.sync()
            here.enqueue(n=6)
        assert queued(xjobs_queue) == [1, 2, 3, 6]
        here.enqueue(n=7)
        assert queued(xjobs_queue) == [1, 2, 3, 6, 7]


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_connection_that_only_reads_is_refused(
    xjobs_queue: XjobsQueue, dsn: str, work: Work, autocommit: bool
) -> None:
    options = "-c default_transaction_read_only=on"
    with psycopg.connect(dsn, options=options, autocommit=autocommit) as connection:
        with pytest.raises(xjobs.ConnectionUnsupported, match="is read-only"):
            work.using(connection=connection).enqueue(n=1)
        connection.rollback()
        connection.execute("set default_transaction_read_only = off")
        connection.commit()
        work.using(connection=connection).enqueue(n=2)
        connection.commit()
        connection.read_only = True
        with connection.transaction(), pytest.raises(xjobs.ConnectionUnsupported, match="is read-only"):
            work.using(connection=connection).enqueue(n=3)
    assert queued(xjobs_queue) == [2]


def test_a_two_phase_transaction_is_refused(
    xjobs_queue: XjobsQueue, connection: psycopg.Connection[Any], work: Work
) -> None:
    connection.tpc_begin("xjobs")
    with pytest.raises(xjobs.ConnectionUnsupported, match="two-phase"):
        work.using(connection=connection).enqueue(n=1)
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
    connection.tpc_commit()
    work.using(connection=connection).enqueue(n=2)
    connection.commit()
    assert queued(xjobs_queue) == [2]


async def test_an_async_connection(xjobs_queue: XjobsQueue, dsn: str, work: Work) -> None:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await work.using(connection=connection).aenqueue(n=1)
        await connection.rollback()
        await work.using(connection=connection).aenqueue(n=2)
        assert queued(xjobs_queue) == []
        await connection.commit()
        assert queued(xjobs_queue) == [2]
        with pytest.raises(xjobs.ConnectionUnsupported, match="aenqueue"):
            work.using(connection=connection).enqueue(n=3)


async def test_tasks_on_one_async_connection_of_which_one_is_cancelled(
    xjobs_queue: XjobsQueue, dsn: str, work: Work
) -> None:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        tasks = [asyncio.create_task(work.using(connection=connection).aenqueue(n=n)) for n in range(4)]
        await asyncio.sleep(0)  # the first one has sent its statement, the others wait for it
        tasks[1].cancel()
        await asyncio.wait(tasks)
        await connection.commit()
    assert queued(xjobs_queue) == [0, 2, 3]


def test_the_queue_outlives_connections_that_break(
    xjobs_queue: XjobsQueue, dsn: str, sever: Callable[..., None], work: Work
) -> None:
    """Memory asked over a broken connection for good: each later call failed, on whatever transaction or none."""
    connection = psycopg.connect(dsn, application_name="app")
    work.using(connection=connection).enqueue(n=1)
    sever("app", "xjobs follow")
    assert queued(xjobs_queue) == []
    assert not work.enqueue(n=1).deduped
    with pytest.raises(psycopg.OperationalError):
        connection.commit()
    connection.close()
    assert queued(xjobs_queue) == [1]


@pytest.mark.parametrize("ending", ["commit", "rollback"])
@pytest.mark.parametrize("asked", [True, False], ids=["asked before the end", "not asked"])
def test_a_transaction_is_followed_when_only_the_queues_connection_broke(
    xjobs_queue: XjobsQueue,
    connection: psycopg.Connection[Any],
    sever: Callable[..., None],
    work: Work,
    ending: str,
    asked: bool,
) -> None:
    here = work.using(connection=connection)
    here.enqueue(n=1)
    with connection.transaction(force_rollback=True):
        here.enqueue(n=2)
    here.enqueue(n=3)
    sever("xjobs follow")
    if asked:
        assert queued(xjobs_queue) == []
        with connection.transaction(force_rollback=True):
            here.enqueue(n=4)
    getattr(connection, ending)()
    assert queued(xjobs_queue) == ([1, 3] if ending == "commit" else [])


@pytest.mark.parametrize("xjobs_backend", ["memory"], indirect=True)
def test_a_queue_in_memory_outlives_the_database_of_a_transaction(
    xjobs_queue: XjobsQueue, run: Runtime, work: Work
) -> None:
    place = run.own()
    with closing(psycopg.connect(place.database.dsn)) as connection:
        work.using(connection=connection).enqueue(n=1)
        run.drop(place)
        assert queued(xjobs_queue) == []
    assert not work.enqueue(n=1).deduped


def test_a_connection_on_which_text_comes_as_bytes(xjobs_queue: XjobsQueue, dsn: str, work: Work) -> None:
    with psycopg.connect(dsn, client_encoding="sql_ascii") as connection:
        work.using(connection=connection).enqueue(n=1)
        connection.rollback()
        assert queued(xjobs_queue) == []
        work.using(connection=connection).enqueue(n=2)
        connection.commit()
        assert queued(xjobs_queue) == [2]


def test_a_connection_in_another_encoding_is_refused(xjobs_queue: XjobsQueue, dsn: str, work: Work) -> None:
    with psycopg.connect(dsn, client_encoding="latin1") as connection:
        with pytest.raises(xjobs.ConnectionUnsupported, match="client_encoding is LATIN1"):
            work.using(connection=connection).enqueue(n=1)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_what_the_app_registers_with_psycopg_does_not_reach_the_queue(
    xjobs_queue: XjobsQueue, dsn: str, work: Work
) -> None:
    """In a process of its own: the registration is for all of psycopg."""
    program = f"""
import psycopg
from psycopg.types.string import TextLoader
for name in ("uuid", "timestamptz", "jsonb", "int4", "text", "interval"):
    psycopg.adapters.register_loader(name, TextLoader)
import xjobs
from xjobs.drivers.postgres import PostgresDriver

@xjobs.job(key="{{n}}")
def work(n: int) -> None: ...

queue = xjobs.Queue(PostgresDriver({dsn!r}))
made = queue.enqueue(work.call(n=1))
row = queue.job(made.id)
assert row.id == made.id and row.input == {{"n": 1}} and row.run_at.tzinfo is not None, row
"""
    subprocess.run([sys.executable, "-c", program], check=True)

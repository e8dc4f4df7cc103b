"""Enqueueing inside Django's `atomic`: on Postgres on the connection itself, in memory by following it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from app_transactions import django_on
from asgiref.sync import sync_to_async
from django.db import DatabaseError, connection as proxy, connections, transaction
from django.test import TestCase

import xjobs
from pytest_xjobs import XjobsQueue, XjobsWorkers

Work = xjobs.JobHandle[Any, Any, Any]


@pytest.fixture(params=["memory", "pg"], autouse=True)
def xjobs_backend(request: pytest.FixtureRequest) -> str:
    """Both backends, whatever the run was asked for."""
    return str(request.param)


@pytest.fixture(autouse=True)
def database(request: pytest.FixtureRequest, xjobs_backend: str, tmp_path: Path) -> Iterator[None]:
    """Django's default connection: SQLite beside a queue in memory, else the queue's own database."""
    in_memory = xjobs_backend == "memory"
    with django_on(str(tmp_path / "app.db") if in_memory else request.getfixturevalue("xjobs_dsn")):
        yield


@pytest.fixture
def work() -> Work:
    @xjobs.job(key="work:{n}")
    def work(n: int) -> None: ...

    return work


def queued(queue: XjobsQueue) -> list[int]:
    return sorted(row.input["n"] for row in queue.jobs())


def test_atomic_commits(xjobs_queue: XjobsQueue, work: Work) -> None:
    with transaction.atomic():
        work.using(connection=proxy).enqueue(n=1)
        work.using(connection=connections["default"]).enqueue(n=2)
        assert queued(xjobs_queue) == []
    assert queued(xjobs_queue) == [1, 2]


def test_atomic_rolls_back(xjobs_queue: XjobsQueue, work: Work) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        work.using(connection=proxy).enqueue(n=1)
        raise ZeroDivisionError
    assert queued(xjobs_queue) == []
    work.using(connection=proxy).enqueue(n=1)
    assert queued(xjobs_queue) == [1]


def test_a_savepoint_rolls_back(xjobs_queue: XjobsQueue, work: Work) -> None:
    with transaction.atomic():
        work.using(connection=proxy).enqueue(n=1)
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            work.using(connection=proxy).enqueue(n=2)
            work.using(connection=proxy).enqueue(n=3)
            raise ZeroDivisionError
        assert not work.using(connection=proxy).enqueue(n=3).deduped, "the key went with the savepoint"
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            work.using(connection=proxy).enqueue(n=4)
            raise ZeroDivisionError
    assert queued(xjobs_queue) == [1, 3]


def test_autocommit(xjobs_queue: XjobsQueue, work: Work) -> None:
    work.using(connection=proxy).enqueue(n=1)
    assert queued(xjobs_queue) == [1]


def test_callbacks_of_the_app_see_the_job(xjobs_queue: XjobsQueue, work: Work) -> None:
    seen: list[list[int]] = []
    with transaction.atomic():
        transaction.on_commit(lambda: seen.append(queued(xjobs_queue)))
        work.using(connection=proxy).enqueue(n=1)
        transaction.on_commit(lambda: work.enqueue(n=9))
        work.using(connection=proxy).enqueue(n=2)
    assert seen == [[1, 2]]
    assert queued(xjobs_queue) == [1, 2, 9]


def test_a_block_that_must_roll_back_is_refused(xjobs_queue: XjobsQueue, work: Work) -> None:
    with transaction.atomic():
        with pytest.raises(DatabaseError), transaction.atomic(savepoint=False):
            proxy.cursor().execute("select nonsense")
        with pytest.raises(xjobs.TransactionAborted):
            work.using(connection=proxy).enqueue(n=1)
    assert queued(xjobs_queue) == []


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_transaction_without_atomic(xjobs_queue: XjobsQueue, work: Work, ending: str) -> None:
    """In memory the job was there at once, whatever became of the transaction."""
    transaction.set_autocommit(False)
    work.using(connection=proxy).enqueue(n=1)
    assert queued(xjobs_queue) == []
    getattr(transaction, ending)()
    assert queued(xjobs_queue) == ([1] if ending == "commit" else [])
    work.using(connection=proxy).enqueue(n=2)
    transaction.rollback()
    transaction.set_autocommit(True)
    assert queued(xjobs_queue) == ([1] if ending == "commit" else [])


def test_savepoints_that_are_made_by_hand(xjobs_queue: XjobsQueue, work: Work) -> None:
    """Memory followed those of `atomic` only: the job stayed, and so did its key."""
    with transaction.atomic():
        work.using(connection=proxy).enqueue(n=1)
        first = proxy.savepoint()
        work.using(connection=proxy).enqueue(n=2)
        proxy.savepoint_rollback(first)
        assert not work.using(connection=proxy).enqueue(n=2).deduped
        proxy.savepoint_rollback(first)
        kept = proxy.savepoint()
        work.using(connection=proxy).enqueue(n=3)
        proxy.savepoint_commit(kept)
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            inner = proxy.savepoint()
            work.using(connection=proxy).enqueue(n=4)
            proxy.savepoint_commit(inner)
            raise ZeroDivisionError
    assert queued(xjobs_queue) == [1, 3]


def test_a_savepoint_older_than_the_first_enqueue(xjobs_queue: XjobsQueue, work: Work) -> None:
    with transaction.atomic():
        begin = proxy.savepoint()
        work.using(connection=proxy).enqueue(n=1)
        proxy.savepoint_rollback(begin)
    assert queued(xjobs_queue) == []


def test_callbacks_that_a_test_captures_are_the_apps_alone(xjobs_queue: XjobsQueue, work: Work) -> None:
    """A callback of the queue's own, put first, had one that was captured before run again, and was counted."""
    ran: list[str] = []
    with transaction.atomic():
        with TestCase.captureOnCommitCallbacks(execute=True) as first:
            transaction.on_commit(lambda: ran.append("first"))
        with TestCase.captureOnCommitCallbacks(execute=True) as second, transaction.atomic():
            transaction.on_commit(lambda: ran.append("second"))
            work.using(connection=proxy).enqueue(n=1)
        assert (ran, len(first), len(second)) == (["first", "second"], 1, 1)
        assert queued(xjobs_queue) == [], "the outer block may still roll back"
        transaction.set_rollback(True)
    assert queued(xjobs_queue) == []


def test_a_connection_that_is_closed_takes_its_jobs_along(xjobs_queue: XjobsQueue, work: Work) -> None:
    transaction.set_autocommit(False)
    work.using(connection=proxy).enqueue(n=1)
    proxy.close()
    assert queued(xjobs_queue) == []
    work.using(connection=proxy).enqueue(n=1)
    assert queued(xjobs_queue) == [1]


async def test_an_event_loop_is_refused(xjobs_queue: XjobsQueue, work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory it was not, and on Postgres the error was Django's own."""
    here = work.using(connection=proxy)
    with pytest.raises(xjobs.ConnectionUnsupported, match="sync_to_async"):
        await here.aenqueue(n=1)
    with pytest.raises(xjobs.ConnectionUnsupported, match="sync_to_async"):
        here.enqueue(n=1)

    def in_a_thread() -> None:
        with transaction.atomic():
            here.enqueue(n=2)
        connections.close_all()
        del connections["default"]

    await sync_to_async(in_a_thread)()
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    await here.aenqueue(n=3)
    connections.close_all()  # a task has connections of its own
    assert queued(xjobs_queue) == [2, 3]


@pytest.mark.parametrize("xjobs_backend", ["pg"], indirect=True)
def test_a_worker_has_a_connection_that_broke_replaced(
    xjobs_queue: XjobsQueue, xjobs_worker: XjobsWorkers, xjobs_dsn: str
) -> None:
    """Only requests did, so after one failover each `def` body that used the database failed until the worker ended."""
    used: list[int] = []

    @xjobs.job(key=xjobs.NO_KEY, retry=1)
    def ask(end: bool) -> None:
        connections["default"].ensure_connection()
        with proxy.cursor() as cursor:
            cursor.execute("select pg_backend_pid()")
            used.append(cursor.fetchone()[0])
        if end:
            with psycopg.connect(xjobs_dsn, autocommit=True) as other:
                other.execute("select pg_terminate_backend(%s)", [used[-1]])

    worker = xjobs_worker.start(concurrency=1)
    for end in (True, False, False):
        worker.wait_for(ask.enqueue(end=end))
    assert len(set(used)) == 3

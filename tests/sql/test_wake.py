"""Which statements wake the workers of a queue: heard by a session that listens, as a worker's does."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

import xjobs
from pytest_xjobs.clock import ClockState, set_time
from pytest_xjobs.runtime import Place, Runtime
from xjobs.drivers.postgres import PostgresDriver

SLOT = timedelta(milliseconds=250)
NOW = datetime(2024, 3, 9, 12, 0, tzinfo=UTC)  # where a slot begins
Work = xjobs.JobHandle[Any, Any, Any]
Heard = Callable[[], list[str]]


@pytest.fixture
def place(run: Runtime) -> Iterator[Place]:
    place = run.shared()
    place.database.reset(place.control)
    set_time(place.control, ClockState.frozen(NOW))
    yield place
    place.database.reset(place.control)
    set_time(place.control, ClockState())


@pytest.fixture
def queue(place: Place) -> Iterator[xjobs.Queue]:
    queue = xjobs.Queue(PostgresDriver(place.database.dsn))
    yield queue
    queue.close()


@pytest.fixture
def heard(place: Place) -> Iterator[Heard]:
    """The queues that were woken since the last call.

    A commit has sent its notifications before it answers, and a session receives them before the answer to its own next
    statement; so nothing has to be waited for.
    """
    with psycopg.connect(place.database.dsn, autocommit=True) as listener:
        notes: list[str] = []
        listener.add_notify_handler(lambda note: notes.append(note.payload))
        listener.execute("listen x_jobs_wake")

        def take() -> list[str]:
            listener.execute("select 1")
            taken = sorted(notes)
            notes.clear()
            return taken

        yield take


@pytest.fixture
def work() -> Work:
    @xjobs.job(key="work:{n}")
    def work(n: int) -> None: ...

    return work


def move(place: Place, by: timedelta) -> None:
    set_time(place.control, ClockState.frozen(NOW + by))


class Enqueue:
    """The two ways of enqueueing, each of which wakes by a statement of its own."""

    @staticmethod
    def one(queue: xjobs.Queue, *calls: xjobs.jobs.Call) -> None:
        for call in calls:
            queue.enqueue(call)

    @staticmethod
    def many(queue: xjobs.Queue, *calls: xjobs.jobs.Call) -> None:
        queue.enqueue_many(calls)


@pytest.fixture(params=["one", "many"])
def enqueue(request: pytest.FixtureRequest, queue: xjobs.Queue) -> Callable[..., None]:
    how = getattr(Enqueue, request.param)
    return lambda *calls: how(queue, *calls)


def test_once_for_each_queue_in_each_slot(place: Place, enqueue: Callable[..., None], heard: Heard, work: Work) -> None:
    mail = work.using(queue="mail")
    enqueue(work.call(n=1), mail.call(n=2), mail.call(n=3))
    assert heard() == ["default", "mail"]
    move(place, SLOT - timedelta(microseconds=1))
    enqueue(work.call(n=4), mail.call(n=5))
    assert heard() == []
    move(place, SLOT)
    enqueue(mail.call(n=6), mail.call(n=7))
    assert heard() == ["mail"]
    move(place, -SLOT)  # a clock that went back: rows of later slots do not count
    enqueue(work.call(n=8))
    assert heard() == ["default"]


@pytest.mark.parametrize(
    ("delay", "woken"),
    [
        (timedelta(seconds=1), ["default"]),
        (timedelta(seconds=1, microseconds=1), []),
        (timedelta(days=-1), ["default"]),
    ],
)
def test_only_what_is_due_within_a_second(
    enqueue: Callable[..., None], heard: Heard, work: Work, delay: timedelta, woken: list[str]
) -> None:
    enqueue(work.using(delay=delay).call(n=1))
    assert heard() == woken


def test_a_job_for_later_does_not_use_up_the_slot(enqueue: Callable[..., None], heard: Heard, work: Work) -> None:
    enqueue(work.using(delay=60).call(n=1))
    enqueue(work.call(n=2))
    assert heard() == ["default"]


def test_one_due_job_among_later_ones_is_enough(queue: xjobs.Queue, heard: Heard, work: Work) -> None:
    later = work.using(delay=60)
    queue.enqueue_many([later.call(n=1), work.call(n=2), later.call(n=3)])
    assert heard() == ["default"]


def test_nobody_for_a_job_that_is_there_already(
    place: Place, enqueue: Callable[..., None], heard: Heard, work: Work
) -> None:
    enqueue(work.call(n=1))
    assert heard() == ["default"]
    move(place, 4 * SLOT)
    enqueue(work.call(n=1))
    enqueue(work.using(id="00000000-0000-7000-8000-000000000001", key="other").call(n=2))
    assert heard() == ["default"]
    move(place, 8 * SLOT)
    enqueue(work.using(id="00000000-0000-7000-8000-000000000001").call(n=3))
    assert heard() == []


def test_with_the_commit_and_never_after_a_rollback(place: Place, queue: xjobs.Queue, heard: Heard, work: Work) -> None:
    with psycopg.connect(place.database.dsn) as connection:
        joined = work.using(connection=connection)
        queue.enqueue(joined.call(n=1))
        connection.rollback()
        assert heard() == []
        queue.enqueue(joined.call(n=1))
        queue.enqueue_many([work.using(queue="mail").call(n=2)], connection=connection)
        assert heard() == []
        connection.commit()
        assert heard() == ["default", "mail"]


def test_what_operators_make_due(place: Place, queue: xjobs.Queue, heard: Heard, work: Work) -> None:
    due, later = queue.enqueue_many([work.call(n=1), work.using(delay=60).call(n=2)])
    heard()
    queue.cancel(due.id)
    assert heard() == []
    queue.requeue(due.id)
    assert heard() == ["default"]
    queue.promote(later.id)
    assert heard() == ["default"]


def test_what_operators_make_due_in_bulk(queue: xjobs.Queue, heard: Heard, work: Work) -> None:
    later = work.using(delay=60)
    queue.enqueue_many([later.using(queue=name).call(n=n) for n, name in enumerate(["a", "a", "b"])])
    assert heard() == []
    assert queue.promote_many(state="delayed").affected == 3
    assert heard() == ["a", "b"]
    assert queue.promote_many(state="delayed").affected == 0
    assert queue.cancel_many(state="ready").affected == 3
    assert heard() == []
    assert queue.requeue_many(state="cancelled", queue="a").affected == 2
    assert heard() == ["a"]


def test_a_queue_that_is_resumed(queue: xjobs.Queue, heard: Heard) -> None:
    queue.pause_queue("mail")
    assert heard() == []
    queue.resume_queue("mail")
    assert heard() == ["mail"]
    queue.resume_queue("mail")
    assert heard() == []


def test_a_long_transaction_wakes_by_its_statement_and_not_by_its_beginning(
    place: Place, queue: xjobs.Queue, heard: Heard, work: Work
) -> None:
    """Another job of the quarter of a second in which it began was announced, and claimed, long before its commit."""
    set_time(place.control, ClockState())
    slot_of = "select date_bin('250 milliseconds', {}, 'epoch')"
    for number in itertools.count():
        with psycopg.connect(place.database.dsn) as connection:
            (began,) = connection.execute(slot_of.format("now()")).fetchone() or ()
            queue.enqueue(work.call(n=number))
            created = "(select max(created_at) from x_jobs)"
            if place.control.execute(slot_of.format(created)).fetchone() != (began,):
                continue  # a slot ended in between
            assert heard() == ["default"]
            while place.control.execute(slot_of.format("clock_timestamp()")).fetchone() == (began,):
                pass
            queue.enqueue(work.call(n=-1), connection=connection)
            connection.commit()
        assert heard() == ["default"]
        return

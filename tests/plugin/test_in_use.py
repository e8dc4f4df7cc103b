"""Which queue handles enqueue through while a test's queue is in use: that one, whatever the app does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import psycopg_pool
import pytest
from inner_run import Inner

import xjobs
from pytest_xjobs.environment import Environment
from pytest_xjobs.queue import XjobsQueue
from xjobs import NO_KEY, AsyncQueue, Queue, job

# Nothing listens there: whoever connects gets an error.
PROD = "postgresql://app:secret@127.0.0.1:1/prod?connect_timeout=1"
APP = f"""
import threading
import xjobs

queue = xjobs.Queue.connect("{PROD}")
aqueue = xjobs.AsyncQueue.connect("{PROD}")
xjobs.use(queue)
xjobs.use(aqueue)

@xjobs.job(key=xjobs.NO_KEY)
def mail(to: str): ...
"""


@pytest.fixture
def uses() -> Iterator[list[Any]]:
    """Ends the uses that a test adds."""
    added: list[Any] = []
    yield added
    for use in reversed(added):
        use.stop()


def test_an_app_that_connects_at_import_reaches_the_tests_queue(inner: Inner) -> None:
    inner.file(APP, name="app")
    inner.file(
        """
        import asyncio, threading
        import xjobs
        from app import aqueue, mail, queue

        def test_through_the_handle(xjobs_queue):
            mail.enqueue(to="a")
            xjobs.enqueue_many([mail.call(to="b")])
            xjobs_queue.assert_enqueued(mail, count=2)
            xjobs_queue.drain()

        def test_through_the_apps_own_queue(xjobs_queue, xjobs_backend):
            assert queue.backend == {"memory": "memory", "pg": "postgres"}[xjobs_backend]
            answer = queue.enqueue(mail.call(to="a"))
            assert xjobs_queue.assert_enqueued(mail).id == answer.id
            assert [row.id for row in queue.jobs()] == [answer.id]
            assert [(row.queue, row.ready) for row in queue.stats()] == [("default", 1)]
            queue.close()  # not the test's
            queue.enqueue(mail.call(to="b"))
            assert len(xjobs_queue.drain().runs) == 2

        async def test_through_its_async_queue(xjobs_queue):
            await mail.aenqueue(to="a")
            await aqueue.enqueue(mail.call(to="b"))
            await aqueue.close()
            await aqueue.enqueue_many([mail.call(to="c")])
            assert len((await xjobs_queue.adrain()).runs) == 3

        def test_in_threads(xjobs_queue):
            thread = threading.Thread(target=lambda: mail.enqueue(to="a"))
            thread.start()
            thread.join()
            xjobs_queue.assert_enqueued(mail.call(to="a"), count=1)
        """
    )
    inner.run(*inner.both).assert_outcomes(passed=8)
    # In a process of its own, where nothing was imported before the test.
    inner.subprocess().assert_outcomes(passed=4)


def test_an_app_that_connects_inside_the_test_does_not_displace_the_tests_queue(
    xjobs_queue: XjobsQueue, uses: list[Any]
) -> None:
    @job(key=NO_KEY)
    def mail(to: str) -> None: ...

    uses.append(xjobs.use(Queue.connect(PROD)))
    mail.enqueue(to="a")
    with xjobs.use(Queue.connect("memory://")):
        mail.enqueue(to="b")
        Queue.connect("memory://").enqueue(mail.call(to="c"))
    uses.append(xjobs.use(AsyncQueue.connect(PROD)))
    mail.enqueue(to="d")
    assert [row.input["to"] for row in xjobs_queue.assert_enqueued(mail, count=4)] == ["a", "b", "c", "d"]


async def test_the_same_in_an_async_test(xjobs_queue: XjobsQueue, uses: list[Any]) -> None:
    @job(key=NO_KEY)
    def mail(to: str) -> None: ...

    uses.append(xjobs.use(AsyncQueue.connect(PROD)))
    await mail.aenqueue(to="a")
    await AsyncQueue.connect(PROD).enqueue(mail.call(to="b"))
    mail.enqueue(to="c")
    xjobs_queue.assert_enqueued(mail, count=3)


def test_pools_of_the_app_lead_to_the_tests_queue_too(xjobs_queue: XjobsQueue) -> None:
    @job(key=NO_KEY)
    def mail(to: str) -> None: ...

    pool = psycopg_pool.ConnectionPool(PROD, min_size=1, open=False)
    Queue.over(pool).enqueue(mail.call(to="a"))
    xjobs_queue.assert_enqueued(mail, count=1)


@pytest.mark.xjobs(isolation="database")  # a fault here would be one of its connection, which others share
def test_threads_and_loops_of_the_app_see_it(xjobs_queue: XjobsQueue) -> None:
    @job(key=NO_KEY)
    def mail(to: str) -> None: ...

    begin = threading.Barrier(9, timeout=10)

    def work(number: int) -> None:
        begin.wait()
        for _ in range(5):
            mail.enqueue(to=f"thread {number}")

    threads = [threading.Thread(target=work, args=[number], daemon=True) for number in range(8)]
    for thread in threads:
        thread.start()
    begin.wait()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)

    async def tasks() -> None:
        await asyncio.gather(*(mail.aenqueue(to=f"task {number}") for number in range(5)))

    asyncio.run(tasks())
    xjobs_queue.assert_enqueued(mail, count=45)
    assert len(xjobs_queue.drain().runs) == 45


@pytest.mark.xjobs(isolation="database")
async def test_tasks_that_enqueue_at_once(xjobs_queue: XjobsQueue) -> None:
    @job(key=NO_KEY)
    def mail(to: int) -> None: ...

    async with asyncio.timeout(10):
        for _ in range(10):
            await asyncio.gather(*(mail.aenqueue(to=number) for number in range(40)))
    xjobs_queue.assert_enqueued(mail, count=400)


# Before and after ----------------------------------------------------------------------------------------------------


QUEUES = """
import pytest, xjobs

own = xjobs.Queue.connect("memory://")

@xjobs.job(key=xjobs.NO_KEY)
def mail(to: str): ...
"""


def test_after_the_test_the_apps_own_queue_is_back(inner: Inner) -> None:
    inner.file(
        QUEUES
        + """
xjobs.use(own)

def test_with(xjobs_queue):
    mail.enqueue(to="a")
    own.enqueue(mail.call(to="b"))
    assert len(xjobs_queue.jobs()) == 2

def test_without():
    mail.enqueue(to="c")
    assert [row.input["to"] for row in own.jobs()] == ["c"]
"""
    )
    inner.run(inner.pg).assert_outcomes(passed=2)
    inner.run().assert_outcomes(passed=2)


def test_what_the_app_puts_in_use_during_a_test_ends_with_it(inner: Inner) -> None:
    inner.file(
        QUEUES
        + """
def test_with(xjobs_queue):
    xjobs.use(own)
    mail.enqueue(to="a")
    assert len(xjobs_queue.jobs()) == 1

def test_without():
    # Neither to the queue of a test that is over, nor to one that this test did not ask for.
    with pytest.raises(xjobs.DriverUnavailable, match="no queue is in use"):
        mail.enqueue(to="b")
    assert own.jobs() == []

def test_with_again(xjobs_queue):
    mail.enqueue(to="c")
    assert [row.input["to"] for row in xjobs_queue.jobs()] == ["c"]
"""
    )
    inner.run(inner.pg).assert_outcomes(passed=3)
    inner.run().assert_outcomes(passed=3)


def test_an_app_with_its_queue_on_a_server_that_is_not_there_gets_that_error_again_after_the_test(
    inner: Inner,
) -> None:
    inner.file(APP, name="app")
    inner.file(
        """
        import pytest, xjobs
        from app import aqueue, mail, queue

        def test_with(xjobs_queue):
            mail.enqueue(to="a")

        def test_without():
            for enqueue in (lambda: mail.enqueue(to="a"), lambda: queue.enqueue(mail.call(to="a"))):
                with pytest.raises(xjobs.DriverUnavailable, match="no Postgres answered at host=127.0.0.1 port=1"):
                    enqueue()

        async def test_without_async():
            with pytest.raises(xjobs.DriverUnavailable, match="no Postgres answered at host=127.0.0.1 port=1"):
                await mail.aenqueue(to="a")
        """
    )
    inner.run(*inner.both).assert_outcomes(passed=4)


def test_a_use_that_ends_inside_the_test_has_ended_after_it(inner: Inner) -> None:
    inner.file(
        """
        import pytest, xjobs

        @xjobs.job(key=xjobs.NO_KEY)
        def mail(): ...

        def test_with(xjobs_queue):
            with xjobs.use(xjobs.Queue.connect("memory://")):
                mail.enqueue()
            xjobs_queue.assert_enqueued(mail, count=1)

        def test_without():
            with pytest.raises(xjobs.DriverUnavailable):
                mail.enqueue()
        """
    )
    inner.run().assert_outcomes(passed=2)


@pytest.mark.parametrize("call", ["mail.enqueue()", "xjobs.enqueue_many([mail.call()])", "await mail.aenqueue()"])
def test_without_a_queue_in_use_nothing_is_dropped_silently(inner: Inner, call: str) -> None:
    inner.file(
        f"""
        import xjobs

        @xjobs.job(key=xjobs.NO_KEY)
        def mail(): ...

        {"async " if "await" in call else ""}def test_it(xjobs_clock):
            {call}
        """
    )
    result = inner.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        "E*DriverUnavailable: no queue is in use, so the job cannot be enqueued: call xjobs.use(xjobs.Queue.connect("
        "...)) when the app starts, or put the xjobs_queue fixture in the test"
    )


def test_a_queue_kept_beyond_its_test_is_not_the_next_tests(inner: Inner) -> None:
    inner.file(
        """
        import xjobs

        kept = []

        @xjobs.job(key=xjobs.NO_KEY)
        def mail(): ...

        def test_one(xjobs_queue):
            kept.append(xjobs_queue)

        def test_two(xjobs_queue):
            assert xjobs_queue is not kept[0]
            mail.enqueue()
            xjobs_queue.assert_enqueued(mail, count=1)
        """
    )
    inner.run("--xjobs-backend=memory").assert_outcomes(passed=2)


@pytest.mark.parametrize("xjobs_environment", ["pg"], indirect=True)
def test_a_connection_that_is_given_decides_when_the_job_is_queued(
    xjobs_environment: Environment, xjobs_queue: XjobsQueue
) -> None:
    @job(key=NO_KEY)
    def mail(to: str) -> None: ...

    assert xjobs_environment.dsn is not None
    with psycopg.connect(xjobs_environment.dsn) as connection:
        mail.using(connection=connection).enqueue(to="a")
        xjobs_queue.assert_not_enqueued(mail)
        connection.rollback()
        xjobs_queue.assert_not_enqueued(mail)
        mail.using(connection=connection).enqueue(to="b")
        connection.commit()
    xjobs_queue.assert_enqueued(mail.call(to="b"), count=1)

"""`xjobs_worker`: real workers in tests, waits that end and say what they waited for, and nothing left behind."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from uuid import UUID

import freezegun
import pytest
from inner_run import Inner

import xjobs
from pytest_xjobs.queue import XjobsQueue
from pytest_xjobs.worker import Workers
from xjobs import NO_KEY, job

APP = """
import asyncio, os, threading, xjobs

@xjobs.job(key="{n}")
async def nap(n: int, seconds: float) -> None:
    await asyncio.sleep(seconds)

@xjobs.job(key="{n}")
def spread(n: int) -> None:
    nap.enqueue(n=n, seconds=0.0)
"""


def test_a_thread_runs_jobs_of_both_colours_and_those_that_they_enqueue(
    xjobs_worker: Workers, xjobs_queue: XjobsQueue
) -> None:
    ran: list[object] = []

    @job(key=NO_KEY)
    async def last(n: int) -> None:
        ran.append(threading.current_thread().name)

    @job(key=NO_KEY)
    async def awaited_one(n: int) -> None:
        await last.aenqueue(n)

    @job(key=NO_KEY)
    def threaded_one(n: int) -> None:
        last.enqueue(n)

    worker = xjobs_worker.start(concurrency=3)
    made = [body.enqueue(n=n) for n in range(5) for body in (awaited_one, threaded_one)]
    worker.wait_until_idle()
    assert {xjobs_queue.assert_state(one, "done").attempt for one in made} == {1}
    assert ran == [worker.worker.settings.worker_id] * 10
    worker.stop()


async def test_an_async_test_may_wait_for_it_too(xjobs_worker: Workers, xjobs_queue: XjobsQueue) -> None:
    @job(key=NO_KEY)
    async def twice(n: int) -> None:
        if n:
            await twice.aenqueue(n=n - 1)

    worker = xjobs_worker.start()
    made = await twice.aenqueue(n=2)
    assert worker.wait_for(made).state == "done"
    worker.wait_until_idle()
    assert len([row for row in xjobs_queue.jobs() if row.state == "done"]) == 3


def test_a_wait_that_is_in_vain_says_how_the_job_stands(xjobs_worker: Workers, xjobs_queue: XjobsQueue) -> None:
    @job(key=NO_KEY, retry=xjobs.Retry(attempts=2, delay=3600))
    async def fails() -> None:
        raise ValueError("boo")

    worker = xjobs_worker.start()
    made = fails.enqueue()
    with pytest.raises(AssertionError, match=f"waited 0.3 s for job {made.id} to be done") as failed:
        worker.wait_for(made, within=0.3)
    assert "'fails'" in str(failed.value)
    assert "is ready in attempt 1, last error: ValueError: boo" in str(failed.value)


def test_a_wait_for_idleness_names_what_is_busy(xjobs_worker: Workers, xjobs_queue: XjobsQueue) -> None:
    release = threading.Event()

    @job(key=NO_KEY)
    def hangs() -> None:
        release.wait(30)

    worker = xjobs_worker.start()
    hangs.enqueue()
    with pytest.raises(AssertionError, match="for the queue to be idle: hangs is running"):
        worker.wait_until_idle(within=0.3)
    release.set()
    worker.wait_until_idle()


def test_moves_of_the_clock_keep_the_leases_of_a_worker_that_lives(
    xjobs_worker: Workers, xjobs_queue: XjobsQueue
) -> None:
    release, started = threading.Event(), threading.Event()

    @job(key=NO_KEY, concurrency_limit=1)
    def slow() -> None:
        started.set()
        release.wait(30)

    @job(key=NO_KEY)
    async def other() -> None: ...

    xjobs_queue.clock.freeze()
    worker = xjobs_worker.start()
    made = slow.enqueue()
    later = other.using(delay=timedelta(days=3)).enqueue()
    assert started.wait(10)
    xjobs_queue.clock.advance(days=3)
    release.set()
    assert worker.wait_for(made).attempt == 1
    assert worker.wait_for(later).attempt == 1


def test_it_works_while_the_clock_stands_still(xjobs_worker: Workers, xjobs_queue: XjobsQueue) -> None:
    @job(key=NO_KEY)
    async def work() -> None: ...

    xjobs_queue.clock.freeze()
    worker = xjobs_worker.start()
    for _ in range(3):
        worker.wait_for(work.enqueue())


def test_an_option_that_cannot_be_is_refused_where_the_worker_is_started(xjobs_worker: Workers) -> None:
    with pytest.raises(xjobs.Invariant, match="concurrency is 0"):
        xjobs_worker.start(concurrency=0)


def test_a_child_process_needs_a_database(inner: Inner) -> None:
    inner.file("def test_it(xjobs_worker): xjobs_worker.spawn('app')")
    result = inner.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*spawn() has no database to share*--xjobs-pg*"])


def test_a_child_process_runs_is_killed_and_leaves_its_jobs_to_the_next(inner: Inner) -> None:
    inner.file(APP, "app")
    inner.file(
        """
        import signal, app

        def test_it(xjobs_worker, xjobs_queue):
            first = xjobs_worker.spawn("app")
            first.wait_for(app.spread.enqueue(n=1))
            first.wait_until_idle()
            hangs = app.nap.enqueue(n=7, seconds=600.0)
            first.wait_for(hangs, "running")
            first.kill()
            xjobs_queue.clock.advance(minutes=10)  # past the lease
            second = xjobs_worker.spawn("app", "--shutdown-timeout", "1")
            second.wait_for_log("jobs.wake.live")
            import time
            deadline = time.monotonic() + 10
            while xjobs_queue.job(hangs.id).attempt < 2 and time.monotonic() < deadline:
                pass
            assert xjobs_queue.job(hangs.id).attempt == 2
            assert second.stop() == 0
            assert xjobs_queue.assert_state(hangs, "ready").attempt == 1
        """
    )
    inner.subprocess(inner.pg, "--xjobs-backend=pg").assert_outcomes(passed=1)


def test_a_child_process_that_cannot_begin_says_why(inner: Inner) -> None:
    inner.file("def test_it(xjobs_worker): xjobs_worker.spawn('no_such_app')")
    result = inner.subprocess(inner.pg, "--xjobs-backend=pg")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*ended with exit code 2*", "*no module 'no_such_app'*"])


def test_nothing_of_the_workers_outlives_the_test(inner: Inner) -> None:
    inner.file(APP, "app")
    inner.file(
        """
        import threading, app
        threads = set()

        def test_one(xjobs_worker, xjobs_queue):
            threads.update(threading.enumerate())
            app.spread.enqueue(n=1)
            app.nap.enqueue(n=2, seconds=600.0)
            worker = xjobs_worker.start()
            worker.wait_for(app.spread.enqueue(n=3))

        def test_two(xjobs_queue):
            assert set(threading.enumerate()) <= threads
            assert xjobs_queue.workers() == []
        """
    )
    result = inner.subprocess(*inner.both)
    result.assert_outcomes(passed=4)


def test_a_body_that_does_not_end_fails_the_test_by_the_name_of_its_thread(inner: Inner) -> None:
    inner.file(
        """
        import threading, xjobs
        started = threading.Event()

        @xjobs.job(key=xjobs.NO_KEY)
        def hangs():
            started.set()
            threading.Event().wait(60)

        def test_it(xjobs_worker):
            hangs.enqueue()
            xjobs_worker.start()
            assert started.wait(10)
        """
    )
    result = inner.subprocess()
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        ["*worker test-worker-1 was stopped, and its thread 'test-worker-1-1' is still at work*"]
    )


def test_a_test_that_has_no_worker_imports_none(inner: Inner) -> None:
    inner.file(
        """
        import sys

        def test_it(xjobs_queue):
            assert "xjobs.worker" not in sys.modules
        """
    )
    inner.subprocess().assert_outcomes(passed=1)


def test_a_wait_ends_also_while_the_test_has_frozen_the_monotonic_clock(
    xjobs_worker: Workers, xjobs_queue: XjobsQueue
) -> None:
    """It never did: freezegun replaces `time.monotonic` wherever a module holds it by a name of its own."""
    worker = xjobs_worker.start()
    with (
        freezegun.freeze_time("2031-05-06"),
        pytest.raises(AssertionError, match=r"waited 0\.3 s for job .*: there is no job .*frozen time\.monotonic"),
    ):
        worker.wait_for(UUID(int=1), within=0.3)


def test_a_wait_for_what_can_be_no_more_ends_at_once(xjobs_worker: Workers, xjobs_queue: XjobsQueue) -> None:
    @job(key=NO_KEY, retry=1)
    async def fails() -> None:
        raise ValueError("no")

    with pytest.raises(
        AssertionError, match=r"will not be done: job 'fails' \(.*\) is dead in attempt 1, .*ValueError: no"
    ):
        xjobs_worker.start().wait_for(fails.enqueue(), within=600)


def test_idleness_is_not_while_jobs_wait_for_their_limit(xjobs_worker: Workers, xjobs_queue: XjobsQueue) -> None:
    """Those that had been put back for a moment did not count."""

    @job(key=NO_KEY, concurrency_limit=2)
    async def two_at_a_time(n: int) -> None:
        await asyncio.sleep(0.02)

    xjobs_queue.enqueue_many([two_at_a_time.call(n=n) for n in range(10)])
    xjobs_worker.start().wait_until_idle()
    assert {row.state for row in xjobs_queue.jobs()} == {"done"}

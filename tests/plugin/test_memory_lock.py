"""Memory's lock: it is taken again inside by a clock that moves, and keeps two threads from one look at a transaction.

A deadlock would hang the run, so what may deadlock is done in another one that is ended after a minute.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from inner_run import Inner

import xjobs
from xjobs import NO_KEY, job
from xjobs.bridge import run_sync
from xjobs.drivers.memory import MemoryDriver
from xjobs.integrations.following import MarkedTransaction
from xjobs.operations import inspect
from xjobs.operations.enqueue import enqueue


def test_a_body_or_a_test_may_freeze_the_time_and_enqueue(inner: Inner) -> None:
    inner.file(
        """
        import threading, xjobs
        from freezegun import freeze_time

        release = threading.Event()

        @xjobs.job(key=xjobs.NO_KEY)
        def other(): ...

        def freeze_and_enqueue():
            with freeze_time("2031-01-01"):
                other.enqueue()

        @xjobs.job(key=xjobs.NO_KEY)
        def freezes():
            freeze_and_enqueue()

        @xjobs.job(key=xjobs.NO_KEY)
        def holds():
            release.wait(30)

        def test_in_a_drain(xjobs_queue):
            freezes.enqueue()
            xjobs_queue.drain()
            assert {row.name for row in xjobs_queue.jobs()} == {"freezes", "other"}

        def test_beside_a_worker(xjobs_queue, xjobs_worker):
            release.clear()
            worker = xjobs_worker.start()
            worker.wait_for(holds.enqueue(), "running")
            freeze_and_enqueue()
            release.set()
            worker.wait_until_idle()
        """
    )
    inner.subprocess(*inner.both).assert_outcomes(passed=4)


def test_two_threads_that_find_a_transaction_ended_keep_what_it_committed() -> None:
    @job(key=NO_KEY)
    def work() -> None: ...

    driver, committed, marks = MemoryDriver(), False, [1]
    both = threading.Barrier(2, timeout=0.5)

    def look() -> None:
        """Each mark that stands is told once, and what is told takes a moment to arrive."""
        if not committed:
            return
        standing = [marks.pop()] if marks else []
        with suppress(threading.BrokenBarrierError):  # only one is here, as it should be
            both.wait()
        transaction.commit(standing=standing)

    transaction = MarkedTransaction(driver, look)
    transaction.set_mark(transaction.next_mark(), [1])
    made: xjobs.Enqueued = run_sync(enqueue(transaction.driver, work.call()))
    committed = True
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(run_sync(inspect.job(driver, made.id)))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert None not in found

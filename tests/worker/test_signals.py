"""Signals to worker processes whose bodies stand in the way: the process ends in time and with the code that is due."""

from __future__ import annotations

import signal
import time
from typing import Any

import endings
import psycopg
import pytest
from processes import Fleet, WorkerProcess, until

import xjobs
from xjobs.worker.shutdown import GRACE

FOR_EVER = 2_000_000_000
"""Rounds that no test waits for."""

both_loops = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])


def start(workers: Fleet, loop: str, *, budget: float = 10, **environment: str) -> WorkerProcess:
    return workers.start(
        "--loop", loop, "--shutdown-timeout", str(budget), app="endings:set_up", **environment
    ).started()


def ended_in(worker: WorkerProcess, began: float, code: int, *, low: float = 0, high: float) -> None:
    assert worker.wait(high + 10) == code, worker.text
    assert low <= time.monotonic() - began <= high, worker.text


def done(control: psycopg.Connection[Any], count: int) -> None:
    sql = "select count(*) from x_jobs where state = 'done'"
    until(f"{count} jobs to be done", lambda: control.execute(sql).fetchone() == (count,))


@both_loops
def test_a_body_in_c_code_does_not_keep_the_process_beyond_its_budget(
    workers: Fleet, queue: xjobs.Queue, loop: str
) -> None:
    worker = start(workers, loop, budget=1)
    made = queue.enqueue(endings.crunch.call(n=1, rounds=FOR_EVER))
    worker.wait_for("body began")
    began = time.monotonic()
    worker.send(signal.SIGTERM)
    worker.wait_for("jobs.worker.drain-signalled signal=SIGTERM", within=1)
    ended_in(worker, began, 1, low=1 + GRACE - 0.1, high=4)
    worker.wait_for("jobs.worker.drain-overdue")
    row = queue.job(made.id)
    assert row is not None
    assert (row.state, row.attempt) == ("ready", 0)


@both_loops
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_stops_a_body_in_c_code_at_once(
    workers: Fleet, queue: xjobs.Queue, loop: str, second: signal.Signals
) -> None:
    worker = start(workers, loop)
    queue.enqueue(endings.crunch.call(n=1, rounds=FOR_EVER))
    worker.wait_for("body began")
    worker.send(signal.SIGTERM)
    worker.wait_for("drain-signalled", within=2)
    began = time.monotonic()
    worker.send(second)
    ended_in(worker, began, 128 + second, high=2)
    worker.wait_for(f"jobs.worker.stopped-at-once signal={second.name}")


@both_loops
def test_one_signal_counts_once_though_the_main_thread_hears_of_it_later(
    workers: Fleet, queue: xjobs.Queue, control: psycopg.Connection[Any], loop: str
) -> None:
    worker = start(workers, loop, budget=60)
    queue.enqueue(endings.idles.call(n=1, seconds=0.0))
    done(control, 1)
    queue.enqueue(endings.crunch.call(n=1, rounds=4_000_000))
    queue.enqueue(endings.idles.call(n=2, seconds=0.0))
    until("the body in C", lambda: worker.text.count("body began") >= 2)
    worker.send(signal.SIGTERM)
    worker.wait_for("drain-signalled", within=2)
    assert "body ended" not in worker.text
    assert worker.wait() == 0
    assert worker.text.count("drain-signalled") == 1
    assert "stopped-at-once" not in worker.text


@both_loops
def test_a_worker_that_finds_no_thread_to_start_ends_in_order(workers: Fleet, queue: xjobs.Queue, loop: str) -> None:
    worker = start(workers, loop, budget=3)
    made = queue.enqueue(endings.takes_threads.call(n=1, seconds=600.0))
    worker.wait_for("body began: can't start new thread")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0, worker.text
    assert "Traceback" not in worker.text
    row = queue.job(made.id)
    assert row is not None
    assert row.state == "ready"


@both_loops
@pytest.mark.parametrize("job", [endings.forks, endings.forks_in_thread], ids=lambda job: job.name)
def test_a_forked_child_has_its_own_signals_and_the_worker_hears_none_of_them(
    workers: Fleet, queue: xjobs.Queue, control: psycopg.Connection[Any], job: Any, loop: str
) -> None:
    worker = start(workers, loop)
    queue.enqueue(job.call(n=1))
    done(control, 1)
    worker.wait_for("child has (True, -1, 0)")
    worker.wait_for(f"child ended by {-signal.SIGTERM}")
    worker.wait_for(f"children ended by {{{-signal.SIGTERM}}}")
    queue.enqueue(endings.idles.call(n=1, seconds=0.0))
    done(control, 2)
    assert "drain" not in worker.text
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert worker.text.count("drain-signalled") == 1


@both_loops
@pytest.mark.parametrize(
    ("job", "name"), [(endings.leaves_thread, "{loop}_0"), (endings.leaves_own_thread, "own_0")], ids=["loop's", "own"]
)
def test_a_thread_that_was_left_does_not_hold_up_an_orderly_end(
    workers: Fleet, queue: xjobs.Queue, job: Any, name: str, loop: str
) -> None:
    worker = start(workers, loop)
    queue.enqueue(job.call(n=1, seconds=600.0))
    worker.wait_for("jobs.attempt.failed")
    began = time.monotonic()
    worker.send(signal.SIGTERM)
    ended_in(worker, began, 0, high=5)
    assert name.format(loop=loop) in worker.wait_for("WARNING jobs.worker.threads-left")
    assert "drain-overdue" not in worker.text


@pytest.mark.parametrize("seconds", ["0", "1.5"])
@both_loops
def test_handlers_at_exit_run_and_may_take_their_time(
    workers: Fleet, queue: xjobs.Queue, loop: str, seconds: str
) -> None:
    worker = start(workers, loop, APP_AT_EXIT=seconds)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    worker.wait_for("handler at exit ran")
    assert "threads-left" not in worker.text


@both_loops
def test_handlers_at_exit_do_not_take_longer_than_the_budget(workers: Fleet, queue: xjobs.Queue, loop: str) -> None:
    worker = start(workers, loop, budget=1, APP_AT_EXIT="600")
    began = time.monotonic()
    worker.send(signal.SIGTERM)
    ended_in(worker, began, 0, high=5)


@both_loops
def test_an_event_loop_that_listens_to_signals_itself_takes_none_from_the_worker(
    workers: Fleet, queue: xjobs.Queue, loop: str
) -> None:
    worker = start(workers, loop)
    queue.enqueue(endings.listens.call(n=1, seconds=60.0))
    worker.wait_for("body began")
    worker.send(signal.SIGUSR2)
    worker.wait_for("usr2 came")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert worker.text.count("drain-signalled") == 1


@both_loops
def test_other_signals_go_where_the_app_has_them_go(workers: Fleet, queue: xjobs.Queue, loop: str) -> None:
    worker = start(workers, loop)
    worker.wait_for("jobs.wake.live")
    worker.send(signal.SIGUSR1)
    worker.wait_for("usr1 came", within=5)
    assert "drain" not in worker.text
    worker.send(signal.SIGINT)
    assert worker.wait() == 0
    worker.wait_for("jobs.worker.drain-signalled signal=SIGINT")


@both_loops
@pytest.mark.parametrize(
    ("job", "cause"), [(endings.strays, "SystemExit: 0"), (endings.stops_loop, "RuntimeError: ")], ids=["exit", "stop"]
)
def test_an_end_that_nobody_asked_for_is_a_failure(
    workers: Fleet, queue: xjobs.Queue, job: Any, cause: str, loop: str
) -> None:
    worker = start(workers, loop)
    queue.enqueue(job.call(n=1))
    assert worker.wait() == 1, worker.text
    worker.wait_for("ERROR jobs.worker.ended-unasked")
    assert cause in worker.text
    worker.wait_for("jobs.worker.stopped")

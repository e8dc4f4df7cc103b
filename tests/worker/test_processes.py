"""Worker processes: what signals, stalls and deaths do to the jobs that they run."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from typing import Any

import effects
import psycopg
import pytest
from processes import LONG, Fleet, WorkerProcess, until

import xjobs

LEASE = 1.5
LOOPS = ["asyncio", "uvloop"]


def states(control: psycopg.Connection[Any]) -> Counter[str]:
    return Counter(dict(control.execute("select state, count(*) from x_jobs group by state").fetchall()))


def done(control: psycopg.Connection[Any], count: int, *, within: float = 60) -> None:
    until(f"{count} jobs to be done", lambda: states(control) == {"done": count}, within=within, pause=0.05)


def total(control: psycopg.Connection[Any]) -> int:
    row = control.execute("select coalesce(sum(total), 0)::int from totals").fetchone()
    assert row is not None
    return int(row[0])


def begun(worker: WorkerProcess, count: int) -> None:
    """Wait until so many bodies are under way: a row is `running` a moment before."""
    until(f"{count} bodies to begin", lambda: worker.text.count("body began") == count)


def test_three_of_four_workers_are_killed_again_and_again_and_every_effect_happens_once(
    workers: Fleet, queue: xjobs.Queue, control: psycopg.Connection[Any]
) -> None:
    count = 20_000 if LONG else 2_000
    kills = 30 if LONG else 5
    dice = random.Random(int(os.environ.get("XJOBS_SOAK_SEED", "7")))
    options = "--lease", str(LEASE), "--concurrency", "20"
    mortal = [workers.start(*options) for _ in range(3)]
    workers.start(*options).started()
    for n in range(0, count, 1_000):
        calls = (effects.count if key % 2 else effects.acount for key in range(n, n + 1_000))
        queue.enqueue_many([job.call(key=n + at) for at, job in enumerate(calls)])
    for n in range(kills):
        place = n % 3
        mortal[place].started()
        goal = min(count, total(control) + dice.random() * count / (kills + 4))
        until("jobs to be done", lambda goal=goal: total(control) >= goal, within=60)
        mortal[place].kill()
        mortal[place] = workers.start(*options)
    done(control, count, within=180)
    assert total(control) == count
    row = control.execute("select max(attempt), sum(attempt) from x_jobs").fetchone()
    assert row is not None
    assert row[1] > count, "no kill met a running job"
    assert "Traceback" not in workers.log()


@pytest.mark.parametrize("loop", LOOPS)
def test_sigterm_lets_jobs_finish_within_the_budget(
    workers: Fleet, queue: xjobs.Queue, control: psycopg.Connection[Any], loop: str
) -> None:
    worker = workers.start("--loop", loop, "--shutdown-timeout", "20", "--concurrency", "6").started()
    queue.enqueue_many([effects.nap.call(n=n, seconds=1.0) for n in range(3)])
    queue.enqueue_many([effects.block.call(n=n, seconds=1.0) for n in range(3)])
    begun(worker, 6)
    queue.enqueue_many([effects.nap.call(n=n, seconds=0.0) for n in range(50, 60)])
    began = time.monotonic()
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert time.monotonic() - began < 5
    assert states(control) == {"done": 6, "ready": 10}
    assert control.execute("select sum(attempt) from x_jobs where state = 'ready'").fetchone() == (0,)
    assert queue.workers() == []
    for event in ("drain-signalled", "draining", "stopped"):
        worker.wait_for(f"jobs.worker.{event}")


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("job", [effects.nap, effects.block, effects.block_loop], ids=lambda job: job.name)
def test_past_the_cut_off_jobs_are_handed_back_uncounted(
    workers: Fleet, queue: xjobs.Queue, control: psycopg.Connection[Any], job: Any, loop: str
) -> None:
    worker = workers.start("--loop", loop, "--shutdown-timeout", "1").started()
    made = queue.enqueue(job.call(n=1, seconds=600.0))
    begun(worker, 1)
    began = time.monotonic()
    worker.send(signal.SIGTERM)
    code = worker.wait()
    assert time.monotonic() - began < 3
    # The loop that a body blocks cannot end in order; the jobs are handed back all the same.
    assert code == (1 if job is effects.block_loop else 0)
    row = queue.job(made.id)
    assert row is not None
    assert (row.state, row.attempt, row.claims, row.claimed_by) == ("ready", 0, 1, None)
    assert row.last_error is not None
    assert "X_DRAINING" in row.last_error
    worker.wait_for("jobs.worker.drain-cancelling")


@pytest.mark.parametrize("loop", LOOPS)
def test_a_second_signal_stops_at_once(
    workers: Fleet, queue: xjobs.Queue, control: psycopg.Connection[Any], loop: str
) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        worker = workers.start("--loop", loop).started()
        queue.enqueue(effects.block_loop.call(n=number, seconds=600.0))
        begun(worker, 1)
        worker.send(signal.SIGTERM)
        worker.wait_for("drain-signalled")
        worker.send(number)
        assert worker.wait(5) == 128 + number


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("job", [effects.block, effects.block_loop], ids=lambda job: job.name)
def test_a_body_that_blocks_for_longer_than_the_lease_keeps_it(
    workers: Fleet, queue: xjobs.Queue, control: psycopg.Connection[Any], job: Any, loop: str
) -> None:
    worker = workers.start("--loop", loop, "--lease", "1.5").started()
    made = queue.enqueue(job.call(n=1, seconds=4.0))
    begun(worker, 1)
    other = workers.start("--lease", "1.5").started()
    done(control, 1)
    row = queue.job(made.id)
    assert row is not None
    assert (row.attempt, row.claims) == (1, 1)
    assert "jobs.lease.lost" not in worker.text + other.text
    if job is effects.block_loop:
        worker.wait_for("jobs.loop.lag")


def test_a_worker_that_was_stopped_past_its_lease_writes_nothing_more(
    workers: Fleet, queue: xjobs.Queue, control: psycopg.Connection[Any]
) -> None:
    stalled = workers.start("--lease", str(LEASE), "--concurrency", "20").started()
    made = queue.enqueue_many([job.call(n=n, seconds=0.3) for job in (effects.nap, effects.block) for n in range(5)])
    begun(stalled, len(made))
    stalled.send(signal.SIGSTOP)
    workers.start("--lease", str(LEASE), "--concurrency", "20").started()
    done(control, len(made))
    before = control.execute("select * from x_jobs order by id").fetchall(), _counted(control)
    stalled.send(signal.SIGCONT)
    until("ten refused settles", lambda: stalled.text.count("jobs.settle.unowned") == len(made))
    after = control.execute("select * from x_jobs order by id").fetchall(), _counted(control)
    assert after == before
    assert control.execute("select min(attempt), max(attempt) from x_jobs").fetchone() == (2, 2)
    queue.enqueue(effects.nap.call(n=99, seconds=0.0))
    done(control, len(made) + 1)


def _counted(control: psycopg.Connection[Any]) -> list[Any]:
    return control.execute("select * from x_job_counters order by 1, 2, 3").fetchall()


def test_never_more_than_the_limit_at_once_over_three_processes_and_the_slots_of_a_killed_one_come_back(
    workers: Fleet, queue: xjobs.Queue, control: psycopg.Connection[Any]
) -> None:
    count = 300 if LONG else 60
    fleet = [workers.start("--lease", str(LEASE), "--concurrency", "10") for _ in range(3)]
    for worker in fleet:
        worker.started()
    queue.enqueue_many([effects.limited.call(n=n, seconds=0.2) for n in range(count)])
    until("a third of the jobs to be done", lambda: states(control)["done"] > count / 3, within=60)
    until("a worker that holds a slot", lambda: next((w for w in fleet if _slots(control, w)), None), pause=0).kill()
    done(control, count, within=120)
    spans = control.execute("select began, ended from spans where ended is not null").fetchall()
    assert len(spans) >= count
    edges = sorted([(began, 1) for began, _ in spans] + [(ended, -1) for _, ended in spans])
    running = most = 0
    for _, change in edges:
        running += change
        most = max(most, running)
    assert most == 4
    until("all slots to be free", lambda: not _slots(control))


def _slots(control: psycopg.Connection[Any], worker: WorkerProcess | None = None) -> int:
    """The live slots, of one worker or of all."""
    mine = "" if worker is None else worker.lines[0].split()[1]
    row = control.execute(
        "select count(*) from x_job_leases where expires_at > now() and holder like %s", [f"{mine}%"]
    ).fetchone()
    assert row is not None
    return int(row[0])


def test_a_busy_key_that_says_fail_refuses_and_another_key_runs(
    workers: Fleet, queue: xjobs.Queue, control: psycopg.Connection[Any]
) -> None:
    worker = workers.start().started()
    first = queue.enqueue(effects.one_each.call(who="ann", seconds=1.0))
    begun(worker, 1)
    second = queue.enqueue(effects.one_each.call(who="ann", seconds=0.0))
    third = queue.enqueue(effects.one_each.call(who="bob", seconds=0.0))
    until("all to end", lambda: states(control) == {"done": 2, "failed": 1})
    row = queue.job(second.id)
    assert row is not None
    assert (row.state, row.attempt) == ("failed", 0)
    assert row.last_error is not None
    assert "X_JOB_KEY_BUSY" in row.last_error
    assert "ann" not in row.last_error
    for made in (first, third):
        ended = queue.job(made.id)
        assert ended is not None
        assert ended.state == "done"


def test_bodies_of_both_colours_enqueue_through_the_worker(
    workers: Fleet, queue: xjobs.Queue, control: psycopg.Connection[Any]
) -> None:
    workers.start("--queues", "default,other").started()
    queue.enqueue_many([job.call(n=n) for job in (effects.from_loop, effects.from_thread) for n in range(10)])
    done(control, 40)


def test_a_body_does_not_end_the_worker(workers: Fleet, queue: xjobs.Queue, control: psycopg.Connection[Any]) -> None:
    worker = workers.start().started()
    queue.enqueue(effects.leaves.call(n=1))
    queue.enqueue(effects.cancels_itself.call(n=1))
    until("the jobs to have failed", lambda: states(control)["dead"] == 1 and _attempts(control, "leaves") >= 1)
    queue.enqueue(effects.nap.call(n=1, seconds=0.0))
    until("the next job to be done", lambda: states(control)["done"] == 1)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0


def _attempts(control: psycopg.Connection[Any], name: str) -> int:
    row = control.execute("select attempt from x_jobs where name = %s and last_error is not null", [name]).fetchone()
    return int(row[0]) if row else 0

"""A run that is killed leaves no server behind, and the next one works."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from inner_run import QUIET, Inner

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

HANGS = """
import os, psycopg, signal, xjobs

@xjobs.job(key=xjobs.NO_KEY)
def hangs(dsn: str):
    with psycopg.connect(dsn) as connection:
        row = connection.execute("select pg_backend_pid(), current_setting('data_directory'), current_database()")
        backend, data, name = row.fetchone()
    with open(f"{data}/postmaster.pid") as file:
        server = file.readline().strip()
    print(os.getpid(), server, data, name, file=open("told.part", "w"), flush=True)
    os.rename("told.part", "told")
    while True:
        signal.pause()

def test_it(xjobs_queue, xjobs_clock, xjobs_dsn):
    xjobs_clock.advance(days=4000)
    hangs.enqueue(dsn=xjobs_dsn)
    xjobs_queue.drain()
"""
WORKS = """
import datetime, xjobs

def test_it(xjobs_queue, xjobs_clock):
    assert xjobs_queue.jobs() == []
    assert abs(xjobs_clock.now - datetime.datetime.now(datetime.timezone.utc)) < datetime.timedelta(seconds=5)
"""


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether a condition of the outside world came true before a deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"  # ended, and only not yet collected by its parent


def descendants(pid: int) -> set[int]:
    """A server process and those that it started."""
    found = {pid}
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # one that has ended meanwhile
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in task.read_text().split():
                found |= descendants(int(child))
    return found


@pytest.fixture
def hang(inner: Inner) -> Iterator[Callable[..., tuple[subprocess.Popen[str], list[str]]]]:
    """Starts a run that hangs in a job, and answers it with what the job told."""
    started: list[subprocess.Popen[str]] = []

    def hang(*args: str) -> tuple[subprocess.Popen[str], list[str]]:
        inner.file(HANGS)
        told = inner.pytester.path / "told"
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *QUIET, *args],
            cwd=inner.pytester.path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        assert until(lambda: told.exists() or process.poll() is not None, 30)
        assert process.poll() is None, process.communicate()[0]
        return process, told.read_text().split()

    yield hang
    for process in started:
        process.kill()
        process.communicate()


def test_no_server_process_is_left_two_seconds_after_a_kill(
    inner: Inner, hang: Callable[..., tuple[subprocess.Popen[str], list[str]]]
) -> None:
    process, (pid, server, data, _) = hang("--xjobs-pg")
    pids = descendants(int(server))
    assert int(pid) == process.pid
    assert runs(int(server))
    # Not all of them: the backend of the connection that the job has closed may be ending.
    assert sum(map(runs, pids)) > 1
    os.kill(process.pid, signal.SIGKILL)
    assert until(lambda: not any(map(runs, pids)), 2), [pid for pid in pids if runs(pid)]

    inner.file(WORKS)
    inner.subprocess("--xjobs-pg").assert_outcomes(passed=1)
    # The next run has also cleared away what the killed one had on disk.
    assert not Path(data).exists()


def test_with_workers_the_server_goes_with_the_controller_that_started_it(
    inner: Inner, hang: Callable[..., tuple[subprocess.Popen[str], list[str]]]
) -> None:
    process, (worker, server, *_) = hang("--xjobs-pg", "-n1", "--max-worker-restart=0")
    assert int(worker) != process.pid
    pids = descendants(int(server))
    assert len(pids) > 1
    os.kill(process.pid, signal.SIGKILL)
    try:
        assert until(lambda: not any(map(runs, pids)), 2), [pid for pid in pids if runs(pid)]
    finally:
        # Told by its pipe that the controller is gone, a worker ends with its test; this one never would.
        os.kill(int(worker), signal.SIGKILL)


def test_databases_of_a_killed_run_on_an_existing_server_are_swept_by_the_next(
    inner: Inner, hang: Callable[..., tuple[subprocess.Popen[str], list[str]]]
) -> None:
    process, (*_, name) = hang(inner.pg)

    def databases() -> set[str]:
        with psycopg.connect(inner.pg.partition("=")[2]) as connection:
            return {found for (found,) in connection.execute("select datname from pg_database").fetchall()}

    def sessions() -> int:
        with psycopg.connect(inner.pg.partition("=")[2]) as connection:
            query = "select count(*) from pg_stat_activity where application_name like %s"
            row = connection.execute(query, [f"pytest-xjobs {process.pid}%"]).fetchone()
        return int(row[0]) if row else 0

    assert name in databases()
    assert sessions() == 1
    process.kill()
    # The server notices that the run is gone as soon as its connections end.
    assert until(lambda: sessions() == 0, 5)
    inner.file(WORKS)
    inner.run(inner.pg).assert_outcomes(passed=1)
    assert not [left for left in databases() if left.startswith(name.rsplit("_", 1)[0])]

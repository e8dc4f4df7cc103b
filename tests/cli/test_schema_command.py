"""The command: what `xjobs schema` does to a database, and how it says that it could not."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner, Result

from xjobs.cli import command
from xjobs.sql import SQL_JOBS_TABLE

SECRET = "s3cr3t-w0rd"


@pytest.fixture(autouse=True)
def _no_database_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in list(os.environ):
        if variable in ("XJOBS_DSN", "DATABASE_URL") or variable.startswith("PG"):
            monkeypatch.delenv(variable)


@pytest.fixture(scope="module")
def admin(database_dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database_dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def dsn(admin: psycopg.Connection, database_dsn: str) -> Iterator[str]:
    """An empty database."""
    admin.execute("create database command_case")
    yield database_dsn.replace("dbname=postgres", "dbname=command_case")
    admin.execute("drop database command_case with (force)")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, prog_name="xjobs")


def run_process(*arguments: str, module: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-m", "xjobs.cli"] if module else [str(Path(sys.executable).with_name("xjobs"))]
    return subprocess.run(
        [*start, *arguments], capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )


def change(dsn: str, text: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(text.encode())


def assert_failed(result: Result, *parts: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert "Traceback" not in result.stderr
    assert SECRET not in result.stderr
    for part in parts:
        assert part in result.stderr


# --- print, help and version ---------------------------------------------------------------------


@pytest.mark.parametrize("module", [True, False], ids=["python -m xjobs.cli", "xjobs"])
def test_print_is_the_schema(module: bool) -> None:
    done = run_process("schema", "print", module=module)
    assert (done.returncode, done.stdout, done.stderr) == (0, SQL_JOBS_TABLE, "")


def test_print_needs_no_database_library() -> None:
    code = """
        import sys
        from click.testing import CliRunner
        from xjobs.cli import command
        for arguments in (["--help"], ["schema", "--help"], ["schema", "print"]):
            assert CliRunner().invoke(command, arguments).exit_code == 0
        print(sorted({"psycopg", "rich", "asyncio", "pytest", "msgspec"} & sys.modules.keys()))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_version() -> None:
    assert run("--version").stdout == f"xjobs {version('pytest-xjobs')}\n"


def test_help_names_the_groups_without_importing_them() -> None:
    code = """
        import sys
        from click.testing import CliRunner
        from xjobs.cli import command
        assert "  schema  Print, install and check" in CliRunner().invoke(command, ["--help"]).stdout
        assert "xjobs.cli.schema" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


@pytest.mark.parametrize("arguments", [["nonsense"], ["schema", "nonsense"], ["schema", "check", "--nonsense"]])
def test_usage_errors_exit_with_2(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


# --- install and check ---------------------------------------------------------------------------


def test_install_then_check(dsn: str) -> None:
    before = run("schema", "check", "--dsn", dsn)
    assert before.exit_code == 1
    assert "  missing table x_jobs\n" in before.stdout
    assert "Run `xjobs schema install`" in before.stdout
    for _ in range(2):
        installed = run("schema", "install", "--dsn", dsn)
        assert (installed.exit_code, installed.stderr) == (0, "")
        assert "installed in schema public" in installed.stdout
        assert "dbname command_case" in installed.stdout
    after = run("schema", "check", "--dsn", dsn)
    assert (after.exit_code, after.stderr) == (0, "")


def test_check_lists_what_differs_and_leaves_it(dsn: str) -> None:
    run("schema", "install", "--dsn", dsn)
    change(dsn, "drop index x_jobs_run_idx; alter table x_jobs alter attempt set default 1; create table mine (id int)")
    for _ in range(2):
        result = run("schema", "check", "--dsn", dsn)
        assert result.exit_code == 1
        lines = [line for line in result.stdout.splitlines() if line.startswith("  ")]
        assert lines == ["  column x_jobs.attempt: default 1, expected 0", "  missing index x_jobs_run_idx"]
        assert "Run `xjobs schema install` to add what is missing." in result.stdout
        assert "alter table" in result.stdout


def test_the_schema_is_the_first_of_the_path(dsn: str) -> None:
    change(dsn, "create schema app")
    in_app = f"{dsn} options='-c search_path=app,public'"
    assert "in schema app" in run("schema", "install", "--dsn", in_app).stdout
    assert run("schema", "check", "--dsn", in_app).exit_code == 0
    assert run("schema", "check", "--dsn", dsn).exit_code == 1


def test_the_environment_names_the_database(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", dsn)
    assert run("schema", "install").exit_code == 0
    monkeypatch.setenv("XJOBS_DSN", f"{dsn} dbname=nowhere")
    assert_failed(run("schema", "check"), "dbname nowhere", "from XJOBS_DSN")
    assert run("schema", "check", "--dsn", dsn).exit_code == 0


def test_an_sqlalchemy_url_is_understood(dsn: str, admin: psycopg.Connection) -> None:
    host = admin.info.host.replace("/", "%2F")
    url = f"postgresql+asyncpg://postgres@{host}:{admin.info.port}/command_case"
    assert run("schema", "install", "--dsn", url).exit_code == 0


def test_install_is_all_or_nothing(dsn: str) -> None:
    # The last statement of the schema meets a view of the name that it indexes.
    change(dsn, "create view x_job_counters as select 1 as job")
    assert_failed(run("schema", "install", "--dsn", dsn), "dbname command_case", "SQLSTATE")
    with psycopg.connect(dsn) as connection:
        assert connection.execute("select to_regclass('x_jobs')").fetchone() == (None,)


def test_installers_at_once_wait_for_each_other(dsn: str) -> None:
    command_line = [sys.executable, "-m", "xjobs.cli", "schema", "install", "--dsn", dsn]
    processes = [subprocess.Popen(command_line, stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [process.wait() for process in processes] == [0, 0, 0, 0]


# --- failures ------------------------------------------------------------------------------------


def test_no_database_named() -> None:
    assert_failed(run("schema", "check"), "--dsn", "XJOBS_DSN", "DATABASE_URL")


def test_no_server_there() -> None:
    # Port 1 of this machine: reserved, and nothing listens.
    result = run("schema", "check", "--dsn", f"postgresql://who:{SECRET}@127.0.0.1:1/where")
    assert_failed(result, "after 0.", "host 127.0.0.1, port 1, dbname where, user who", "from --dsn", "check that")


def test_no_traceback_in_a_process() -> None:
    done = run_process("schema", "install", XJOBS_DSN=f"postgresql://who:{SECRET}@127.0.0.1:1/where")
    assert done.returncode == 2
    assert done.stderr.startswith("Error: no connection after ")
    assert done.stderr.count("\n") == 1
    assert SECRET not in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql//who:{SECRET}@127.0.0.1/where",
        f"mysql://who:{SECRET}@127.0.0.1/where",
        f"postgresql://who:{SECRET}%@127.0.0.1/where",
        f"host=h password='{SECRET}",
        f"postgresql://who:{SECRET}@127.0.0.1/where?nonsense=1",
    ],
)
def test_an_unreadable_connection_string_is_not_repeated(text: str) -> None:
    assert_failed(run("schema", "check", "--dsn", text), "--dsn is not a connection string")


@pytest.mark.parametrize("password", [f"first@{SECRET}", f"{SECRET}@second", f"a@{SECRET}@b"])
def test_a_password_with_an_unencoded_separator_is_not_shown(password: str) -> None:
    # libpq takes what follows the first @ for the host.
    result = run("schema", "check", "--dsn", f"postgresql://who:{password}@no.such.host.invalid:1/where")
    assert_failed(result, "no.such.host.invalid, port 1, dbname where, user who")


def test_a_database_that_does_not_exist(database_dsn: str) -> None:
    result = run("schema", "check", "--dsn", f"{database_dsn} dbname=nowhere password={SECRET}")
    assert_failed(result, "dbname nowhere, user postgres", 'database "nowhere" does not exist')


def test_a_role_without_permission(dsn: str, admin: psycopg.Connection) -> None:
    admin.execute("create role limited login")
    try:
        change(dsn, "revoke create on schema public from public")
        limited = dsn.replace("user=postgres", "user=limited")
        assert_failed(
            run("schema", "install", "--dsn", limited),
            "user limited",
            "permission denied for schema public",
            "grant user limited",
        )
        run("schema", "install", "--dsn", dsn)
        assert run("schema", "check", "--dsn", limited).exit_code == 0
    finally:
        admin.execute("drop role limited")


def test_a_read_only_server_is_named_as_such(dsn: str) -> None:
    read_only = f"{dsn} options='-c default_transaction_read_only=on'"
    assert_failed(run("schema", "install", "--dsn", read_only), "read-only transaction", "connect to the primary")


def test_install_waits_for_other_transactions_for_a_while(dsn: str) -> None:
    run("schema", "install", "--dsn", dsn)
    with psycopg.connect(dsn) as other:
        other.execute("lock table x_jobs in access share mode")
        assert_failed(
            run("schema", "install", "--dsn", dsn, "--lock-timeout", "0.2"), "lock timeout", "pg_stat_activity"
        )


# --- the other package ---------------------------------------------------------------------------


def test_the_other_xjobs_is_refused(tmp_path: Path) -> None:
    distribution = tmp_path / "xjobs-9.8.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: xjobs\nVersion: 9.8\n")
    done = run_process("schema", "print", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: the unrelated package xjobs 9.8 is installed in ")
    assert str(tmp_path) in done.stderr
    assert "pip uninstall xjobs && pip install --force-reinstall pytest-xjobs" in done.stderr


def test_the_check_alone_raises_an_import_error(tmp_path: Path) -> None:
    (tmp_path / "xjobs-9.8.dist-info").mkdir()
    (tmp_path / "xjobs-9.8.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: xjobs\nVersion: 9.8\n")
    code = """
        from xjobs.name_clash import NameClash, check_import_name
        try:
            check_import_name()
        except ImportError as error:
            assert type(error) is NameClash and error.name == "xjobs" and error.path
        else:
            raise SystemExit("not refused")
    """
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=environment, check=True)

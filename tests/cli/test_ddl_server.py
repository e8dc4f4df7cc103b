"""The command `xjobs ddl check --server`: what a Postgres is asked, and how the command says that it could not be."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner, Result

from pytest_xjobs.provision import Server
from xjobs.cli import command

SCHEMA = """\
create table if not exists orders (id bigint primary key, state text not null);
create index if not exists orders_open_idx on orders (id) where state = 'open';
"""
RELEASES = Path(__file__).parents[1] / "sql"


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema.sql").write_text(SCHEMA)
    (tmp_path / "wrong.sql").write_text(SCHEMA.replace("orders (id) where", "orders (ids) where"))
    return tmp_path


@pytest.fixture(scope="module")
def dsn(server: Server) -> str:
    return server.dsn(server.maintenance_dbname)


def check(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["ddl", "check", *arguments], prog_name="xjobs")


def test_the_queues_schema_is_right_with_its_statements_and_over_its_releases(dsn: str) -> None:
    releases = [f"--versions={RELEASES / name}" for name in ("seed_schema.sql", "schema_1_2_0.sql")]
    result = check("xjobs.sql:SQL_JOBS_TABLE", "--server", dsn, *releases)
    assert (result.exit_code, result.stderr) == (0, "")


def test_findings_of_a_server_are_shown_with_those_of_the_text(dsn: str) -> None:
    result = check("wrong.sql", "--server", dsn)
    assert result.exit_code == 1
    assert 'wrong.sql:2:1: ddl-refused: Postgres refuses it: column "ids" does not exist' in result.stdout


def test_queries_are_asked_about(dsn: str, directory: Path) -> None:
    (directory / "q.sql").write_text(
        "-- xjobs: uses orders_open_idx\nselect 1 from orders where state = $1;\nselect no"
    )
    result = check("schema.sql", "--queries=q.sql", "--server", dsn, "--format=json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)["findings"]
    assert [(each["source"], each["line"], each["rule"]) for each in found] == [
        ("q.sql", 3, "query-fails"),
        ("schema.sql", 2, "index-unused"),
    ]


def test_files_are_applied_in_order_as_one_schema(dsn: str, directory: Path) -> None:
    (directory / "2.sql").write_text("create index if not exists orders_idx on orders (state, id);\n")
    assert check("schema.sql", "2.sql", "--server", dsn).exit_code == 0
    result = check("2.sql", "schema.sql", "--server", dsn)
    assert "2.sql:1:1: ddl-refused" in result.stdout


def test_versions_and_a_live_database(dsn: str, directory: Path) -> None:
    (directory / "1.sql").write_text(SCHEMA.replace("bigint", "int"))
    result = check("schema.sql", "--server", dsn, "--versions=1.sql", "--live", dsn)
    assert "upgrade-differs: over 1.sql it gives another schema" in result.stdout
    assert "schema-drift: database postgres is not what it says: missing table orders" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["schema.sql", "--rules=index-covered"], "rule index-covered is about what a Postgres answers"),
        (["schema.sql", "--versions=schema.sql"], "--versions is about what a Postgres answers"),
        (["schema.sql", "--live=x"], "--live is about what a Postgres answers"),
        (["--queries=schema.sql", "--server=x"], "--server is asked about a schema"),
        (["schema.sql", "--server=host=127.0.0.1 port=1 password=secret"], "no Postgres answered at"),
        (["schema.sql", "--server=:no dsn"], "the connection string cannot be read"),
        (["schema.sql", "--server=postgresql://me:sec@ret@host/db"], "@"),
    ],
)
def test_what_cannot_be_is_one_message_and_exit_2(arguments: list[str], message: str) -> None:
    result = check(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert "secret" not in result.stderr
    assert "sec@ret" not in result.stderr
    assert isinstance(result.exception, SystemExit)


def test_a_role_that_may_not_make_databases_is_one_message(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create role xjobs_cli_plain login")
        try:
            result = check("schema.sql", "--server", psycopg.conninfo.make_conninfo(dsn, user="xjobs_cli_plain"))
        finally:
            connection.execute("drop role xjobs_cli_plain")
    assert result.exit_code == 2
    assert "role 'xjobs_cli_plain' may not make a scratch database" in result.stderr

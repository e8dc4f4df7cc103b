"""The `xjobs_ddl` fixture: the DDL checks as functions, on both backends, and what their failures say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from inner_run import Inner

from pytest_xjobs import XjobsDdl
from xjobs.ddl import Source, load
from xjobs.ddl.postgres import Pair

ORDERS = """\
create table if not exists orders (id bigint primary key, state text not null, at timestamptz not null default now());
create index if not exists orders_open_idx on orders (at) where state in ('open', 'paid');
"""
OPEN = "select id from orders where state in ('paid', 'open') order by at"
DEPTH = "select state, count(*) from x_jobs where state in ({}) group by state"
COUNTED = "'dead', 'failed', 'ready', 'delayed', 'running', 'suspended'"

# A call that passes, and one that fails, with a part of its message.
CASES: dict[str, tuple[Any, Any, str]] = {
    "assert_clean": (
        lambda ddl: ddl.assert_clean(ORDERS, [OPEN]),
        lambda ddl: ddl.assert_clean(ORDERS.replace("now()", "current_timestamp")),
        "<schema>:1:",
    ),
    "assert_clean of queries": (
        lambda ddl: ddl.assert_clean(ORDERS, pairs=[Pair("orders_open_idx", OPEN, whole=True)], rules=["meaning"]),
        lambda ddl: ddl.assert_clean(ORDERS, pairs=[Pair("orders_open_idx", "select id from orders")]),
        "<schema>:2:28: index-unused: the planner cannot use orders_open_idx for the query",
    ),
    "assert_prepares": (
        lambda ddl: ddl.assert_prepares("select id from orders where at < %(now)s", ddl=ORDERS),
        lambda ddl: ddl.assert_prepares("select id,\n nots from orders", ddl=ORDERS),
        '<query>:2:2: query-fails: Postgres refuses <query>: column "nots" does not exist',
    ),
    "assert_prepares of the queue": (
        lambda ddl: ddl.assert_prepares("select id from x_jobs where run_id = $1"),
        lambda ddl: ddl.assert_prepares("select id from orders"),
        'relation "orders" does not exist',
    ),
    "assert_no_sequential_scan": (
        lambda ddl: ddl.assert_no_sequential_scan("select at from orders where id = $1", ddl=ORDERS),
        lambda ddl: ddl.assert_no_sequential_scan("select at from orders where state = $1", ddl=ORDERS),
        "reads all of orders, to find (state = $1)",
    ),
    "assert_no_sequential_scan of what is refused": (
        lambda ddl: ddl.assert_no_sequential_scan("select name from x_jobs where id = %s"),
        lambda ddl: ddl.assert_no_sequential_scan("select nope from x_jobs"),
        "query-fails",
    ),
    "assert_index_serves": (
        lambda ddl: ddl.assert_index_serves("x_jobs_depth_idx", DEPTH.format(COUNTED), whole=True),
        lambda ddl: ddl.assert_index_serves("x_jobs_depth_idx", DEPTH.format(COUNTED + ", 'done'")),
        "the planner cannot use x_jobs_depth_idx for <query>",
    ),
    "assert_index_serves whole": (
        lambda ddl: ddl.assert_index_serves("x_jobs_depth_idx", DEPTH.format("'ready'")),
        lambda ddl: ddl.assert_index_serves("x_jobs_depth_idx", DEPTH.format("'ready'"), whole=True),
        "x_jobs_depth_idx holds rows that <query> does not read",
    ),
    "assert_index_serves with values": (
        lambda ddl: ddl.assert_index_serves("orders_open_idx", OPEN, ddl=ORDERS, values=[]),
        lambda ddl: ddl.assert_index_serves(
            "orders_open_idx", "select id from orders where state = any(%s)", ddl=ORDERS, values=[["open"]]
        ),
        "in a plan for all parameters",
    ),
    "assert_applies_twice": (
        lambda ddl: ddl.assert_applies_twice(ORDERS),
        lambda ddl: ddl.assert_applies_twice("create table a (id int)"),
        'applied a second time it is refused: relation "a" already exists',
    ),
    "assert_upgrades": (
        lambda ddl: ddl.assert_upgrades(ORDERS.splitlines()[0], "select 1", ddl=ORDERS),
        lambda ddl: ddl.assert_upgrades(ORDERS.replace("bigint", "int"), ddl=ORDERS),
        "over <version> it gives another schema",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_function_passes(xjobs_ddl: XjobsDdl, name: str) -> None:
    CASES[name][0](xjobs_ddl)


@pytest.mark.parametrize("name", CASES)
def test_a_function_fails_with_the_finding(xjobs_ddl: XjobsDdl, name: str) -> None:
    _, call, message = CASES[name]
    with pytest.raises(AssertionError) as caught:
        call(xjobs_ddl)
    assert message in str(caught.value)
    assert "\n  fix: " in str(caught.value)
    assert "\nwhy: " in str(caught.value)


def test_check_answers_findings_and_what_is_ignored(xjobs_ddl: XjobsDdl) -> None:
    findings = xjobs_ddl.check(
        "create table a (at timestamptz default current_timestamp)", ignore={"default-clock": "known"}, rules=["all"]
    )
    assert {"clock-keyword", "reapply-changes", "not-repeatable"} <= {finding.rule for finding in findings}
    assert "default-clock" in {each.finding.rule for each in findings.suppressed}


def test_the_queues_own_schema_is_meant_by_default(xjobs_ddl: XjobsDdl) -> None:
    assert xjobs_ddl.check(rules=["meaning"]) == []
    xjobs_ddl.assert_applies_twice()
    xjobs_ddl.assert_upgrades(Path(__file__).parents[1] / "sql/seed_schema.sql")


def test_a_schema_is_a_text_a_file_or_sources(xjobs_ddl: XjobsDdl, tmp_path: Path) -> None:
    file = tmp_path / "schema.sql"
    file.write_text("create table a (id int)")
    for ddl in (file, load(str(file)), Source("mine", file.read_text())):
        with pytest.raises(AssertionError, match=r"(mine|schema\.sql):1:1: reapply-changes"):
            xjobs_ddl.assert_applies_twice(ddl)


def test_no_drift_compares_with_the_tests_database_as_the_setup_left_it(inner: Inner) -> None:
    inner.file(
        """
        import psycopg

        ORDERS = "create table orders (id bigint primary key, at timestamptz default now())"

        def pytest_xjobs_database_setup(dsn):
            with psycopg.connect(dsn) as connection:
                connection.execute(ORDERS)
                connection.execute("create table alembic_version (id int)")
        """,
        name="conftest",
    )
    inner.file(
        """
        import psycopg, pytest
        from conftest import ORDERS

        def test_the_apps(xjobs_ddl):
            xjobs_ddl.assert_no_drift(ORDERS)

        def test_the_queues(xjobs_ddl):
            xjobs_ddl.assert_no_drift()

        def test_a_drift(xjobs_ddl):
            xjobs_ddl.assert_no_drift(ORDERS.replace("now()", "current_timestamp"))

        def test_another_database(xjobs_ddl, xjobs_server):
            empty = f"host={xjobs_server.host} port={xjobs_server.port} user={xjobs_server.user} dbname=postgres"
            with pytest.raises(AssertionError, match="missing table x_jobs"):
                xjobs_ddl.assert_no_drift(dsn=empty)
        """
    )
    result = inner.run(inner.pg, "--xjobs-backend=memory")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["E *schema-drift: database * is not what it says: column orders.at: default now(),*"])
    # The failure is shown where the test calls, not inside of the plugin.
    result.stdout.no_fnmatch_line("*pytest_xjobs/ddl*")


def test_without_a_server_a_function_that_needs_one_fails_with_the_reason(
    inner: Inner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XJOBS_PG_BIN", str(tmp_path))
    inner.file(
        """
        def test_text(xjobs_ddl):
            assert xjobs_ddl.check("create table a (id int)", rules=["not-repeatable"])

        def test_meaning(xjobs_ddl):
            xjobs_ddl.assert_applies_twice()
        """
    )
    result = inner.run()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["E *no PostgreSQL server found*"])

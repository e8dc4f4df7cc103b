"""The check that asks a server: the queue's own schema, live databases, and what it leaves on the server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pytest_xjobs.clock import SEARCH_PATH, install_time
from pytest_xjobs.provision import Server
from xjobs.ddl import Source, load
from xjobs.ddl.postgres import Pair, check_live
from xjobs.ddl.postgres.queue import SCHEMA, queue_queries
from xjobs.ddl.postgres.scratch import Server as ScratchServer
from xjobs.errors import DdlScratchRefused, DdlSourceInvalid, DdlSyntaxInvalid, DriverUnavailable
from xjobs.sql import statements

RELEASED = Path(__file__).parents[1] / "sql"
VERSIONS = [load(str(RELEASED / name))[0] for name in ("seed_schema.sql", "schema_1_2_0.sql")]
ORDERS = Source(
    "schema.sql",
    "create table orders (\n  id bigint primary key,\n  state text,\n  at timestamptz default now());\n"
    "create index orders_idx on orders (at) where state = 'open';\ncreate sequence orders_seq owned by orders.id;",
)


@pytest.fixture(scope="module")
def dsn(server: Server) -> str:
    return server.dsn(server.maintenance_dbname)


@pytest.fixture
def live(dsn: str) -> Iterator[str]:
    """A database that somebody else filled."""
    with ScratchServer(dsn, "somebody").database() as live:
        yield live


def databases(dsn: str, prefix: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("select datname from pg_database where starts_with(datname, %s)", [prefix]).fetchall()
    return [name for (name,) in rows]


# --- the queue's own schema ----------------------------------------------------------------------


def test_the_queues_schema_and_statements_pass_every_rule(dsn: str, live: str) -> None:
    schema = load(SCHEMA)
    with psycopg.connect(live) as connection:
        connection.execute(schema[0].text.encode())
    findings = check_live(dsn, schema, queue_queries(), versions=VERSIONS, live=live, rules=["all"])
    assert findings == []
    # The one index that is there beside one that does its work, with its reason.
    assert sorted(each.finding.rule for each in findings.suppressed) == ["index-covered", "sequential-scan"]
    assert "x_jobs_claim_idx" in findings.suppressed[0].finding.message


def test_every_statement_of_the_queue_is_asked_about() -> None:
    assert [query.name for query in queue_queries()] == [f"xjobs.sql:{name}" for name in statements()]
    assert sum(not query.may_scan for query in queue_queries()) >= len(statements()) - 1


# --- a live database -----------------------------------------------------------------------------

DRIFTS = {
    "": [],
    "create table alembic_version (id int); create index app_idx on alembic_version (id)": [],
    "alter table orders alter at set default clock_timestamp()": [
        (4, 3, "column orders.at: default clock_timestamp(), expected now()")
    ],
    "alter table orders add extra int": [(1, 14, "unexpected column orders.extra")],
    "alter table orders drop state": [
        (3, 3, "missing column orders.state"),
        (5, 14, "missing index orders_idx"),
    ],
    "drop table orders": [(1, 14, "missing table orders")],
    "drop sequence orders_seq": [(6, 17, "missing sequence orders_seq")],
    "drop index orders_idx": [(5, 14, "missing index orders_idx")],
    "update pg_index set indisvalid = false where indexrelid = 'orders_idx'::regclass": [
        (5, 14, "index orders_idx: valid no, expected yes")
    ],
}


@pytest.mark.parametrize("with_clock", [False, True], ids=["real clock", "test clock"])
@pytest.mark.parametrize("change", DRIFTS, ids=lambda change: change or "nothing")
def test_a_live_database_is_compared_whatever_its_clock(dsn: str, live: str, change: str, with_clock: bool) -> None:
    with psycopg.connect(live, autocommit=True) as connection:
        if with_clock:
            install_time(connection)
            connection.execute(f"set search_path = {SEARCH_PATH}")
        connection.execute(ORDERS.text.encode())
        connection.execute(change.encode())
    expected = sorted(DRIFTS[change])
    findings = check_live(dsn, ORDERS, live=live, rules=["schema-drift"])
    assert [(f.line, f.column) for f in findings] == [(line, column) for line, column, _ in expected]
    for finding, (_, _, text) in zip(findings, expected, strict=True):
        assert finding.message.endswith(f"is not what it says: {text}")


def test_a_default_bound_to_another_clock_is_a_drift_in_a_test_database_too(dsn: str, live: str) -> None:
    with psycopg.connect(live, autocommit=True) as connection:
        install_time(connection)
        connection.execute(f"set search_path = {SEARCH_PATH}")
        connection.execute(ORDERS.text.replace("now()", "current_timestamp").encode())
    (finding,) = check_live(dsn, ORDERS, live=live, rules=["schema-drift"])
    assert finding.message.endswith("column orders.at: default CURRENT_TIMESTAMP, expected now()")


def test_defaults_of_a_test_database_made_outside_of_its_clocks_path_are_found(dsn: str, live: str) -> None:
    with psycopg.connect(live, autocommit=True) as connection:
        connection.execute(ORDERS.text.encode())
        assert check_live(dsn, ORDERS, live=live, rules=["default-clock"]) == []
        install_time(connection)
        (finding,) = check_live(dsn, ORDERS, live=live, rules=["default-clock"])
        assert (finding.line, finding.column) == (4, 3)
        assert finding.message.endswith("takes its default from now(), which no test can move: now()")
        connection.execute(f"set search_path = {SEARCH_PATH}")
        connection.execute("alter table orders alter at set default now()")
    assert check_live(dsn, ORDERS, live=live, rules=["default-clock"]) == []


def test_functions_types_and_views_are_compared_where_they_are_declared(dsn: str, live: str) -> None:
    ddl = (
        "create type mood as enum ('good');\n"
        "create function one(n int) returns int language sql as 'select {}';\n"
        "create view ones as select one(1);"
    )
    with psycopg.connect(live, autocommit=True) as connection:
        connection.execute(ddl.format(1).encode())
        connection.execute("create function two() returns int language sql as 'select 2'")
    assert check_live(dsn, ddl.format(1), live=live, rules=["schema-drift"]) == []
    (finding,) = check_live(dsn, ddl.format(2), live=live, rules=["schema-drift"])
    assert (finding.line, finding.column) == (2, 17)
    assert "function one(n integer): definition" in finding.message


def test_an_invalid_index_of_a_live_database_is_found(dsn: str, live: str) -> None:
    with psycopg.connect(live, autocommit=True) as connection:
        connection.execute(ORDERS.text.encode())
        connection.execute("insert into orders values (1, 'a'), (2, 'a')")
        with pytest.raises(psycopg.errors.UniqueViolation):
            connection.execute("create unique index concurrently orders_state_idx on orders (state)")
    (finding,) = check_live(dsn, ORDERS, live=live, rules=["index-invalid"])
    assert "orders_state_idx" in finding.message


# --- several sources, suppression ----------------------------------------------------------------


def test_sources_are_applied_in_order_each_with_settings_of_its_own(dsn: str) -> None:
    first = Source("1.sql", "select set_config('search_path', '', false);\ncreate table public.a (id int)")
    second = Source("2.sql", "create index a_idx on a (id);\ncreate index b_idx on a (id);")
    (finding,) = check_live(dsn, [first, second], rules=["index-covered"])
    assert (finding.source, finding.line) == ("2.sql", 2)
    (finding,) = check_live(dsn, [second, first])
    assert (finding.rule, finding.source, finding.line) == ("ddl-refused", "2.sql", 1)


def test_a_comment_with_a_reason_suppresses_a_finding_of_the_server(dsn: str) -> None:
    ddl = (
        "create table a (id int);\n-- xjobs: ignore default-clock because reports show it\nalter table a add b date {};"
    )
    source = Source("schema.sql", ddl.format("default current_date"))
    findings = check_live(dsn, source, rules=["default-clock"])
    assert (findings, [each.reason for each in findings.suppressed]) == ([], ["reports show it"])
    findings = check_live(dsn, source, rules=["reapply-changes"], ignore={"reapply-changes": "applied once"})
    assert (findings, [each.reason for each in findings.suppressed]) == ([], ["applied once"])


def test_a_comment_on_a_query_suppresses_what_is_found_in_it(dsn: str) -> None:
    query = Source("q.sql", "-- xjobs: ignore query-fails because the table comes later\nselect 1 from later")
    findings = check_live(dsn, ORDERS, [query], rules=["query-fails"])
    assert (findings, len(findings.suppressed)) == ([], 1)


# --- DDL of all kinds ----------------------------------------------------------------------------

ODD = {
    "copy in": "create table t (a int); copy t from stdin;",
    "copy out": "begin; create table t (a int); copy t to stdout",
    "another schema": "drop schema public cascade; create schema app; create table app.t (a int);"
    "create index on app.t (a)",
    "no transaction": "create table t (a int); create index concurrently i on t (a); vacuum t",
    "settings": "set role pg_monitor; set search_path = ''; create temporary table q (a int)",
    "quoted names": """create table "Ünï.Cöd" ("é'x" int default 1); create index "İ.x" on "Ünï.Cöd" ("é'x")""",
    "partitions": "create table t (a int) partition by list (a); create table u partition of t for values in (1);"
    "create index ti on t (a); create index ui on u (a)",
    "constraints": "create table t (a int primary key, b int references t, exclude using btree (b with =));"
    "create unique index u on t (b); create index x on t (b) include (a); create index y on t using brin (a)",
    "routines": "create function f() returns trigger language plpgsql as $$ begin return new; end $$;"
    "create table t (a int); create trigger g before insert on t for each row execute function f();"
    "create procedure p() language sql begin atomic select 1; end",
    "views": "create view v as select 1 as a; create materialized view m as select a from v; create index on m (a)",
    "types": "create domain d as int check (value > 0); create type r as range (subtype = int);"
    "create type c as (a int, b d); create table t (x d, y r, z c, w int generated always as (x + 1) stored)",
    "nothing": "select 1",
}
ODD_QUERIES = Source(
    "q.sql",
    "vacuum; notify x; begin; set x.y = 1; call nothing(); fetch c; explain select 1; copy t from stdin; "
    "insert into t values (1, $1) on conflict (b) do update set a = 1; select a from t group by a; listen x",
)


@pytest.mark.parametrize("name", ODD)
def test_no_rule_stumbles_over_a_kind_of_ddl(dsn: str, name: str) -> None:
    pairs = [Pair(index, "select a from t where b = $1", whole=True, ordered=True) for index in ("u", '"İ.x"', "ti")]
    findings = check_live(
        dsn, ODD[name], [ODD_QUERIES], pairs, [Source("v", "select 1")], live=dsn, rules=["all"], prefix="left_behind"
    )
    assert {finding.source for finding in findings} <= {"<text>", "q.sql", "the query", "v"}
    assert ("ddl-refused" in {finding.rule for finding in findings}) == name.startswith("copy")
    assert databases(dsn, "left_behind") == []


# --- what is left on the server, and what it refuses ---------------------------------------------


@pytest.mark.parametrize("ddl", ["create table a (id int)", "create tabel", "select pg_sleep(0) from nothing"])
def test_nothing_is_left_on_the_server(dsn: str, ddl: str) -> None:
    check_live(dsn, ddl, pairs=[Pair("i", "select 1")], versions=VERSIONS, prefix="left_behind")
    assert databases(dsn, "left_behind") == []


def test_nothing_is_left_when_a_text_is_no_sql(dsn: str) -> None:
    with pytest.raises(DdlSyntaxInvalid, match=r"v\.sql:1:8"):
        check_live(dsn, "select 1", versions=[Source("v.sql", "select 'open")], prefix="left_behind")
    assert databases(dsn, "left_behind") == []


def test_a_connection_stands_for_its_server_and_is_left_alone(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("create temporary table mine (id int)")
        assert check_live(connection, ORDERS, rules=["query-fails"]) == []
        assert connection.execute("select count(*) from mine").fetchone() == (0,)
        connection.rollback()


def test_a_role_that_may_not_make_databases_is_told_so(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create role xjobs_ddl_plain login")
        try:
            with pytest.raises(DdlScratchRefused, match='run ALTER ROLE "xjobs_ddl_plain" CREATEDB'):
                check_live(make_conninfo(dsn, user="xjobs_ddl_plain"), ORDERS)
            connection.execute("alter role xjobs_ddl_plain createdb")
            # No superuser is needed for any rule.
            plain = make_conninfo(dsn, user="xjobs_ddl_plain")
            assert check_live(plain, load(SCHEMA), queue_queries(), versions=VERSIONS, rules=["all"]) == []
        finally:
            connection.execute("drop role xjobs_ddl_plain")


def test_a_server_that_does_not_answer_is_named_without_its_password() -> None:
    with pytest.raises(DriverUnavailable) as caught:
        check_live("postgresql://me:secret@127.0.0.1:1/nowhere", ORDERS)
    assert "127.0.0.1" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_connection_that_breaks_during_the_check_is_an_error_of_ours(dsn: str) -> None:
    with pytest.raises(DriverUnavailable, match="was lost"):
        check_live(dsn, "create table a (id int); select pg_terminate_backend(pg_backend_pid());")


def test_an_unknown_rule_is_refused(dsn: str) -> None:
    with pytest.raises(DdlSourceInvalid, match="no-such-rule"):
        check_live(dsn, ORDERS, rules=["no-such-rule"])

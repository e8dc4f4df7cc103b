"""The rules that a server is asked about: wrong and right inputs of each, and where a finding points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_xjobs.provision import Server
from xjobs.ddl import RULES, Source
from xjobs.ddl.postgres import Pair, check_live

TABLE = """\
create table if not exists orders (
  id bigint primary key, state text not null, placed_at timestamptz not null default now(), note text);
"""
STATES = "('open', 'paid')"
OPEN = f"create index if not exists orders_open_idx on orders (placed_at) where state in {STATES};\n"
WANTED = f"select id from orders where state in {STATES} order by placed_at"
DUPLICATE = "create table a (id int);"
CLOCK = "create table if not exists t (at timestamptz default {});"


def index(name: str, definition: str, kind: str = "index") -> str:
    return f"create {kind} if not exists {name} on orders {definition};\n"


@dataclass(frozen=True)
class Case:
    """One input: what is checked; a part of the message that is to come, and the line and column if they tell more."""

    ddl: str
    queries: tuple[str, ...] = ()
    pairs: tuple[Pair, ...] = ()
    versions: tuple[str, ...] = ()
    message: str = ""
    at: tuple[int, int] | None = None


def pair(query: str, **options: Any) -> tuple[Pair, ...]:
    return (Pair("orders_open_idx", query, **options),)


WRONG: Mapping[str, list[Case]] = {
    "ddl-refused": [
        Case("create table a (id int);\n\ncreate table b (id no_type);", message='type "no_type"', at=(3, 20)),
        Case("create index i on missing (id);", message='"missing" does not exist'),
        Case("create table é (id int); create table ü (é no_type);", message='type "no_type"', at=(1, 44)),
    ],
    "reapply-changes": [
        Case("create table a (id int);", message='refused: relation "a" already exists'),
        Case(
            "create table if not exists a (id int);\nalter table a add check (id > 0);",
            message="unexpected constraint a.a_id_check1",
        ),
        Case("create table if not exists a (id int);\ncreate index on a (id);", message="unexpected index a_id_idx1"),
    ],
    "upgrade-differs": [
        Case(
            "create table if not exists a (id bigint default 2);",
            versions=("create table a (id int default 1);",),
            message="column a.id: type integer, expected bigint",
            at=(1, 31),
        ),
        Case(TABLE + OPEN, versions=(TABLE + OPEN.replace(", 'paid'", ""),), message="predicate", at=(3, 28)),
        Case(
            "create table a (id int);", versions=("create table a (id int);",), message="over version 0 it is refused"
        ),
        Case(DUPLICATE, versions=("create tabel a ();",), message="this earlier version is refused"),
        Case(TABLE + OPEN, versions=(TABLE + OPEN.replace(" in (", " not in ("),), message="predicate", at=(3, 28)),
    ],
    "query-fails": [
        Case(TABLE, ("select id from orders;\nselect id,\n  nots from orders",), message='"nots"', at=(3, 3)),
        Case(TABLE, ("select id from orders where %s = id and %(b)s = 'é' and nots = 1",), message="nots", at=(1, 57)),
        Case(TABLE, ("select $1 is null",), message="42P18"),
        Case(
            TABLE,
            ("insert into orders (id, state) values (1, 'open') on conflict (note) do nothing",),
            message="no unique or exclusion constraint",
        ),
    ],
    "index-unused": [
        Case(
            TABLE + OPEN,
            pairs=pair("select id from orders where state = $1"),
            message="for the query, in a plan for all parameters; it looks for (state = $1)",
            at=(3, 28),
        ),
        Case(TABLE + OPEN, pairs=pair("select id from orders where state = any($1)", values=[["open"]]), message="all"),
        Case(
            TABLE + OPEN,
            pairs=pair("select id from orders where state in ('open', 'paid', 'sent')"),
            message="cannot use",
        ),
        Case(TABLE + OPEN, pairs=pair("select id from orders where state <> 'sent'"), message="cannot use"),
        Case(TABLE + OPEN, pairs=pair("select id from orders where state = 'open'", whole=True), message="holds rows"),
        Case(TABLE, pairs=pair(WANTED), message="which this schema does not make"),
        Case(TABLE + OPEN, ("-- xjobs: uses orders_open_idx\nselect id from orders",), message="queries 0"),
        Case(
            TABLE + OPEN,
            ("-- xjobs: reads all of orders_open_idx\nselect id from orders where state = 'paid'",),
            message="holds rows that queries 0 does not read",
        ),
        Case(TABLE + OPEN, pairs=pair("select nots from orders"), message="Postgres refuses the query"),
        Case(
            TABLE + OPEN,
            pairs=pair("select id from orders where state = 'open' order by id", ordered=True),
            message="orders_open_idx does not have the order that the query wants",
        ),
        Case(
            TABLE + OPEN,
            ("-- xjobs: uses orders_open_idx in order alone\nselect id from orders where state = 'paid' order by id",),
            message="orders_open_idx does not have the order that queries 0 wants",
        ),
        Case(
            TABLE + OPEN,
            ("-- xjobs: uses orders_open_idx alone\nselect placed_at, id from orders where state = 'paid'",),
            message="orders_open_idx does not hold all that queries 0 reads",
        ),
    ],
    "sequential-scan": [
        Case(TABLE, ("-- xjobs: no sequential scan\nselect id from orders where note = $1",), message="note = $1"),
        Case(
            TABLE,
            ("select 1;\n-- xjobs: no sequential scan\nselect id from orders where note = 'x'",),
            message="queries 0:3 reads all of orders, to find (note = 'x'::text)",
            at=(3, 1),
        ),
    ],
    "default-clock": [
        Case(CLOCK.format("current_timestamp"), message="CURRENT_TIMESTAMP", at=(1, 31)),
        Case(CLOCK.format("localtimestamp(3)"), message="LOCALTIMESTAMP"),
        Case(CLOCK.format("pg_catalog.now()"), message="now()"),
        Case(CLOCK.format("timeofday()::timestamptz"), message="timeofday()"),
        Case(CLOCK.format("'now'"), message="the instant at which the DDL was applied"),
        Case(CLOCK.format("'today'"), message="the instant at which the DDL was applied"),
        Case(CLOCK.format("date_trunc('day', current_date)"), message="CURRENT_DATE"),
        Case(
            "create table if not exists t ();\nalter table t add column if not exists b date default current_date;",
            message="column t.b",
            at=(2, 40),
        ),
    ],
    "index-invalid": [
        Case(
            TABLE + OPEN + "update pg_index set indisvalid = false where indexrelid = 'orders_open_idx'::regclass;",
            message="orders_open_idx",
        ),
    ],
    "index-covered": [
        Case(
            TABLE
            + "create index if not exists a on orders (state);\ncreate index if not exists b on orders (state, id);",
            message="index a holds nothing that is not, in the same order, in b",
            at=(3, 28),
        ),
        Case(
            TABLE + index("a", "(note)") + index("b", "(note)"),
            message="index b is the same as a",
            at=(4, 28),
        ),
        Case(TABLE + index("a", "(id)"), message="index a is the same as orders_pkey"),
        Case(
            TABLE
            + OPEN
            + "create index if not exists b on orders (placed_at, id) where state = 'open' or state = 'paid';\n"
            + f"create index if not exists c on orders (placed_at, note) where state in {STATES};\n",
            message="index orders_open_idx holds nothing that is not, in the same order, in c",
        ),
    ],
}

RIGHT: Mapping[str, list[Case]] = {
    "ddl-refused": [
        Case(TABLE),
        Case("begin;\ncreate table a (id int);\ncommit;"),
        Case("begin; create table a (id int);"),
    ],
    "reapply-changes": [
        Case(TABLE + OPEN),
        Case("create table if not exists a (id int);\ndrop index if exists i;\ncreate index i on a (id);"),
    ],
    "upgrade-differs": [
        Case(TABLE + OPEN, versions=(TABLE + OPEN.replace(STATES, "('paid', 'open')"),)),
        Case(
            "create table if not exists a (id int);\nalter table a add column if not exists b int;",
            versions=("create table a (id int);", "create table a (id int); alter table a add b int;", "select 1"),
        ),
    ],
    "query-fails": [
        Case(TABLE, ("select id from orders where note = %(note)s",)),
        Case(
            TABLE,
            (
                "select id from orders where id = %(id)s or id = %(id)s + %s",
                "select '%s', 7 % 2 from orders where note = :note::text; listen orders",
                "select id % $1 from orders; update orders set note = %s where note like 'a%'",
            ),
        ),
        Case(TABLE, ("insert into orders (id, state) values (1, 'open') on conflict (id) do nothing",)),
    ],
    "index-unused": [
        Case(TABLE + OPEN, pairs=pair(WANTED, whole=True)),
        Case(TABLE + OPEN, pairs=pair(WANTED, whole=True, ordered=True)),
        Case(
            TABLE + OPEN,
            (f"-- xjobs: reads all of orders_open_idx in order alone\n{WANTED.replace('id', 'placed_at', 1)} desc",),
        ),
        Case(
            TABLE + index("orders_open_idx", "(state, placed_at, id)"),
            pairs=pair(
                "select * from (select id from orders where state = 'open' order by placed_at, id limit 5) o"
                " order by id",
                ordered=True,
                alone=True,
            ),
        ),
        Case(TABLE + OPEN, pairs=pair("select id from orders where state in ('paid', 'open')", whole=True)),
        Case(TABLE + OPEN, pairs=pair("select id from orders where state = 'open' and id = $1", values=[7])),
        Case(TABLE + OPEN, pairs=pair("select id from orders where state = any('{paid,open}')", whole=True)),
        Case(
            TABLE + OPEN + "create index if not exists b on orders (state, placed_at);",
            ("-- xjobs: uses orders_open_idx, b\nselect id from orders where state = 'paid' order by placed_at",),
        ),
        Case(
            TABLE + "create unique index if not exists orders_open_idx on orders (note) where state = 'open';",
            pairs=pair(
                "insert into orders (id, state, note) values ($1, 'open', $2) on conflict (note) where state = 'open' "
                "do update set placed_at = excluded.placed_at"
            ),
        ),
        Case(
            "create table if not exists orders (id bigint, state text) partition by range (id);\n"
            "create table if not exists orders_1 partition of orders for values from (1) to (9);\n"
            "create index if not exists orders_open_idx on orders (state) where state = 'open';",
            pairs=pair("select id from orders where state = 'open'"),
        ),
        Case(
            "create table if not exists orders (state text, tags int[]);\n"
            "create index if not exists orders_open_idx on orders using gin (tags) where state = 'open';",
            pairs=pair("select tags from orders where state = 'open' and tags @> array[1]"),
        ),
    ],
    "sequential-scan": [
        Case(TABLE, ("-- xjobs: no sequential scan\nselect note from orders where id = $1",)),
        Case(TABLE, ("select id from orders where note = 'x'",)),
        Case(TABLE, ("-- xjobs: no sequential scan\nselect nots from orders",)),
    ],
    "default-clock": [
        Case(CLOCK.format("now()")),
        Case(CLOCK.format("clock_timestamp() + interval '1 day'")),
        Case(CLOCK.format("statement_timestamp()")),
        Case(CLOCK.format("timezone('utc', now())")),
        Case(CLOCK.format("'infinity'")),
        Case(CLOCK.format("timestamptz '2000-01-01 00:00Z'")),
        Case("create table if not exists t (a text default 'now() or CURRENT_DATE', b int default 1);"),
    ],
    "index-invalid": [Case(TABLE + OPEN)],
    "index-covered": [
        Case(TABLE + OPEN + "create index if not exists b on orders (placed_at, id);"),
        Case(
            TABLE
            + OPEN
            + "create index if not exists b on orders (placed_at desc, id) where state in ('open', 'paid');"
        ),
        Case(
            TABLE + "create unique index if not exists a on orders (note, id);\ncreate unique index b on orders (note);"
        ),
        Case(
            TABLE
            + index("a", "(note)")
            + index("b", "(note text_pattern_ops, id)")
            + index("c", '(note collate "C", id)')
            + index("d", "using hash (note)")
            + index("e", "((lower(note)))")
            + index("f", "(note) include (state) where id > 0"),
        ),
    ],
}


def sources(texts: tuple[str, ...], name: str) -> list[Source]:
    return [Source(f"{name} {number}", text) for number, text in enumerate(texts)]


@pytest.fixture(scope="module")
def dsn(server: Server) -> str:
    return server.dsn(server.maintenance_dbname)


def found(dsn: str, case: Case, rule: str) -> Any:
    return check_live(
        dsn,
        Source("schema.sql", case.ddl),
        sources(case.queries, "queries"),
        case.pairs,
        sources(case.versions, "version"),
        rules=[rule],
    )


def cases(table: Mapping[str, list[Case]]) -> list[Any]:
    return [pytest.param(rule, case, id=f"{rule}-{n}") for rule, each in table.items() for n, case in enumerate(each)]


def test_every_rule_has_wrong_and_right_inputs() -> None:
    rules = {rule.id for rule in RULES.values() if rule.kind == "postgres"}
    # The live database of the drift is made by the tests below.
    assert WRONG.keys() == RIGHT.keys() == rules - {"schema-drift"}


@pytest.mark.parametrize(("rule", "case"), cases(WRONG))
def test_a_wrong_input_is_found_where_it_is(dsn: str, rule: str, case: Case) -> None:
    findings = found(dsn, case, rule)
    assert findings
    first = next((finding for finding in findings if case.message in finding.message), None)
    assert first is not None, findings
    assert {finding.rule for finding in findings} == {rule}
    if case.at is not None:
        assert (first.line, first.column) == case.at, first


@pytest.mark.parametrize(("rule", "case"), cases(RIGHT))
def test_a_right_input_is_not(dsn: str, rule: str, case: Case) -> None:
    assert found(dsn, case, rule) == []

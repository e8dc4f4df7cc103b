"""The schema: the rules of its text, and what Postgres makes of it however it is applied."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from xjobs.catalog import Catalog, expected_catalog, read_catalog
from xjobs.errors import TransactionAborted
from xjobs.sql import SQL_JOBS_TABLE

HERE = Path(__file__).parent
SEED = (HERE / "seed_schema.sql").read_text(encoding="utf-8")
RELEASE_1_2_0 = (HERE / "schema_1_2_0.sql").read_text(encoding="utf-8")
OWN_INDEXES = [  # with their reasons in docs/decisions/0002 and 0010
    "x_job_events_match_idx",
    "x_job_steps_waiting_idx",
    "x_jobs_lease_idx",
    "x_jobs_order_idx",
]
ROOMY_INDEXES = ["x_jobs_name_tenant_idempotency_live_idx", "x_jobs_run_idx"]
TABLES = [
    "x_jobs",
    "x_job_steps",
    "x_backfills",
    "x_outbox",
    "x_scheduler_state",
    "x_scheduler_leader",
    "x_job_leases",
    "x_job_events",
    "x_job_pauses",
    "x_job_workers",
    "x_job_counters",
]

Connection = psycopg.Connection[Any]


# --- the text ------------------------------------------------------------------------------------


def naive_split(text: str) -> list[str]:
    """What installers make of a schema that split on every `;` and drop comment lines and what holds only those."""
    code = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    return [chunk.strip() for chunk in code.split(";") if chunk.strip()]


def comments() -> list[str]:
    return [line for line in SQL_JOBS_TABLE.splitlines() if "--" in line]


def test_comments_are_whole_lines_without_separator_and_quote() -> None:
    for line in comments():
        assert line.startswith("--")
        assert ";" not in line
        assert "'" not in line


def test_quotes_are_even_and_not_by_dollars() -> None:
    assert SQL_JOBS_TABLE.count("'") % 2 == 0
    assert "$$" not in SQL_JOBS_TABLE


def test_every_chunk_is_one_statement_that_may_be_applied_again() -> None:
    form = re.compile(
        r"create table if not exists \w+ \(.*\)"
        r"|create (unique )?index if not exists \w+ on \w+ \(.*"
        r"|alter table \w+ add column if not exists \w+ .+"
        r"|drop index if exists \w+"
    )
    for chunk in naive_split(SQL_JOBS_TABLE):
        assert form.fullmatch(chunk), chunk
        assert chunk.count("(") == chunk.count(")")
        assert chunk.count("'") % 2 == 0


def test_tables_come_in_their_order() -> None:
    assert re.findall(r"create table if not exists (\w+)", SQL_JOBS_TABLE) == TABLES


def test_shipped_create_texts_are_never_edited() -> None:
    def creates(text: str) -> dict[str, str]:
        chunks = [chunk for chunk in naive_split(text) if chunk.startswith("create table")]
        return {chunk.split()[5]: re.sub(r"\s+", "", chunk) for chunk in chunks}

    ours = creates(SQL_JOBS_TABLE)
    assert ours == creates(SEED)
    assert creates(RELEASE_1_2_0).items() <= ours.items()


def test_superseded_indexes_are_dropped_before_their_successor() -> None:
    chunks = naive_split(SQL_JOBS_TABLE)
    successor = next(n for n, chunk in enumerate(chunks) if chunk.startswith("create unique index"))
    drops = [n for n, chunk in enumerate(chunks) if chunk.startswith("drop index")]
    assert len(drops) == 2
    assert max(drops) < successor


def test_nothing_but_the_keys_is_enforced_by_the_database() -> None:
    code = "\n".join(naive_split(SQL_JOBS_TABLE)).lower()
    assert not re.search(r"\b(references|foreign key|check|trigger|create type)\b", code)


def test_the_statements_are_the_seeds_and_our_own_indexes() -> None:
    ours, seeds = naive_split(SQL_JOBS_TABLE), naive_split(SEED)
    roomy = " with (fillfactor = 50)"  # how an index is stored is not what it is
    assert [chunk.replace(roomy, "") for chunk in ours if not any(index in chunk for index in OWN_INDEXES)] == seeds
    assert len(ours) == len(seeds) + len(OWN_INDEXES)


# --- on Postgres ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def connection(database_dsn: str) -> Iterator[Connection]:
    with psycopg.connect(database_dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def schema(connection: Connection) -> Iterator[str]:
    """An empty schema, first in the search_path."""
    name = "case_schema"
    connection.execute(f"create schema {name}")
    connection.execute(f"set search_path = {name}")
    yield name
    if connection.info.transaction_status is not TransactionStatus.IDLE:
        connection.rollback()
    connection.execute("reset search_path")
    connection.execute("set client_min_messages = warning")
    connection.execute(f"drop schema {name} cascade")
    connection.execute("reset client_min_messages")


def apply(connection: Connection, text: str) -> None:
    connection.execute(text.encode())


@pytest.fixture
def installed(connection: Connection, schema: str) -> str:
    apply(connection, SQL_JOBS_TABLE)
    return schema


def test_catalog_is_the_seeds_and_one_index(connection: Connection, schema: str) -> None:
    apply(connection, SEED)
    seed = read_catalog(connection, schema)
    assert list(seed.tables) != []
    assert seed.difference(expected_catalog(connection)) == [f"missing index {index}" for index in OWN_INDEXES]
    assert expected_catalog(connection).difference(seed) == [f"unexpected index {index}" for index in OWN_INDEXES]


def test_expected_catalog_holds_what_the_schema_says(connection: Connection) -> None:
    expected = expected_catalog(connection)
    assert sorted(expected.tables) == sorted(TABLES)
    assert set(expected.indexes) == set(re.findall(r"index if not exists (\w+)", SQL_JOBS_TABLE))
    assert expected.columns["x_jobs.attempt"].default == "0"
    assert expected.columns["x_jobs.run_at"].default == "now()"
    assert expected.columns["x_jobs.run_at"].type == "timestamp with time zone"
    assert expected.indexes["x_jobs_created_idx"].keys == ("created_at DESC", "id DESC")
    assert expected.constraints["x_job_steps.x_job_steps_pkey"].definition == "PRIMARY KEY (run_id, name)"
    assert (expected.sequences, expected.triggers, expected.types, expected.functions) == ({}, {}, {}, {})


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param([SQL_JOBS_TABLE], id="whole"),
        pytest.param([SQL_JOBS_TABLE, SQL_JOBS_TABLE], id="twice"),
        pytest.param(naive_split(SQL_JOBS_TABLE), id="split"),
        pytest.param(naive_split(SQL_JOBS_TABLE) * 2, id="split twice"),
        pytest.param([RELEASE_1_2_0, SQL_JOBS_TABLE], id="over 1.2.0"),
        pytest.param([SEED, SQL_JOBS_TABLE], id="over the seed"),
    ],
)
def test_every_way_to_apply_it_gives_one_catalog(connection: Connection, schema: str, texts: list[str]) -> None:
    for text in texts:
        apply(connection, text)
    found, expected = read_catalog(connection, schema), expected_catalog(connection)
    assert found.difference(expected) == []
    assert found == expected


def test_claims_find_room_next_to_the_entries_of_their_rows(connection: Connection, installed: str) -> None:
    roomy = "select relname from pg_class where relnamespace = %s::regnamespace and 'fillfactor=50' = any(reloptions)"
    assert sorted(name for (name,) in connection.execute(roomy, [installed])) == ROOMY_INDEXES


def test_how_full_pages_are_is_the_administrators_choice(connection: Connection, installed: str) -> None:
    connection.execute("alter index x_jobs_run_idx reset (fillfactor)")
    connection.execute("alter index x_jobs_claim_idx set (fillfactor = 70, deduplicate_items = off)")
    assert read_catalog(connection, installed) == expected_catalog(connection)


# What somebody did to an installed schema, and the one line that tells it.
MUTATIONS = {
    "alter table x_jobs alter attempt set default 1": "column x_jobs.attempt: default 1, expected 0",
    "alter table x_jobs alter claims type bigint": "column x_jobs.claims: type bigint, expected integer",
    "alter table x_jobs alter queue drop not null": "column x_jobs.queue: not null no, expected yes",
    'alter table x_jobs alter last_error type text collate "C"': (
        "column x_jobs.last_error: collation C, expected none"
    ),
    "alter table x_jobs drop column claims": "missing column x_jobs.claims",
    "alter table x_jobs add column extra text": "unexpected column x_jobs.extra",
    "drop table x_outbox": "missing table x_outbox",
    "create table x_more (id int primary key)": "unexpected table x_more",
    "alter table x_jobs set unlogged": "table x_jobs: persistence unlogged, expected permanent",
    "alter table x_job_leases drop constraint x_job_leases_pkey": ("missing constraint x_job_leases.x_job_leases_pkey"),
    "drop index x_jobs_run_idx": "missing index x_jobs_run_idx",
    "create index x_more_idx on x_jobs (name)": "unexpected index x_more_idx",
    """drop index x_jobs_claim_idx;
       create index x_jobs_claim_idx on x_jobs (queue, run_at) where state = 'ready'""": (
        "index x_jobs_claim_idx: predicate (state = 'ready'::text), expected "
        "(state = ANY (ARRAY['ready'::text, 'delayed'::text, 'suspended'::text]))"
    ),
    """drop index x_jobs_created_idx;
       create index x_jobs_created_idx on x_jobs (created_at, id desc)""": (
        "index x_jobs_created_idx: keys (created_at, id DESC), expected (created_at DESC, id DESC)"
    ),
    """drop index x_jobs_name_tenant_idempotency_live_idx;
       create index x_jobs_name_tenant_idempotency_live_idx
           on x_jobs (name, (coalesce(tenant_id, '')), idempotency_key)
           where state in ('ready', 'delayed', 'running', 'suspended')""": (
        "index x_jobs_name_tenant_idempotency_live_idx: unique no, expected yes"
    ),
    """drop index x_jobs_run_idx;
       create index x_jobs_run_idx on x_jobs using hash (run_id)""": (
        "index x_jobs_run_idx: definition CREATE INDEX x_jobs_run_idx ON x_jobs USING hash (run_id), "
        "expected CREATE INDEX x_jobs_run_idx ON x_jobs USING btree (run_id)"
    ),
    "update pg_index set indisvalid = false where indexrelid = 'x_jobs_run_idx'::regclass": (
        "index x_jobs_run_idx: valid no, expected yes"
    ),
    "create sequence x_numbers": "unexpected sequence x_numbers",
    "create type x_mood as enum ('good')": "unexpected type x_mood",
    "create function x_one() returns int language sql as 'select 1'": "unexpected function x_one()",
    "create trigger x_noise before update on x_jobs execute function suppress_redundant_updates_trigger()": (
        "unexpected trigger x_jobs.x_noise"
    ),
}


@pytest.mark.parametrize(("mutation", "line"), MUTATIONS.items(), ids=MUTATIONS.values())
def test_a_change_is_reported(connection: Connection, installed: str, mutation: str, line: str) -> None:
    apply(connection, mutation)
    assert read_catalog(connection, installed).difference(expected_catalog(connection)) == [line]


def test_objects_of_the_app_are_not_read(connection: Connection, installed: str) -> None:
    before = read_catalog(connection, installed)
    apply(
        connection,
        """
        create table app_orders (id int generated always as identity primary key, job uuid references x_jobs);
        create index app_idx on x_jobs (last_error);
        alter table x_jobs add constraint app_check check (attempt >= 0);
        create table xyz (id int);
        """,
    )
    assert read_catalog(connection, installed) == before
    everything = read_catalog(connection, installed, prefix="")
    assert {"app_orders", "xyz", "x_jobs"} <= everything.tables.keys()
    assert everything.columns["app_orders.id"].identity == "always"
    assert everything.sequences["app_orders_id_seq"].owner == "app_orders.id"
    assert everything.constraints["app_orders.app_orders_job_fkey"].definition == (
        "FOREIGN KEY (job) REFERENCES x_jobs(id)"
    )


# An object that is not the queue's, a change of it, and the line that tells it.
CHANGES = {
    "type": (
        "create type x_mood as enum ('good', 'bad')",
        "alter type x_mood add value 'so so' before 'bad'",
        "type x_mood: labels (good, so so, bad), expected (good, bad)",
    ),
    "function": (
        "create function x_one(n int) returns int language sql as 'select 1'",
        "create or replace function x_one(n int) returns int language sql as 'select 2'",
        "function x_one(n integer): definition ",
    ),
    "view": (
        "create view x_names as select name from x_jobs",
        "create or replace view x_names as select queue as name from x_jobs",
        "table x_names: query ",
    ),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_of_a_type_a_function_or_a_view_is_reported(connection: Connection, installed: str, kind: str) -> None:
    make, change, line = CHANGES[kind]
    apply(connection, make)
    before = read_catalog(connection, installed)
    assert before.difference(before) == []
    apply(connection, change)
    (found,) = read_catalog(connection, installed).difference(before)
    assert found.startswith(line)


def test_what_an_extension_brings_is_not_read(connection: Connection, schema: str) -> None:
    try:
        connection.execute(f"create extension hstore schema {schema}")
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("this server comes without hstore")
    assert read_catalog(connection, schema, prefix="") == Catalog()


def test_a_schema_that_is_not_there_is_empty(connection: Connection) -> None:
    assert read_catalog(connection, "no_such_schema") == Catalog()


@pytest.mark.parametrize("name", ["other", "Mixed Case", 'quo"te', "pub"])
def test_texts_do_not_hold_the_schemas_name(connection: Connection, installed: str, name: str) -> None:
    """Nor does a literal that looks like it lose anything."""
    make = """
        create type x_mood as enum ('good');
        create sequence x_seq;
        create function x_one() returns int language sql immutable as 'select 1';
        create table x_a (
            mood x_mood default 'good', n bigint default nextval('x_seq'), one int default x_one(),
            note text default {literal}, double int generated always as (x_one() * 2) stored);
        create index x_a_idx on x_a (x_one()) where mood = 'good' and note <> {literal};
    """
    with connection.transaction(force_rollback=True):
        catalogs = []
        for schema in (name, "twin"):
            connection.execute(sql.SQL("create schema {}").format(sql.Identifier(schema)))
            connection.execute(sql.SQL("set local search_path = {}").format(sql.Identifier(schema)))
            connection.execute(sql.SQL(make).format(literal=sql.Literal("it's pub.x, other.y")))
            catalogs.append(read_catalog(connection, schema))
    assert catalogs[0] == catalogs[1]
    columns = catalogs[0].columns
    assert columns["x_a.mood"].type == "x_mood"
    assert columns["x_a.mood"].default == "'good'::x_mood"
    assert columns["x_a.n"].default == "nextval('x_seq'::regclass)"
    assert columns["x_a.one"].default == "x_one()"
    assert columns["x_a.note"].default == "'it''s pub.x, other.y'::text"
    assert columns["x_a.double"].generated == "(x_one() * 2)"


def test_reading_does_not_depend_on_the_path(connection: Connection, installed: str) -> None:
    paths = [installed, "pg_catalog", f"pg_catalog, {installed}", "''"]
    catalogs = []
    for path in paths:
        connection.execute(f"set search_path = {path}")
        catalogs.append(read_catalog(connection, installed))
    assert all(catalog == catalogs[0] for catalog in catalogs)


@pytest.mark.parametrize("read", [lambda c: read_catalog(c, "case_schema"), expected_catalog], ids=["read", "expected"])
def test_an_open_transaction_goes_on_as_it_was(
    connection: Connection, database_dsn: str, schema: str, read: Any
) -> None:
    with psycopg.connect(database_dsn, row_factory=dict_row, cursor_factory=psycopg.RawCursor) as other:
        other.execute(f"set local search_path = {schema}")
        other.execute("create table mine (id int)")
        notices: list[str] = []
        other.add_notice_handler(lambda diagnostic: notices.append(str(diagnostic.message_primary)))
        read(other)
        assert other.info.transaction_status is TransactionStatus.INTRANS
        assert other.execute("show search_path").fetchone() == {"search_path": schema}
        assert other.execute("show client_min_messages").fetchone() == {"client_min_messages": "notice"}
        assert other.execute("select count(*) from mine").fetchone() == {"count": 0}
        assert notices == []
        assert connection.execute("select to_regclass('mine')").fetchone() == (None,)
        other.rollback()


@pytest.mark.parametrize("autocommit", [True, False])
def test_an_idle_connection_stays_idle(database_dsn: str, autocommit: bool) -> None:
    with psycopg.connect(database_dsn, autocommit=autocommit) as other:
        read_catalog(other)
        expected_catalog(other)
        assert other.info.transaction_status is TransactionStatus.IDLE
        assert other.execute("show search_path").fetchone() == ('"$user", public',)
        assert other.execute("select count(*) from pg_namespace where nspname like 'xjobs%'").fetchone() == (0,)


def test_a_failed_transaction_is_refused(database_dsn: str) -> None:
    with psycopg.connect(database_dsn) as other:
        with pytest.raises(psycopg.errors.DivisionByZero):
            other.execute("select 1 / 0")
        for read in (read_catalog, expected_catalog):
            with pytest.raises(TransactionAborted):
                read(other)
        other.rollback()


def test_the_virtual_clock_reads_as_the_real_one_on_request(connection: Connection, schema: str) -> None:
    with connection.transaction(force_rollback=True):
        connection.execute("create schema xjobs_time")
        connection.execute(
            "create function xjobs_time.now() returns timestamptz language sql stable as 'select pg_catalog.now()'"
        )
        connection.execute(f"set local search_path = {schema}, xjobs_time, pg_catalog")
        apply(connection, SQL_JOBS_TABLE)
        expected = expected_catalog(connection)
        as_is = read_catalog(connection, schema)
        assert as_is.columns["x_jobs.run_at"].default == "xjobs_time.now()"
        assert "column x_jobs.run_at: default xjobs_time.now(), expected now()" in as_is.difference(expected)
        assert read_catalog(connection, schema, normalise_clock=True) == expected


def test_a_role_that_may_not_create_schemas_gets_the_same_answer(connection: Connection) -> None:
    expected = expected_catalog(connection)
    with connection.transaction(force_rollback=True):
        connection.execute("create role x_reader")
        connection.execute("set local role x_reader")
        with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
            connection.execute("create schema not_allowed")
        assert expected_catalog(connection) == expected

"""The plans of the queue's statements: which indexes they use, whatever the table holds and statistics say.

`benchmarks/claim_scale.py` measures the same at a million rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql as compose

import xjobs.sql
from pytest_xjobs.provision import Server
from xjobs.drivers.postgres import connect
from xjobs.drivers.session import SETTINGS
from xjobs.sql import SQL_JOBS_TABLE, Statement, statements

LIMIT = 100
MANY, FEW = 20_000, 1_000

FILL = """
insert into x_jobs (id, name, queue, input, idempotency_key, run_id, state, run_at, visible_at, claimed_by)
select lpad(to_hex(%(first)s + n), 32, '0')::uuid, 'noop', (array['a', 'b', 'c'])[1 + n %% %(queues)s::int], '{}',
       (%(first)s + n)::text, lpad(to_hex(%(first)s + n), 32, '0')::uuid, %(state)s,
       timestamptz '2026-01-01' + n * %(spread)s * interval '1 microsecond',
       case when %(state)s = 'running' then now() + %(lease)s::interval end,
       case when %(state)s = 'running' then 'other' end
  from generate_series(1, %(rows)s) n
"""

Rows = list[tuple[str, int, str]]


@pytest.fixture
def connection(server: Server) -> Iterator[psycopg.Connection[Any]]:
    """A session as the queue opens it, on a database without virtual time: that would change what now() costs."""
    name = compose.Identifier("xjobs_plans")
    with psycopg.connect(server.dsn(server.maintenance_dbname), autocommit=True) as maintenance:
        maintenance.execute(compose.SQL("drop database if exists {} with (force)").format(name))
        maintenance.execute(compose.SQL("create database {}").format(name))
        try:
            with connect(server.dsn("xjobs_plans")) as connection:
                connection.execute(SQL_JOBS_TABLE.encode(), prepare=False)
                yield connection
        finally:
            maintenance.execute(compose.SQL("drop database {} with (force)").format(name))


def fill(connection: psycopg.Connection[Any], rows: Rows, *, spread: int = 1, queues: int = 1) -> None:
    connection.execute("truncate x_jobs")
    first = 0
    for state, count, lease in rows:
        parameters = {"first": first, "queues": queues, "state": state, "spread": spread, "lease": lease, "rows": count}
        connection.execute(FILL, parameters)
        first += count


def plan(connection: psycopg.Connection[Any], statement: Statement, *values: str) -> dict[str, Any]:
    """The generic plan of a statement with what it read; its effect is taken back."""
    with connection.transaction(force_rollback=True):
        connection.execute("deallocate all", prepare=False)
        connection.execute(f"prepare it as {statement}".encode(), prepare=False)
        row = connection.execute(
            f"explain (analyze, buffers, format json) execute it ({', '.join(values)})".encode(), prepare=False
        ).fetchone()
    assert row is not None
    found = json.loads(row[0]) if isinstance(row[0], str) else row[0]
    root: dict[str, Any] = found[0]["Plan"]
    return root


def nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from nodes(child)


def largest_sort(root: dict[str, Any]) -> int:
    """How many rows the largest sort took in."""
    sizes = [
        sum(c["Actual Rows"] * c["Actual Loops"] for c in node["Plans"] if c["Parent Relationship"] == "Outer")
        for node in nodes(root)
        if "Sort" in node["Node Type"]
    ]
    return int(max(sizes, default=0))


def claim(connection: psycopg.Connection[Any], queues: str = "{a}") -> dict[str, Any]:
    return plan(connection, xjobs.sql.SQL_CLAIM, f"'{queues}'", str(LIMIT), "'30 s'", "'w'", "'{}'")


SHAPES: dict[str, tuple[Rows, Rows, dict[str, int]]] = {
    "ready": ([("ready", FEW, "0")], [("ready", MANY, "0")], {}),
    "ready at one instant": ([("ready", FEW, "0")], [("ready", MANY, "0")], {"spread": 0}),
    "ready in three queues": ([("ready", FEW, "0")], [("ready", MANY, "0")], {"queues": 3}),
    "live leases": ([("ready", FEW, "0")], [("ready", FEW, "0"), ("running", MANY, "1 hour")], {}),
    "lapsed leases": ([("running", FEW, "-1 hour")], [("running", MANY, "-1 hour")], {}),
    "finished rows": ([("ready", FEW, "0")], [("ready", FEW, "0"), ("done", MANY, "0")], {}),
}


@pytest.mark.parametrize("analysed", [True, False], ids=["analysed", "never analysed"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_claim_reads_as_much_of_a_large_table_as_of_a_small_one(
    connection: psycopg.Connection[Any], shape: str, analysed: bool
) -> None:
    few, many, options = SHAPES[shape]
    queues = "{a,b,c}" if options.get("queues") else "{a}"
    read = []
    for rows in (few, many):
        fill(connection, rows, **options)
        if analysed:
            connection.execute("analyze x_jobs")
        claim(connection, queues)  # leaves hint bits and dead rows behind, which the next one does not pay for
        root = claim(connection, queues)
        assert largest_sort(root) <= 2 * LIMIT * len(queues.split(","))
        read.append(root["Shared Hit Blocks"] + root["Shared Read Blocks"])
    assert read[1] <= 1.3 * read[0]


BY_ID = {
    "SQL_ACK": "array['{id}'::uuid], 'w', '{{1}}', '{{0}}', true",
    "SQL_NACK": "array['{id}'::uuid], 'w', '{{1}}', '{{ready}}', '{{1 s}}', '{{x}}', '{{x}}', '{{true}}', '{{0}}'",
    "SQL_RENEW": "'w', '30 s', array['{id}'::uuid], '{{1}}', '{{}}', '{{}}', '{{}}'",
    "SQL_HEARTBEAT": "array['{id}'::uuid], 'w', '{{1}}', '30 s'",
}


@pytest.mark.parametrize("name", BY_ID)
def test_a_settle_looks_rows_up_by_their_ids_whatever_ran_when_statistics_were_taken(
    connection: psycopg.Connection[Any], name: str
) -> None:
    fill(connection, [("ready", MANY, "0")])
    connection.execute("analyze x_jobs")
    connection.execute("update x_jobs set state = 'running', claimed_by = 'w', claims = 1, visible_at = now()")
    row = connection.execute("select id from x_jobs limit 1").fetchone()
    assert row is not None
    root = plan(connection, statements()[name], BY_ID[name].format(id=row[0]))
    used = {
        node["Index Name"] for node in nodes(root) if node.get("Relation Name") == "x_jobs" and "Index Name" in node
    }
    assert used == {"x_jobs_pkey"}
    assert root["Shared Hit Blocks"] + root["Shared Read Blocks"] < 100


ENQUEUE = {
    "SQL_ENQUEUE_ONE": "gen_random_uuid(), 'noop', 'a', '{}', 'k', gen_random_uuid(), 3, null, null, null, null, null",
    "SQL_ENQUEUE": "array[gen_random_uuid()], '{false}', '{noop}', '{a}', array['{}'], '{k}',"
    " array[gen_random_uuid()], '{3}', '{null}', '{null}', '{null}', '{null}', '{null}'",
}


@pytest.mark.parametrize("analysed", [True, False], ids=["analysed", "never analysed"])
@pytest.mark.parametrize("name", ENQUEUE)
def test_an_enqueue_asks_the_rows_of_the_present_slot_alone_whether_to_wake(
    connection: psycopg.Connection[Any], name: str, analysed: bool
) -> None:
    fill(connection, [("ready", MANY, "0")])
    connection.execute(
        "update x_jobs set created_at = now() - id_place * interval '1 s' from (select id as of_id,"
        " row_number() over (order by id) as id_place from x_jobs) o where id = o.of_id"
    )
    connection.execute("vacuum x_jobs")
    if analysed:
        connection.execute("analyze x_jobs")
    plan(connection, statements()[name], ENQUEUE[name])
    root = plan(connection, statements()[name], ENQUEUE[name])
    probes = [n for n in nodes(root) if n.get("Index Name") == "x_jobs_created_idx" and n["Actual Loops"]]
    assert [(n["Actual Rows"], n["Actual Loops"]) for n in probes] == [(0, 1)]
    assert root["Shared Hit Blocks"] + root["Shared Read Blocks"] < 120


@pytest.mark.parametrize("name", ENQUEUE)
def test_an_enqueue_in_a_busy_slot_reads_one_row_of_it(connection: psycopg.Connection[Any], name: str) -> None:
    with connection.transaction(force_rollback=True):
        fill(connection, [("ready", FEW, "0")])
        # Rows in each of the slots of the next ten seconds, whichever the statement meets.
        connection.execute(
            "update x_jobs set created_at = date_bin('250 milliseconds', clock_timestamp(), 'epoch')"
            " + (o.place % 40) * interval '250 milliseconds' from (select id as of_id,"
            " row_number() over (order by id) as place from x_jobs) o where id = o.of_id"
        )
        root = plan(connection, statements()[name], ENQUEUE[name])
    probes = [n for n in nodes(root) if n.get("Index Name") == "x_jobs_created_idx" and n["Actual Loops"]]
    assert [(n["Actual Rows"], n["Actual Loops"]) for n in probes] == [(1, 1)]


@pytest.mark.parametrize("rows", [1, 300], ids=["planned when empty", "planned when small"])
def test_a_given_id_is_looked_up_and_not_the_whole_table(connection: psycopg.Connection[Any], rows: int) -> None:
    """Statistics that are out of date had Postgres read every id into a hash."""
    fill(connection, [("ready", rows, "0")])
    connection.execute("vacuum analyze x_jobs")
    values = ENQUEUE["SQL_ENQUEUE"].replace("{false}", "{true}")
    root = plan(connection, xjobs.sql.SQL_ENQUEUE, values)
    looked = [n for n in nodes(root) if n.get("Relation Name") == "x_jobs" and n["Node Type"] != "ModifyTable"]
    assert {n["Index Name"] for n in looked if "Index Cond" not in n} == set()


@pytest.mark.parametrize("key", ["new", "old"])
def test_a_bulk_enqueue_looks_for_holders_only_when_something_was_not_inserted(
    connection: psycopg.Connection[Any], key: str
) -> None:
    connection.execute(
        "insert into x_jobs (id, name, input, idempotency_key, run_id)"
        " values (gen_random_uuid(), 'noop', '{}', 'old', gen_random_uuid())"
    )
    root = plan(connection, xjobs.sql.SQL_ENQUEUE, ENQUEUE["SQL_ENQUEUE"].replace("{k}", f"{{{key}}}"))
    reads = [n for n in nodes(root) if n["Node Type"] == "Function Scan" and n["Alias"].startswith("g")]
    assert sorted(n["Actual Loops"] for n in reads) == [0 if key == "new" else 1, 1]
    assert not [n for n in nodes(root) if n["Node Type"] == "Nested Loop" and n.get("Join Filter")]


READS_THE_TABLE = {
    "SQL_REMOVE_MANY",  # of any state but one, which no partial index is over; an operator's verb
    "SQL_WORKERS",  # all of a table that has a row per process
}


@pytest.mark.parametrize("name", sorted(statements().keys() - READS_THE_TABLE))
def test_every_statement_is_prepared_and_scans_no_table(connection: psycopg.Connection[Any], name: str) -> None:
    fill(connection, [("ready", FEW, "0"), ("done", FEW, "0")])
    statement = statements()[name]
    connection.execute(f"prepare it as {statement}".encode(), prepare=False)
    nulls = ", ".join("null" for _ in statement.parameters)
    row = connection.execute(
        f"explain (format json) execute it{f' ({nulls})' if nulls else ''}".encode(), prepare=False
    ).fetchone()
    assert row is not None
    found = json.loads(row[0]) if isinstance(row[0], str) else row[0]
    scanned = {n.get("Relation Name") for n in nodes(found[0]["Plan"]) if n["Node Type"] == "Seq Scan"}
    assert not {table for table in scanned if table}


def test_a_session_of_ours_has_the_settings(connection: psycopg.Connection[Any]) -> None:
    for setting, value in SETTINGS.items():
        assert connection.execute("select current_setting(%s)", [setting]).fetchone() == (value,)

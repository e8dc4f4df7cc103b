"""What a claim of 100 reads, by the shape of the table: shared buffers, and the largest sort in its plan.

Run: python benchmarks/claim_scale.py [rows]     (1,000,000 by default; takes some minutes)
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg

from pytest_xjobs.provision import Cluster, find_binaries
from xjobs.drivers.postgres import PostgresDriver, connect
from xjobs.queue import Queue
from xjobs.sql import SQL_CLAIM

LIMIT = 100

# Time-ordered ids, as the queue makes them: the sort order of ids is the order of the enqueues.
FILL = """
insert into x_jobs (id, name, queue, input, idempotency_key, run_id, state, run_at, visible_at, claimed_by, attempt,
                    claims, updated_at)
select lpad(to_hex(%(first)s + n), 32, '0')::uuid, 'noop',
       (%(queues)s::text[])[1 + n %% cardinality(%(queues)s::text[])], '{"n": 1}',
       (%(first)s + n)::text, lpad(to_hex(%(first)s + n), 32, '0')::uuid, %(state)s,
       timestamptz '2026-01-01' + n * %(spread)s * interval '1 microsecond',
       case when %(state)s = 'running' then now() + %(lease)s::interval + n * interval '1 microsecond' end,
       case when %(state)s = 'running' then 'other' end, 1, 1, now()
  from generate_series(1, %(rows)s) n
"""


@dataclass(frozen=True)
class Shape:
    name: str
    rows: tuple[tuple[str, int, str], ...]  # state, how many, lease
    spread: int = 1  # microseconds between two run_at
    queues: tuple[str, ...] = ("default",)


def shapes(rows: int) -> Iterator[Shape]:
    three = ("a", "b", "c")
    yield Shape("1,000 ready", (("ready", 1_000, "0"),))
    yield Shape("1,000 ready, one instant", (("ready", 1_000, "0"),), spread=0)
    yield Shape("1,000 ready, three queues", (("ready", 1_000, "0"),), queues=three)
    yield Shape(f"{rows:,} ready", (("ready", rows, "0"),))
    yield Shape(f"{rows:,} ready, one instant", (("ready", rows, "0"),), spread=0)
    yield Shape(f"{rows:,} ready, three queues", (("ready", rows, "0"),), queues=three)
    yield Shape(f"1,000 ready beside {rows:,} done", (("ready", 1_000, "0"), ("done", rows, "0")))
    yield Shape("1,000 ready, 10,000 live leases", (("ready", 1_000, "0"), ("running", 10_000, "1 hour")))
    yield Shape("1,000 ready, 10,000 lapsed leases", (("ready", 1_000, "0"), ("running", 10_000, "-1 hour")))
    yield Shape("1,000 lapsed leases", (("running", 1_000, "-1 hour"),))


def plan(connection: psycopg.Connection[Any], queues: tuple[str, ...]) -> dict[str, Any]:
    """The plan of one claim with what it read; the claim is taken back."""
    text = str(SQL_CLAIM)
    names = {"$1": "text[]", "$2": "int", "$3": "interval", "$4": "text", "$5": "text[]"}
    with connection.transaction(force_rollback=True):
        connection.execute("deallocate all")
        connection.execute(f"prepare claim ({', '.join(names.values())}) as {text}".encode(), prepare=False)
        listed = "{" + ",".join(queues) + "}"
        row = connection.execute(
            f"explain (analyze, buffers, format json)"
            f" execute claim ('{listed}', {LIMIT}, '30 s', 'w', '{{}}')".encode(),
            prepare=False,
        ).fetchone()
    assert row is not None
    found: dict[str, Any] = (json.loads(row[0]) if isinstance(row[0], str) else row[0])[0]["Plan"]
    return found


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def largest_sort(plan: dict[str, Any]) -> int:
    """How many rows the largest sort took in."""
    sizes = [
        sum(
            child["Actual Rows"] * child["Actual Loops"]
            for child in node["Plans"]
            if child["Parent Relationship"] == "Outer"  # and not a CTE, which is listed under the topmost node
        )
        for node in nodes(plan)
        if "Sort" in node["Node Type"]
    ]
    return int(max(sizes, default=0))


def buffers(plan: dict[str, Any]) -> int:
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def fill(connection: psycopg.Connection[Any], shape: Shape) -> None:
    connection.execute("truncate x_jobs")
    first = 0
    for state, rows, lease in shape.rows:
        connection.execute(
            FILL,
            {
                "first": first,
                "queues": list(shape.queues),
                "state": state,
                "spread": shape.spread,
                "lease": lease,
                "rows": rows,
            },
        )
        first += rows
    connection.execute("vacuum analyze x_jobs")


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with Cluster.start(find_binaries()) as cluster:
        dsn = cluster.dsn("postgres")
        Queue(PostgresDriver(dsn)).install_schema()
        print("| shape | buffers | largest sort, rows | ms |\n|---|---|---|---|")
        with psycopg.connect(dsn, autocommit=True) as filler, connect(dsn) as connection:
            for shape in shapes(rows):
                fill(filler, shape)
                plan(connection, shape.queues)
                found = plan(connection, shape.queues)
                print(
                    f"| {shape.name} | {buffers(found)} | {largest_sort(found)} | {found['Actual Total Time']:.1f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()

"""What the order index saves: a claim among many jobs that are due at one instant, with the index and without it.

Run: python benchmarks/claim_order.py [rows]
"""

from __future__ import annotations

import statistics
import sys
import time

import psycopg

from pytest_xjobs.provision import Cluster, find_binaries
from xjobs.drivers.postgres import PostgresDriver
from xjobs.queue import Queue

FILL = """
insert into x_jobs (id, name, queue, input, idempotency_key, run_id, run_at)
select gen_random_uuid(), 'noop', 'default', '{}', n::text, gen_random_uuid(), '2026-01-01 00:00+00'
  from generate_series(1, %s) n
"""


def claim_ms(queue: Queue, limit: int, times: int = 15) -> float:
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        queue.claim(queues=["default"], worker_id="w", limit=limit)
        taken.append((time.perf_counter() - began) * 1000)
    return statistics.median(taken)


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 300_000
    with Cluster.start(find_binaries()) as cluster:
        queue = Queue(PostgresDriver(cluster.dsn("postgres")))
        queue.install_schema()
        with psycopg.connect(cluster.dsn("postgres"), autocommit=True) as connection:
            connection.execute(FILL, [rows])
            connection.execute("analyze x_jobs")
            print(f"{rows:,} jobs due at one instant, ms a claim (median of 15)")
            print("| | claim 1 | claim 100 |\n|---|---|---|")
            print(f"| with x_jobs_order_idx | {claim_ms(queue, 1):.2f} | {claim_ms(queue, 100):.2f} |")
            size = connection.execute("select pg_size_pretty(pg_relation_size('x_jobs_order_idx'))").fetchone()
            connection.execute("drop index x_jobs_order_idx")
            print(f"| without | {claim_ms(queue, 1):.2f} | {claim_ms(queue, 100):.2f} |")
            print(f"size of the index: {size[0] if size else '?'}")


if __name__ == "__main__":
    main()

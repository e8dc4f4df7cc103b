"""What durable runs cost: replaying recorded steps, recording one, and finding an event among a million.

Run: python benchmarks/steps.py [events]     (1,000,000 by default; takes about a minute)
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import psycopg

import xjobs
from pytest_xjobs.provision import Cluster, find_binaries
from xjobs.bridge import run_sync
from xjobs.clocks import process_time
from xjobs.drivers.base import Driver
from xjobs.drivers.memory import MemoryDriver
from xjobs.drivers.postgres import PostgresDriver, connect
from xjobs.operations.steps import StepLog
from xjobs.queue import Queue
from xjobs.signals import RunSignal
from xjobs.sql import SQL_STEP_WAIT, SQL_WAKE_WAITS

DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "autovacuum": "on"}
STEPS = (100, 1_000, 10_000)
ROUNDS = 5
RUNS = 10_000


@xjobs.job(key=xjobs.NO_KEY)
def body() -> None: ...


async def nothing() -> None: ...


def claimed(driver: Driver) -> xjobs.ClaimedJob:
    queue = Queue(driver)
    queue.enqueue(body.call())
    (job,) = queue.claim(queues=["default"], worker_id="w", lease=timedelta(days=1)).jobs
    return job


def log_of(driver: Driver, job: xjobs.ClaimedJob) -> StepLog:
    return StepLog(driver, job, worker_id="w", signal=RunSignal(), clock=process_time)


def timed(work: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    run_sync(work())  # type: ignore[arg-type]
    return time.perf_counter() - began


def replay(name: str, driver: Driver) -> None:
    for count in STEPS:
        job = claimed(driver)
        log = log_of(driver, job)

        async def go(log: StepLog, count: int = count) -> None:
            for number in range(count):
                await log.run(f"s{number}", nothing)

        recording = timed(lambda log=log: go(log))
        took = statistics.median(timed(lambda job=job: go(log_of(driver, job))) for _ in range(ROUNDS))
        print(f"| {name} | {count:,} | {recording / count * 1e6:,.0f} | {took * 1e3:,.1f} | {took / count * 1e6:.1f} |")


def explained(connection: psycopg.Connection[Any], statement: Any, **values: Any) -> tuple[int, float]:
    """Shared buffers and milliseconds of a statement, which is taken back."""
    with connection.transaction(force_rollback=True):
        cursor = psycopg.RawCursor(connection)
        cursor.execute(f"explain (analyze, buffers, format json) {statement}", statement.bind(**values))
        row = cursor.fetchone()
    assert row is not None
    (plan,) = row[0] if not isinstance(row[0], str) else json.loads(row[0])
    return plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"], plan["Execution Time"]


def looks(dsn: str, events: int) -> None:
    driver = PostgresDriver(dsn)
    job = claimed(driver)
    with connect(dsn) as connection:
        connection.execute(
            """
            insert into x_job_events (id, name, payload, correlation_key, published_at, expires_at)
            select gen_random_uuid(), 'paid', '{}', n::text, now() + n * interval '1 microsecond',
                   now() + interval '1 day'
              from generate_series(1, %s) n
            """,
            [events],
        )
        connection.execute(
            """
            insert into x_jobs (id, name, queue, input, idempotency_key, run_id, state, run_at, created_at)
            select lpad(to_hex(n), 32, '0')::uuid, 'waits', 'default', '{}', n::text, lpad(to_hex(n), 32, '0')::uuid,
                   'suspended', now() + interval '7 days', now() - interval '1 day'
              from generate_series(1, %s) n
            """,
            [RUNS],
        )
        connection.execute(
            """
            insert into x_job_steps (run_id, name, status, event, correlation_key, wake_at)
            select lpad(to_hex(n), 32, '0')::uuid, 'w', 'waiting', 'paid', 'other ' || n, now() + interval '7 days'
              from generate_series(1, %s) n
            """,
            [RUNS],
        )
        connection.execute("vacuum analyze x_jobs, x_job_steps, x_job_events")
        wait = {
            "id": job.id,
            "worker_id": "w",
            "claim": job.claims,
            "name": "w",
            "event": "paid",
            "correlation_key": str(events - 1),
            "timeout": timedelta(days=1),
            "required": False,
            "after": None,
        }
        for index in (True, False):
            if not index:
                connection.execute("drop index x_job_events_match_idx")
            buffers, took = explained(connection, SQL_STEP_WAIT, **wait)
            with_ = "with" if index else "without"
            print(f"| a look for one of {events:,} events, {with_} the match index | {buffers:,} | {took:,.2f} |")
            if not index:  # every wait reads every event: fewer of them, or it takes an hour
                connection.execute("delete from x_job_steps where run_id > lpad(to_hex(10), 32, '0')::uuid")
            buffers, took = explained(connection, SQL_WAKE_WAITS, events=["paid"])
            waits = f"{RUNS:,} waits" if index else "10 waits"
            print(f"| waking, {waits}, none to wake, {with_} the match index | {buffers:,} | {took:,.1f} |")


def main() -> None:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    cluster = Cluster.start(find_binaries(), settings=DURABLE)
    try:
        dsn = cluster.dsn("postgres")
        Queue(PostgresDriver(dsn)).install_schema()
        print("| driver | steps | us to record one | ms to replay all | us for each |\n|---|---|---|---|---|")
        replay("memory", MemoryDriver())
        replay("Postgres", PostgresDriver(dsn))
        print("\n| statement | shared buffers | ms |\n|---|---|---|")
        looks(dsn, events)
    finally:
        cluster.stop()


if __name__ == "__main__":
    main()

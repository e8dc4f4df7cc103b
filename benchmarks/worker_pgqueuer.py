"""One worker of pgqueuer for benchmarks/worker.py: `worker_pgqueuer.py DSN DO [N]`, run by a venv that has pgqueuer.

DO is `install`, `fill` (N jobs), `work`, `stamp` (say when each job is picked up) or `send` (N jobs, one now and then).
"""

import asyncio
import sys
import time
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

BATCH = 500


async def main(dsn, do, count):
    connection = await asyncpg.connect(dsn)
    driver = AsyncpgDriver(connection)
    queries = Queries(driver)
    if do == "install":
        await queries.install()
    elif do == "fill":
        await connection.execute("truncate pgqueuer, pgqueuer_log")
        for first in range(0, count, 1_000):
            size = min(1_000, count - first)
            await queries.enqueue(["noop"] * size, [b"1"] * size, [0] * size)
    elif do == "send":
        for _ in range(count):
            await asyncio.sleep(0.3)
            await queries.enqueue("stamp", str(time.time()).encode())
    else:
        worker = PgQueuer(driver)

        @worker.entrypoint("noop")
        async def noop(job):
            pass

        @worker.entrypoint("stamp")
        async def stamp(job):
            print(time.time() - float(job.payload), flush=True)

        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await worker.run(batch_size=BATCH if do == "work" else 10, dequeue_timeout=timedelta(seconds=30))


uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0))

"""The registry of workers: each lists itself for a while and does so again before that has passed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from xjobs import sql
from xjobs.drivers.base import Driver
from xjobs.records import WorkerRow

MAX_IN_FLIGHT = 100
"""How many ids of running jobs a worker lists."""


async def announce(
    driver: Driver,
    *,
    worker_id: str,
    host: str,
    queues: Mapping[str, int],
    in_flight: Sequence[UUID],
    started_at: datetime,
    ttl: timedelta,
    draining: bool,
) -> None:
    """List a worker for `ttl` from now.

    Args:
        driver: the store.
        worker_id: who.
        host: where it runs.
        queues: what it serves, with the slots of each.
        in_flight: the jobs that it runs; the first hundred are listed.
        started_at: since when.
        ttl: how long the row stands.
        draining: whether it takes no more jobs; the first time is kept as `draining_at`.
    """
    await driver.run(
        sql.SQL_WORKER_ANNOUNCE,
        id=worker_id,
        host=host,
        queues=json.dumps(list(queues)),
        concurrency=sum(queues.values()),
        in_flight=json.dumps([str(job_id) for job_id in in_flight[:MAX_IN_FLIGHT]]),
        started_at=started_at,
        ttl=ttl,
        draining=draining,
    )


async def forget(driver: Driver, worker_id: str) -> bool:
    """Take a worker off the list; False when it was not on it."""
    return bool(await driver.run(sql.SQL_WORKER_FORGET, id=worker_id))


async def workers(driver: Driver) -> list[WorkerRow]:
    """The live workers, ordered by start and id. Rows of workers that stopped announcing themselves are deleted."""
    return [WorkerRow(*row) for row in await driver.run(sql.SQL_WORKERS)]

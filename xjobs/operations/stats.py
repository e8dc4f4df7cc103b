"""How many jobs wait, run and failed, by queue."""

from __future__ import annotations

from xjobs import sql
from xjobs.drivers.base import Driver
from xjobs.records import QueueDepth, QueueStats


async def stats(driver: Driver) -> list[QueueStats]:
    """One entry per queue with a live, failed or dead job, ordered by the queue's name."""
    return [QueueStats(*row) for row in await driver.run(sql.SQL_STATS)]


async def scaler_depth(driver: Driver) -> list[QueueDepth]:
    """How much work each unpaused queue has for workers to come, ordered by the queue's name; for autoscaling.

    Due jobs count, and running ones, except those that a live worker holds which is shutting down: it will finish
    them without help. A queue without live jobs is not listed.
    """
    return [QueueDepth(*row) for row in await driver.run(sql.SQL_SCALER_DEPTH)]

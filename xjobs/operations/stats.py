"""How many jobs wait, run and failed, by queue."""

from __future__ import annotations

from xjobs import sql
from xjobs.drivers.base import Driver
from xjobs.records import QueueStats


async def stats(driver: Driver) -> list[QueueStats]:
    """One entry per queue with a live, failed or dead job, ordered by the queue's name."""
    return [QueueStats(*row) for row in await driver.run(sql.SQL_STATS)]

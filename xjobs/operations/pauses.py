"""Pausing queues: from the next claim on, a paused queue is neither claimed nor buried; enqueues still land."""

from __future__ import annotations

from xjobs import sql
from xjobs.drivers.base import Driver
from xjobs.limits import check_text
from xjobs.records import Pause

_QUEUE = "queue"


async def pause_queue(driver: Driver, queue: str) -> list[Pause]:
    """Pause a queue, whether it has jobs or not, and answer all paused ones. A pause that stands keeps its instant.

    Running jobs are not affected; they may renew their leases and settle.

    Raises:
        Invariant: not a queue name.
    """
    await driver.run(sql.SQL_PAUSE, kind=_QUEUE, name=check_text(queue, "queue"))
    return await paused_queues(driver)


async def resume_queue(driver: Driver, queue: str) -> list[Pause]:
    """Resume a queue, paused or not, and answer those that are still paused.

    Raises:
        Invariant: not a queue name.
    """
    await driver.run(sql.SQL_RESUME, kind=_QUEUE, name=check_text(queue, "queue"))
    return await paused_queues(driver)


async def paused_queues(driver: Driver) -> list[Pause]:
    """The paused queues, ordered by name."""
    return [Pause(*row) for row in await driver.run(sql.SQL_PAUSED, kind=_QUEUE)]

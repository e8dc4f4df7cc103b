"""Taking and giving back slots of fleet-wide concurrency limits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from xjobs import sql
from xjobs.drivers.base import Driver


class Request(NamedTuple):
    """A slot that a run wants: at most `limit` of the key are held at a time."""

    key: str
    limit: int
    holder: str


class Slot(NamedTuple):
    """A slot that `holder` took."""

    key: str
    number: int
    holder: str


def holder_of(worker_id: str, job_id: UUID) -> str:
    """Who holds the slot of a job that a worker runs."""
    return f"{worker_id}:{job_id}"


async def acquire(driver: Driver, requests: Sequence[Request], *, ttl: timedelta) -> list[Slot | None]:
    """Take a slot for each request where one is free, in one statement; the answers are in the order of the requests.

    A slot that is held is never given again before it lapses. Among workers that reach for the last one at the same
    time, it may go to none of them.
    """
    taken: list[Slot | None] = [None] * len(requests)
    if not requests:
        return taken
    keys, limits, holders = map(list, zip(*requests, strict=True))
    rows = await driver.run(sql.SQL_SLOT_ACQUIRE, keys=keys, limits=limits, holders=holders, ttl=ttl)
    for position, number in rows:
        request = requests[position - 1]
        taken[position - 1] = Slot(request.key, number, request.holder)
    return taken


async def release(driver: Driver, slots: Sequence[Slot]) -> int:
    """Give slots back and answer how many their holders still had; those of others are left alone."""
    if not slots:
        return 0
    keys, numbers, holders = map(list, zip(*slots, strict=True))
    ((freed,),) = await driver.run(sql.SQL_SLOT_RELEASE, keys=keys, slots=numbers, holders=holders)
    return int(freed)


async def holders(driver: Driver, keys: Iterable[str]) -> list[Slot]:
    """The live slots of the keys, ordered by key and number."""
    return [Slot._make(row) for row in await driver.run(sql.SQL_SLOT_HOLDERS, keys=sorted(set(keys)))]

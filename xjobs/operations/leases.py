"""Keeping the leases of bodies that run, and telling those whose claim is gone that they have to stop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Literal, NamedTuple, cast

from xjobs import sql
from xjobs.drivers.base import Driver
from xjobs.operations.claim import LEASE, heartbeat
from xjobs.operations.slots import Slot
from xjobs.operations.steps import claim_gone
from xjobs.records import ClaimedJob
from xjobs.signals import RunSignal

Standing = Literal["held", "cancelled", "lost"]


class Renewed(NamedTuple):
    """How each lease and each slot stands now, in the order in which they were given."""

    leases: list[Standing]
    slots: list[Standing]


async def renew(
    driver: Driver,
    runs: Iterable[tuple[ClaimedJob, RunSignal]],
    *,
    worker_id: str,
    lease: timedelta | float = LEASE,
) -> None:
    """Renew the leases of all runs in one statement; the signal of one whose claim is gone stops, and says why."""
    running = list(runs)
    kept = await heartbeat(driver, [job for job, _ in running], worker_id=worker_id, lease=lease)
    for job, signal in running:
        if job.id not in kept:
            signal.stop(await claim_gone(driver, job))


async def renew_all(
    driver: Driver, jobs: Sequence[ClaimedJob], slots: Sequence[Slot], *, worker_id: str, lease: timedelta
) -> Renewed:
    """Extend the claims and the slots of a worker that still stand to a full term from now.

    A lapsed lease that nobody took is extended; a lapsed slot is not, since others may count on it being free.
    """
    if not jobs and not slots:
        return Renewed([], [])
    leases = await _renew(driver, jobs, slots, worker_id=worker_id, lease=lease)
    standings, of_slots = leases[: len(jobs)], leases[len(jobs) :]
    lost = [at for at, standing in enumerate(standings) if standing == "lost"]
    if lost:
        # A statement that waited for a cancel has met the row as the cancel left it, but sees no reason. The next does.
        again = await _renew(driver, [jobs[at] for at in lost], [], worker_id=worker_id, lease=lease)
        for at, standing in zip(lost, again, strict=True):
            standings[at] = standing
    return Renewed(standings, of_slots)


async def _renew(
    driver: Driver, jobs: Sequence[ClaimedJob], slots: Sequence[Slot], *, worker_id: str, lease: timedelta
) -> list[Standing]:
    rows = await driver.run(
        sql.SQL_RENEW,
        worker_id=worker_id,
        lease=lease,
        ids=[job.id for job in jobs],
        claims=[job.claims for job in jobs],
        keys=[slot.key for slot in slots],
        slots=[slot.number for slot in slots],
        holders=[slot.holder for slot in slots],
    )
    return [cast("Standing", row[2]) for row in rows]

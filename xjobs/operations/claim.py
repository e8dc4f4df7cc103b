"""Taking due jobs under a lease, and renewing the lease while they run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from xjobs import points, registry, sql
from xjobs.drivers.base import Driver
from xjobs.limits import check_count, check_duration, check_queues, check_text
from xjobs.records import ClaimedJob, maker

LEASE = timedelta(seconds=30)
"""How long a claim lasts when nothing renews it."""


_claimed = maker(ClaimedJob)


class Claimed(NamedTuple):
    """The answer to a claim: `jobs` to run, and `buried` rows whose lease lapsed on their final attempt."""

    jobs: list[ClaimedJob]
    buried: list[ClaimedJob]


_answer = maker(Claimed)


async def claim(
    driver: Driver, *, queues: Iterable[str], worker_id: str, limit: int = 1, lease: timedelta | float = LEASE
) -> Claimed:
    """Take up to `limit` due jobs of the queues, in (run_at, id) order, for `lease`.

    Lapsed leases are taken again as a new attempt; one that lapsed on the final attempt is buried and uses a place of
    the limit. Paused queues are left alone.

    Raises:
        ClaimQueuesEmpty: no queue is named.
        Invariant: a limit below 0 or not whole, or a lease that is not positive and finite.
    """
    duration = check_duration(lease, "lease", low=timedelta(microseconds=1))
    names, count = check_queues(queues), check_count(limit, "limit")
    worker_id = check_text(worker_id, "worker_id")
    return await take(driver, names, worker_id=worker_id, limit=count, lease=duration) if count else Claimed([], [])


async def take(
    driver: Driver, queues: list[str], *, worker_id: str, limit: int = 1, lease: timedelta = LEASE
) -> Claimed:
    """`claim`, with arguments that have been checked; for loops that ask again and again."""
    rows = await driver.run(
        sql.SQL_CLAIM,
        queues=queues,
        limit=limit,
        lease=lease,
        worker_id=worker_id,
        drop_exhausted=registry.dropping(),
    )
    jobs: list[ClaimedJob] = []
    buried: list[ClaimedJob] = []
    for row in rows:
        job = _claimed(row)
        (jobs if job.state == "running" else buried).append(job)
    if "claimed" in points.heard:
        for job in jobs:
            await points.reach("claimed", job=job, worker_id=worker_id)
    return _answer((jobs, buried))


async def heartbeat(
    driver: Driver, jobs: Sequence[ClaimedJob], *, worker_id: str, lease: timedelta | float = LEASE
) -> set[UUID]:
    """Renew the leases of claims that still stand; the ids that are missing from the answer are lost.

    Raises:
        Invariant: a lease that is not positive and finite.
    """
    duration = check_duration(lease, "lease", low=timedelta(microseconds=1))
    if not jobs:
        return set()
    rows = await driver.run(
        sql.SQL_HEARTBEAT,
        ids=[job.id for job in jobs],
        worker_id=worker_id,
        claims=[job.claims for job in jobs],
        lease=duration,
    )
    return {row[0] for row in rows}


async def give_back(driver: Driver, known: Sequence[ClaimedJob], *, queues: list[str], worker_id: str) -> int:
    """Make the jobs ready again that a worker has claimed without knowing, since the answer to its claim was lost.

    Their attempt does not count. To be asked while no claim of this worker is under way; `known` are its claims.
    """
    ((count,),) = await driver.run(
        sql.SQL_GIVE_BACK,
        worker_id=worker_id,
        queues=queues,
        ids=[job.id for job in known],
        claims=[job.claims for job in known],
    )
    return int(count)

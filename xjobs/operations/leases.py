"""Keeping the leases of bodies that run, and telling those whose claim is gone that they have to stop."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from xjobs.drivers.base import Driver
from xjobs.operations.claim import LEASE, heartbeat
from xjobs.operations.steps import claim_gone
from xjobs.records import ClaimedJob
from xjobs.signals import RunSignal


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

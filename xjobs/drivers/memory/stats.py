"""Twins of the statements in sql/stats.sql."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from xjobs.drivers.memory.inspect import live_jobs
from xjobs.drivers.memory.store import Job, Session
from xjobs.states import COUNTED

_COLUMNS = ("ready", "delayed", "running", "suspended", "failed", "dead")


def stats(session: Session) -> list[tuple[Any, ...]]:
    """Twin of SQL_STATS."""
    counts: dict[str, dict[str, int]] = {}
    oldest: dict[str, timedelta] = {}
    for row in session.store.jobs.values():
        job = session.visible(row)
        if job is None or job.state not in COUNTED:
            continue
        bucket = _bucket(job, session)
        of_queue = counts.setdefault(job.queue, dict.fromkeys(_COLUMNS, 0))
        of_queue[bucket] += 1
        if bucket == "ready":
            oldest[job.queue] = max(oldest.get(job.queue, timedelta(0)), session.now - job.run_at)
    return [
        (queue, *counts[queue].values(), oldest.get(queue, timedelta(0)))
        for queue in sorted(counts, key=lambda queue: queue.encode())
    ]


def _bucket(job: Job, session: Session) -> str:
    if job.state in ("ready", "delayed"):
        return "ready" if job.run_at <= session.now else "delayed"
    return job.state


def scaler_depth(session: Session) -> list[tuple[Any, ...]]:
    """Twin of SQL_SCALER_DEPTH."""
    depths: dict[str, int] = {}
    for job in live_jobs(session):
        if not session.paused("queue", job.queue):
            depths[job.queue] = depths.get(job.queue, 0) + _counts(job, session)
    return sorted(depths.items(), key=lambda depth: depth[0].encode())


def _counts(job: Job, session: Session) -> bool:
    """Whether a live row is work for workers to come."""
    if job.state != "running":
        return job.run_at <= session.now
    row = session.store.workers.get(job.claimed_by or "")
    holder = None if row is None else session.visible(row)
    return holder is None or holder.draining_at is None or holder.expires_at <= session.now

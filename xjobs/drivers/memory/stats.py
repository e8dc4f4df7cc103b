"""Twins of the statements in sql/stats.sql."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

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

"""Twins of the statements in sql/inspect.sql."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from heapq import nsmallest
from typing import Any
from uuid import UUID

from msgspec.json import decode

from xjobs.drivers.memory.store import Job, Session
from xjobs.states import LIVE


def job(session: Session, *, id: UUID) -> list[tuple[Any, ...]]:  # noqa: A002 - the parameter of the statement
    """Twin of SQL_JOB."""
    row = session.store.jobs.get(id)
    seen = None if row is None else session.visible(row)
    return [] if seen is None else [_answer(seen)]


def jobs(
    session: Session, *, name: str | None, queue: str | None, state: str | None, limit: int
) -> list[tuple[Any, ...]]:
    """Twin of SQL_JOBS."""
    found = [
        job
        for job in _visible(session)
        if (name is None or job.name == name)
        and (queue is None or job.queue == queue)
        and (state is None or job.state == state)
    ]
    found.sort(key=lambda job: (job.created_at, job.id.int), reverse=True)
    return [_answer(job) for job in found[:limit]]


def waiting(session: Session, *, limit: int) -> list[tuple[Any, ...]]:
    """Twin of SQL_WAITING."""
    pauses = session.store.pauses
    live = [
        (("queue", job.queue) in pauses, _due_at(job), job.id.int, job)
        for job in _visible(session)
        if job.state in LIVE
    ]
    return [
        (job.id, job.name, job.queue, job.state, due, due <= session.now, paused, len(live))
        for paused, due, _, job in nsmallest(limit, live)
    ]


def _visible(session: Session) -> Iterator[Job]:
    for row in session.store.jobs.values():
        seen = session.visible(row)
        if seen is not None:
            yield seen


def _due_at(job: Job) -> datetime:
    return job.run_at if job.visible_at is None else job.visible_at


def _answer(job: Job) -> tuple[Any, ...]:
    return (
        job.id,
        job.name,
        job.queue,
        job.state,
        decode(job.input),
        job.idempotency_key,
        job.run_id,
        job.attempt,
        job.max_attempts,
        job.claims,
        job.run_at,
        job.visible_at,
        job.claimed_by,
        job.last_error,
        job.last_error_stack,
        job.tenant_id,
        job.created_at,
        job.updated_at,
        job.traceparent,
        job.enqueued_by,
        None if job.progress is None else decode(job.progress),
    )

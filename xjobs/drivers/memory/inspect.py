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
    row = session.store.jobs.get(id.int)
    seen = None if row is None else session.visible(row)
    return [] if seen is None else [answer(seen)]


def jobs(
    session: Session,
    *,
    name: str | None,
    queue: str | None,
    state: str | None,
    tenant_id: str | None,
    id_prefix: str | None,
    created_from: datetime | None,
    created_to: datetime | None,
    after_created_at: datetime | None,
    after_id: UUID | None,
    limit: int,
) -> list[tuple[Any, ...]]:
    """Twin of SQL_JOBS."""
    found = _listed(session, name, queue, state, tenant_id, id_prefix, created_from, created_to)
    if after_created_at is not None and after_id is not None:
        cursor = after_created_at, after_id.int
        found = [job for job in found if _newness(job) < cursor]
    found.sort(key=_newness, reverse=True)
    return [answer(job) for job in found[:limit]]


def jobs_before(
    session: Session,
    *,
    name: str | None,
    queue: str | None,
    state: str | None,
    tenant_id: str | None,
    id_prefix: str | None,
    created_from: datetime | None,
    created_to: datetime | None,
    before_created_at: datetime,
    before_id: UUID,
    limit: int,
) -> list[tuple[Any, ...]]:
    """Twin of SQL_JOBS_BEFORE."""
    listed = _listed(session, name, queue, state, tenant_id, id_prefix, created_from, created_to)
    found = [job for job in listed if _newness(job) > (before_created_at, before_id.int)]
    found.sort(key=_newness)
    return [answer(job) for job in reversed(found[:limit])]


def waiting(session: Session, *, limit: int) -> list[tuple[Any, ...]]:
    """Twin of SQL_WAITING."""
    live = [(session.paused("queue", job.queue), _due_at(job), job.id.int, job) for job in live_jobs(session)]
    return [
        (job.id, job.name, job.queue, job.state, due, due <= session.now, paused, len(live))
        for paused, due, _, job in nsmallest(limit, live)
    ]


def visible_jobs(session: Session) -> Iterator[Job]:
    """Every row that a session sees, in the form in which it does."""
    for row in session.store.jobs.values():
        seen = session.visible(row)
        if seen is not None:
            yield seen


def live_jobs(session: Session) -> Iterator[Job]:
    """Every live row that a session sees, without a look at the finished ones, which tests may have many of."""
    store = session.store
    # A row whose key an open transaction has freed may be live for others.
    rows = store.jobs.values() if store.freeing else store.live.values()
    for row in rows:
        seen = session.visible(row)
        if seen is not None and seen.state in LIVE:
            yield seen


def _listed(
    session: Session,
    name: str | None,
    queue: str | None,
    state: str | None,
    tenant_id: str | None,
    id_prefix: str | None,
    created_from: datetime | None,
    created_to: datetime | None,
) -> list[Job]:
    return [
        job
        for job in visible_jobs(session)
        if (name is None or job.name == name)
        and (queue is None or job.queue == queue)
        and (state is None or job.state == state)
        and (tenant_id is None or job.tenant_id == tenant_id)
        and (id_prefix is None or str(job.id).startswith(id_prefix))
        and (created_from is None or job.created_at >= created_from)
        and (created_to is None or job.created_at < created_to)
    ]


def _newness(job: Job) -> tuple[datetime, int]:
    return job.created_at, job.id.int


def _due_at(job: Job) -> datetime:
    return job.run_at if job.visible_at is None else job.visible_at


def answer(job: Job) -> tuple[Any, ...]:
    """All columns of a row, in the order of the statements."""
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

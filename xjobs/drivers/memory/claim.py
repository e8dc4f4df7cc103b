"""Twins of the statements in sql/claim.sql."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from msgspec.json import decode

from xjobs.drivers.memory.due import Due
from xjobs.drivers.memory.store import Counter, Job, Session
from xjobs.errors import WouldBlock

LEASE_LAPSED = "LeaseLapsed: the lease lapsed during the final attempt, its worker is gone or stalled"


def claim(
    session: Session,
    *,
    queues: Sequence[str],
    limit: int,
    lease: timedelta,
    worker_id: str,
    drop_exhausted: Sequence[str],
) -> list[tuple[Any, ...]]:
    """Twin of SQL_CLAIM."""
    store = session.store
    served = [queue for queue in queues if not session.paused("queue", queue)] if store.pauses else queues
    found = _found(session, served, limit)
    exhausted = {job for job in found if job.state == "running" and job.attempt >= job.max_attempts}
    counters = _counters(session, found, {job.name for job in exhausted}) if exhausted else {}
    until = session.now + lease
    for job in found:
        if job in exhausted:
            state = "failed" if job.name in drop_exhausted else "dead"
            session.change(
                job, state=state, visible_at=None, claimed_by=None, last_error_stack=None, last_error=LEASE_LAPSED
            )
            counter = counters[job.name]
            session.keep(counter)
            setattr(counter, state, getattr(counter, state) + 1)
        else:
            session.keep(job)
            job.state = "running"
            job.attempt += 1
            job.claims += 1
            job.claimed_by = worker_id
            job.visible_at = until
            job.updated_at = session.now
            store.order(job)
    return [_answer(job) for job in found]


def _counters(session: Session, found: Sequence[Job], names: set[str]) -> dict[str, Counter]:
    """The counters of the rows to bury; when another transaction counts there, the rows that were found stay."""
    try:
        return session.counters(names)
    except WouldBlock:
        for job in found:
            session.store.order(job)
        raise


def _found(session: Session, queues: Sequence[str], limit: int) -> list[Job]:
    """The due rows of the queues that no other transaction holds, in (run_at, id) order."""
    found: list[Job] = []
    store, in_order = session.store, len(queues) == 1
    for queue in queues:
        waiting = store.waiting.get(queue)
        if waiting is not None:
            found += _take(session, waiting, limit)
        running = store.running.get(queue)
        if running is not None:
            lapsed = _take(session, running, limit)
            found += lapsed
            in_order = in_order and not lapsed
    if not in_order:
        found.sort(key=_order)
        for job in found[limit:]:
            store.order(job)
        del found[limit:]
    return found


def _take(session: Session, rows: Due, limit: int) -> list[Job]:
    """Take out up to `limit` due rows; those that are locked elsewhere stay."""
    taken: list[Job] = []
    held: list[Job] = []
    now = session.now
    while len(taken) < limit:
        job = rows.take(now)
        if job is None:
            break
        (held if session.locked(job) else taken).append(job)
    for job in held:
        session.store.order(job)
    return taken


def _order(job: Job) -> tuple[Any, int]:
    return job.run_at, job.id.int


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
        job.tenant_id,
        job.created_at,
        job.traceparent,
        job.enqueued_by,
        job.last_error,
    )

"""Twins of the statements in sql/claim.sql."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from msgspec.json import decode

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
    store, transaction, now = session.store, session.transaction, session.now
    served = [queue for queue in queues if not session.paused("queue", queue)] if store.pauses else queues
    found, lapsed = _found(session, served, limit)
    exhausted = [job for job in found if job.attempt >= job.max_attempts and job.state == "running"] if lapsed else ()
    counters = _counters(session, found, {job.name for job in exhausted}) if exhausted else {}
    until = now + lease
    for job in found:
        if exhausted and job in exhausted:
            state = "failed" if job.name in drop_exhausted else "dead"
            session.change(
                job, state=state, visible_at=None, claimed_by=None, last_error_stack=None, last_error=LEASE_LAPSED
            )
            counter = counters[job.name]
            session.keep(counter)
            setattr(counter, state, getattr(counter, state) + 1)
        else:
            if transaction is not None:
                session.keep(job)
            job.state = "running"
            job.attempt += 1
            job.claims += 1
            job.claimed_by = worker_id
            job.visible_at = until
            job.updated_at = now
            store.running[job.queue].put(until, job)
    return [_answer(job) for job in found]


def _counters(session: Session, found: Sequence[Job], names: set[str]) -> dict[str, Counter]:
    """The counters of the rows to bury; when another transaction counts there, the rows that were found stay."""
    try:
        return session.counters(names)
    except WouldBlock:
        for job in found:
            session.store.order(job)
        raise


def _found(session: Session, queues: Sequence[str], limit: int) -> tuple[list[Job], bool]:
    """The due rows of the queues that no other transaction holds, in (run_at, id) order; whether any lease lapsed."""
    found: list[Job] = []
    store, now, transaction = session.store, session.now, session.transaction
    any_lapsed = False
    for queue in queues:
        waiting = store.waiting.get(queue)
        if waiting is not None:
            found += waiting.take(now, limit, transaction)
        running = store.running.get(queue)
        if running is not None and (lapsed := running.take(now, limit, transaction)):
            found += lapsed
            any_lapsed = True
    if any_lapsed or len(queues) > 1:
        found.sort(key=_order)
        for job in found[limit:]:
            session.hold(job)  # Postgres locks up to `limit` rows of each arm, and takes `limit` of them in all
            store.order(job)
        del found[limit:]
    return found, any_lapsed


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


def give_back(
    session: Session, *, worker_id: str, queues: Sequence[str], ids: Sequence[UUID], claims: Sequence[int]
) -> list[tuple[Any, ...]]:
    """Twin of SQL_GIVE_BACK."""
    known = set(zip(ids, claims, strict=True))
    strays = []
    for job in session.store.jobs.values():
        seen = session.visible(job)
        if seen is None or seen.state != "running" or seen.claimed_by != worker_id or seen.queue not in queues:
            continue
        if (job.id, seen.claims) not in known and not session.locked(job):
            strays.append(job)
    for job in strays:
        session.change(job, state="ready", attempt=max(job.attempt - 1, 0), visible_at=None, claimed_by=None)
    return [(len(strays),)]

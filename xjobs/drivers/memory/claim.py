"""Twins of the statements in sql/claim.sql."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from heapq import heappop, heappush
from typing import Any

from msgspec.json import decode

from xjobs.drivers.memory.store import HeapEntry, Job, Session
from xjobs.errors import WouldBlock
from xjobs.states import WAITING

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
    served = [queue for queue in queues if not session.paused("queue", queue)]
    found = _found(session, served, limit)
    exhausted = [job for job in found if job.state == "running" and job.attempt >= job.max_attempts]
    try:
        counters = session.counters({job.name for job in exhausted})
    except WouldBlock:
        for job in found:
            session.store.index(job)
        raise
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
            session.change(
                job,
                state="running",
                attempt=job.attempt + 1,
                claims=job.claims + 1,
                claimed_by=worker_id,
                visible_at=session.now + lease,
            )
    return [_answer(job) for job in found]


def _found(session: Session, queues: Sequence[str], limit: int) -> list[Job]:
    """The due rows of the queues that no other transaction holds, in (run_at, id) order."""
    found: list[Job] = []
    in_order = len(queues) == 1
    for queue in queues:
        waiting = session.store.waiting.get(queue)
        if waiting:
            found += _pop(session, waiting, limit, _waits)
        running = session.store.running.get(queue)
        if running:
            lapsed = _pop(session, running, limit, _runs)
            found += lapsed
            in_order = in_order and not lapsed
    if not in_order:
        found.sort(key=_order)
        for job in found[limit:]:
            session.store.index(job)
    return found[:limit]


def _pop(session: Session, heap: list[HeapEntry], limit: int, counts: Any) -> list[Job]:
    """Take up to `limit` due entries off a heap; entries of rows that are locked elsewhere stay."""
    taken: list[Job] = []
    held: list[HeapEntry] = []
    while heap and heap[0][0] <= session.now and len(taken) < limit:
        entry = heappop(heap)
        instant, _, job = entry
        if session.locked(job):
            held.append(entry)
        # A row that came back to an instant that it had before has two entries, and they are neighbours.
        elif counts(job, instant) and not (taken and taken[-1] is job):
            taken.append(job)
    for entry in held:
        heappush(heap, entry)
    return taken


def _waits(job: Job, instant: Any) -> bool:
    return job.state in WAITING and job.run_at == instant


def _runs(job: Job, instant: Any) -> bool:
    return job.state == "running" and job.visible_at == instant


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

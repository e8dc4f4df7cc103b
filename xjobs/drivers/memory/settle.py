"""Twins of the statements in sql/settle.sql."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from xjobs.drivers.memory.store import Job, Session


def ack(
    session: Session,
    *,
    ids: Sequence[UUID],
    worker_id: str,
    claims: Sequence[int],
    durations_ms: Sequence[int],
    counted: bool,
) -> list[tuple[Any, ...]]:
    """Twin of SQL_ACK."""
    if len(ids) == 1 and counted and session.transaction is None:
        return _ack_one(session, ids[0], worker_id, claims[0], durations_ms[0])
    held = held_claims(session, ids, worker_id, claims, durations_ms)
    counters = session.counters([job.name for job, _ in held]) if counted else {}
    now, in_transaction, live = session.now, session.transaction is not None, session.store.live
    answers = []
    for job, duration_ms in held:
        if in_transaction:
            session.keep(job)
        job.state = "done"
        job.visible_at = job.claimed_by = job.entry = None
        job.updated_at = now
        if in_transaction:
            session.free_key(job)
        elif live.get(job.live_key) is job:
            del live[job.live_key]
        if counted:
            counter = counters[job.name]
            if in_transaction:
                session.keep(counter)
            counter.done += 1
            counter.duration_ms += duration_ms
        answers.append((job.id,))
    return answers


def _ack_one(session: Session, job_id: UUID, worker_id: str, claim: int, duration_ms: int) -> list[tuple[Any, ...]]:
    """`ack` of one claim by itself, as a drain settles, in half the steps."""
    store = session.store
    job = store.jobs.get(job_id.int)
    if job is None or not _stands(session, job, worker_id, claim):
        return []
    counter = session.counter(job.name)
    job.state = "done"
    job.visible_at = job.claimed_by = job.entry = None
    job.updated_at = session.now
    if store.live.get(job.live_key) is job:
        del store.live[job.live_key]
    counter.done += 1
    counter.duration_ms += duration_ms
    return [(job_id,)]


def nack(
    session: Session,
    *,
    ids: Sequence[UUID],
    worker_id: str,
    claims: Sequence[int],
    states: Sequence[str],
    delays: Sequence[timedelta],
    errors: Sequence[str | None],
    stacks: Sequence[str | None],
    counted: Sequence[bool],
    durations_ms: Sequence[int],
) -> list[tuple[Any, ...]]:
    """Twin of SQL_NACK."""
    given = list(zip(states, delays, errors, stacks, counted, durations_ms, strict=True))
    held = held_claims(session, ids, worker_id, claims, given)
    told = [(job, _COUNTED_AS.get((outcome[0], outcome[4]))) for job, outcome in held]
    counters = session.counters({job.name for job, column in told if column})
    for (job, outcome), (_, column) in zip(held, told, strict=True):
        state, delay, error, stack, is_counted, duration_ms = outcome
        session.change(
            job,
            state=state,
            visible_at=None,
            claimed_by=None,
            run_at=session.now + delay,
            attempt=job.attempt if is_counted else max(job.attempt - 1, 0),
            last_error=job.last_error if error is None else error,
            last_error_stack=job.last_error_stack if error is None else stack,
        )
        if column:
            counter = counters[job.name]
            session.keep(counter)
            setattr(counter, column, getattr(counter, column) + 1)
            counter.duration_ms += duration_ms
    return [(job.id,) for job, _ in held]


# The column of x_job_counters by state and whether the attempt counts; what is not here is not history.
_COUNTED_AS = {
    ("ready", True): "retried",
    ("failed", True): "failed",
    ("failed", False): "failed",
    ("dead", True): "dead",
    ("dead", False): "dead",
}


def held_claims(
    session: Session, ids: Sequence[UUID], worker_id: str, claims: Sequence[int], given: Sequence[Any]
) -> list[tuple[Job, Any]]:
    """The rows whose claim still stands, in id order, each with what was given for it."""
    held: list[tuple[Job, Any]] = []
    jobs = session.store.jobs
    for job_id, claim, outcome in zip(ids, claims, given, strict=True):
        job = jobs.get(job_id.int)
        if job is not None and _stands(session, job, worker_id, claim):
            held.append((job, outcome))
    if len(held) > 1:
        held.sort(key=_by_id)
    return held


def _stands(session: Session, job: Job, worker_id: str, claim: int) -> bool:
    """Whether a row is under that claim, and may be written.

    Raises:
        WouldBlock: it is, and another open transaction has changed or locked it.
    """
    seen = job if job.writer is None else session.visible(job)
    if seen is None or seen.claims != claim or seen.state != "running" or seen.claimed_by != worker_id:
        return False
    if job.writer is not None:
        session.wait_for(job, f"job {job.id}")
    return True


def _by_id(held: tuple[Job, Any]) -> int:
    return held[0].id.int

"""Twins of the statements in sql/operate.sql."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from xjobs.drivers.memory.inspect import answer, visible_jobs
from xjobs.drivers.memory.steps import drop_steps, visible_steps
from xjobs.drivers.memory.store import Job, LiveKey, Session
from xjobs.states import FINISHED, LIVE

Rows = list[tuple[Any, ...]]

_NO_ROW = (None,) * 21


def cancel(session: Session, *, id: UUID, reason: str | None) -> Rows:  # noqa: A002 - the statement's parameter
    """Twin of SQL_CANCEL."""
    return _one(session, id, lambda job: job.state in LIVE, lambda job: _cancel(session, job, reason))


def requeue(session: Session, *, id: UUID, from_step: str | None) -> Rows:  # noqa: A002
    """Twin of SQL_REQUEUE."""
    job = _locked(session, id)
    if job is None:
        return []
    was, holder = job.state, _holder(session, job)
    if holder is not None or was not in FINISHED:
        return [(was, None if holder is None else holder.id, *_NO_ROW)]
    _wait_for_key(session, job.live_key)
    target = next((step for step in visible_steps(session, job.run_id) if step.name == from_step), None)
    if target is not None:
        began = target.started_at
        drop_steps(session, [job.run_id], keep=lambda step: step.name != from_step and step.started_at <= began)
    _requeue(session, job)
    return [(was, None, *answer(job))]


def promote(session: Session, *, id: UUID) -> Rows:  # noqa: A002
    """Twin of SQL_PROMOTE."""
    return _one(session, id, lambda job: _waits(session, job), lambda job: _promote(session, job))


def remove(session: Session, *, id: UUID) -> Rows:  # noqa: A002
    """Twin of SQL_REMOVE."""
    return _one(session, id, lambda job: job.state != "running", lambda job: _remove(session, [job]))


def cancel_many(
    session: Session,
    *,
    state: str,
    queue: str | None,
    name: str | None,
    tenant_id: str | None,
    limit: int,
    reason: str | None,
) -> Rows:
    """Twin of SQL_CANCEL_MANY."""
    found = _matching(session, state, queue, name, tenant_id, LIVE)
    return _many(session, found, limit, lambda job: _cancel(session, job, reason))


def requeue_many(
    session: Session, *, state: str, queue: str | None, name: str | None, tenant_id: str | None, limit: int
) -> Rows:
    """Twin of SQL_REQUEUE_MANY."""
    oldest: dict[LiveKey, Job] = {}
    for job in _matching(session, state, queue, name, tenant_id, FINISHED):
        if _holder(session, job) is None:
            oldest.setdefault(job.live_key, job)
    for job in list(oldest.values())[:limit]:
        _wait_for_key(session, job.live_key)
    return _many(session, oldest.values(), limit, lambda job: _requeue(session, job))


def promote_many(
    session: Session, *, state: str, queue: str | None, name: str | None, tenant_id: str | None, limit: int
) -> Rows:
    """Twin of SQL_PROMOTE_MANY."""
    found = _matching(session, state, queue, name, tenant_id, ("ready", "delayed"))
    waiting = [job for job in found if job.run_at > session.now]
    return _many(session, waiting, limit, lambda job: _promote(session, job))


def remove_many(
    session: Session, *, state: str, queue: str | None, name: str | None, tenant_id: str | None, limit: int
) -> Rows:
    """Twin of SQL_REMOVE_MANY."""
    found = [] if state == "running" else _matching(session, state, queue, name, tenant_id, (state,))
    jobs = [job for job in map(_stored(session), found[:limit]) if not session.locked(job)]
    _remove(session, jobs)
    return [(len(jobs), len(found) - len(jobs))]


def _remove(session: Session, jobs: list[Job]) -> None:
    """Delete jobs, and the steps of runs of which no other row stands."""
    gone = {job.id for job in jobs}
    runs = {job.run_id for job in jobs} if session.store.steps else ()
    drop_steps(session, [run for run in runs if all(job.id in gone for job in session.run_jobs(run))])
    for job in jobs:
        session.delete(job)


def _one(session: Session, job_id: UUID, allowed: Callable[[Job], bool], act: Callable[[Job], None]) -> Rows:
    """The state that a job was in, and its row when it was allowed and done."""
    job = _locked(session, job_id)
    if job is None:
        return []
    was = job.state
    if not allowed(job):
        return [(was, *_NO_ROW)]
    row = answer(job)  # of a row that is deleted, as it was
    act(job)
    return [(was, *(row if job.gone else answer(job)))]


def _many(session: Session, found: Iterable[Job], limit: int, act: Callable[[Job], None]) -> Rows:
    matching = list(found)
    jobs = [_stored(session)(job) for job in matching[:limit]]
    for job in jobs:
        session.wait_for(job, f"job {job.id}")
    for job in jobs:
        act(job)
    return [(len(jobs), len(matching) - len(jobs))]


def _locked(session: Session, job_id: UUID) -> Job | None:
    """The row, locked, to be written or not; None when this session sees none."""
    job = session.store.jobs.get(job_id.int)
    if job is None or session.visible(job) is None:
        return None
    session.wait_for(job, f"job {job_id}")
    session.hold(job)
    return job


def _stored(session: Session) -> Callable[[Job], Job]:
    """From a row as this session sees it to the row in the table."""
    return lambda job: session.store.jobs[job.id.int]


def _matching(
    session: Session,
    state: str,
    queue: str | None,
    name: str | None,
    tenant_id: str | None,
    allowed: Iterable[str],
) -> list[Job]:
    """The visible rows of a state that match, oldest first."""
    if state not in allowed:
        return []
    found = [
        job
        for job in visible_jobs(session)
        if job.state == state
        and (queue is None or job.queue == queue)
        and (name is None or job.name == name)
        and (tenant_id is None or job.tenant_id == tenant_id)
    ]
    found.sort(key=lambda job: (job.created_at, job.id.int))
    return found


def _holder(session: Session, job: Job) -> Job | None:
    """Another row that is live, as this session sees it, and holds the key."""
    for row in (session.store.live.get(job.live_key), session.store.freeing.get(job.live_key)):
        if row is not None and row.id != job.id:
            # What others see of a deleted row is kept by the one that has its id now, which may hold another key.
            seen = session.visible(session.store.jobs.get(row.id.int, row))
            if seen is not None and seen.state in LIVE and seen.live_key == job.live_key:
                return seen
    return None


def _wait_for_key(session: Session, key: LiveKey) -> None:
    for row in (session.store.live.get(key), session.store.freeing.get(key)):
        if row is not None:
            session.wait_for_key(row)


def _waits(session: Session, job: Job) -> bool:
    return job.state in ("ready", "delayed") and job.run_at > session.now


def _cancel(session: Session, job: Job, reason: str | None) -> None:
    error = job.last_error if reason is None else reason
    session.change(job, state="cancelled", visible_at=None, claimed_by=None, last_error=error)


def _requeue(session: Session, job: Job) -> None:
    session.change(job, state="ready", attempt=0, run_at=session.now, visible_at=None, claimed_by=None)


def _promote(session: Session, job: Job) -> None:
    session.change(job, state="ready", run_at=session.now)

"""Twins of the statements in sql/steps.sql, and the table of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from msgspec.json import decode, encode

from xjobs.drivers.memory.events import StoredEvent, visible_events
from xjobs.drivers.memory.settle import held_claims
from xjobs.drivers.memory.store import Job, Row, Session
from xjobs.records import EPOCH, MICROSECOND

Rows = list[tuple[Any, ...]]

ZERO = timedelta(0)


class Step(Row):
    """A row of x_job_steps. `output` is JSON text."""

    __slots__ = (
        "attempts",
        "completed_at",
        "correlation_key",
        "error",
        "event",
        "name",
        "output",
        "run_id",
        "started_at",
        "status",
        "wake_at",
    )

    def __init__(self, run_id: UUID, name: str, started_at: datetime) -> None:
        super().__init__()
        self.run_id = run_id
        self.name = name
        self.started_at = started_at
        self.status = ""
        self.output: str | None = None
        self.completed_at: datetime | None = None
        self.wake_at: datetime | None = None
        self.event: str | None = None
        self.correlation_key: str | None = None
        self.attempts = 1
        self.error: str | None = None


def steps(session: Session, *, run_id: UUID) -> Rows:
    """Twin of SQL_STEPS."""
    found = sorted(visible_steps(session, run_id), key=lambda step: (step.started_at, step.name.encode()))
    return [
        (
            step.name,
            step.status,
            None if step.output is None else decode(step.output),
            step.started_at,
            step.completed_at,
            step.wake_at,
            step.event,
            step.correlation_key,
            step.attempts,
            step.error,
        )
        for step in found
    ]


def put(
    session: Session,
    *,
    id: UUID,  # noqa: A002 - the parameter of the statement
    worker_id: str,
    claim: int,
    name: str,
    status: str,
    output: str | None,
    error: str | None,
    elapsed: timedelta,
    after: datetime | None,
) -> Rows:
    """Twin of SQL_STEP_PUT."""
    job = _held(session, id, worker_id, claim)
    if job is None:
        return []
    step, is_new = _written(session, job.run_id, name, _later(session.now - elapsed, after))
    step.status, step.output, step.error, step.wake_at = status, output, error, None
    step.completed_at = session.now if status == "completed" else None
    step.attempts += not is_new
    return [(step.started_at,)]


def sleep(
    session: Session,
    *,
    id: UUID,  # noqa: A002
    worker_id: str,
    claim: int,
    name: str,
    duration: timedelta,
    after: datetime | None,
) -> Rows:
    """Twin of SQL_STEP_SLEEP."""
    job = _held(session, id, worker_id, claim)
    if job is None:
        return []
    step, is_new = _written(session, job.run_id, name, _later(session.now, after))
    over = step.wake_at is not None and step.wake_at <= session.now
    if step.wake_at is None:
        step.wake_at = session.now + duration
        over = is_new and duration <= ZERO
    step.status = "completed" if over else "sleeping"
    step.completed_at = session.now if over else None
    return [(step.status, step.started_at, max(step.wake_at - session.now, ZERO))]


def wait(
    session: Session,
    *,
    id: UUID,  # noqa: A002
    worker_id: str,
    claim: int,
    name: str,
    event: str,
    correlation_key: str | None,
    timeout: timedelta,
    required: bool,
    after: datetime | None,
) -> Rows:
    """Twin of SQL_STEP_WAIT."""
    job = _held(session, id, worker_id, claim)
    if job is None:
        return []
    found = _earliest(session, job.run_id, event, correlation_key)
    step, is_new = _written(session, job.run_id, name, _later(session.now, after))
    if is_new:
        step.event, step.correlation_key = event, correlation_key
    if step.wake_at is None:
        step.wake_at = session.now + timeout
    over = step.wake_at <= session.now
    step.status = "completed" if found else "waiting" if not over else "failed" if required else "completed"
    step.completed_at = session.now if step.status == "completed" else None
    step.output = _taken(found) if found else encode({"timed_out": True}).decode() if step.completed_at else None
    if step.status == "waiting":
        session.store.waits[job.run_id, name] = step
    output = None if step.output is None else decode(step.output)
    return [(step.status, output, step.started_at, max(step.wake_at - session.now, ZERO))]


def wake_waits(session: Session, *, events: Sequence[str] | None) -> Rows:
    """Twin of SQL_WAKE_WAITS."""
    woken: dict[UUID, Job] = {}
    for (run_id, name), step in list(session.store.waits.items()):
        if step.writer is None and (step.gone or step.status != "waiting"):
            del session.store.waits[run_id, name]
            continue
        seen = session.visible(step)
        if seen is None or seen.status != "waiting" or seen.event is None:
            continue
        if events is not None and seen.event not in events:
            continue
        jobs = [job for job in session.run_jobs(run_id) if job.state == "suspended" and job.run_at > session.now]
        if jobs and _earliest(session, run_id, seen.event, seen.correlation_key):
            woken.update((job.id, job) for job in jobs)
    answers: Rows = []
    for job_id in sorted(woken, key=lambda woken_id: woken_id.int):
        job = session.store.jobs[job_id.int]
        if not session.locked(job) and job.state == "suspended":
            session.change(job, run_at=session.now)
            answers.append((job.id, job.queue))
    return answers


def progress(session: Session, *, id: UUID, worker_id: str, claim: int, progress: str) -> Rows:  # noqa: A002
    """Twin of SQL_PROGRESS."""
    job = _held(session, id, worker_id, claim)
    if job is None:
        return []
    session.change(job, progress=progress)
    return [(job.id,)]


def visible_steps(session: Session, run_id: UUID) -> list[Step]:
    """The steps of a run that a session sees."""
    rows = session.store.steps.get(run_id)
    return [] if rows is None else [seen for row in rows.values() if (seen := session.visible(row)) is not None]


def drop_steps(session: Session, run_ids: Iterable[UUID], keep: Callable[[Step], bool] | None = None) -> None:
    """Delete the steps of runs, except those for which `keep(step)` is true.

    Raises:
        WouldBlock: another open transaction is writing one of them; none is deleted then.
    """
    dropped: list[Step] = []
    for run_id in run_ids:
        rows: dict[str, Step] = session.store.steps.get(run_id, {})
        dropped += [
            step
            for step in rows.values()
            if session.visible(step) is not None and not (keep is not None and keep(step))
        ]
    for step in dropped:
        session.wait_for(step, f"step {step.name!r}")
    for step in dropped:
        session.drop(session.store.steps[step.run_id], step.name, step)


def _held(session: Session, job_id: UUID, worker_id: str, claim: int) -> Job | None:
    held = held_claims(session, [job_id], worker_id, [claim], [None])
    if not held:
        return None
    session.hold(held[0][0])
    return held[0][0]


def _written(session: Session, run_id: UUID, name: str, started_at: datetime) -> tuple[Step, bool]:
    """The step, to be written, and whether it is new."""
    table: dict[str, Step] = session.store.steps.setdefault(run_id, {})
    step = table.get(name)
    if step is not None:
        session.wait_for(step, f"step {name!r}")
        if not step.gone:
            session.keep(step)
            return step, False
    step = Step(run_id, name, started_at)
    session.put(table, name, step)
    return step, True


def _later(instant: datetime, after: datetime | None) -> datetime:
    return instant if after is None else max(instant, after + MICROSECOND)


def _earliest(session: Session, run_id: UUID, event: str, correlation_key: str | None) -> StoredEvent | None:
    """The first event that a wait of the run takes."""
    since = min((job.created_at for job in session.run_jobs(run_id)), default=None)
    if since is None:
        return None
    taken = {
        decode(step.output).get("id")
        for step in visible_steps(session, run_id)
        if step.event == event and step.status == "completed" and step.output is not None
    }
    candidates = [
        stored
        for stored in visible_events(session, event)
        if stored.published_at >= since
        and (correlation_key is None or stored.correlation_key == correlation_key)
        and str(stored.id) not in taken
    ]
    return min(candidates, key=lambda stored: (stored.published_at, stored.id.int), default=None)


def _taken(event: StoredEvent) -> str:
    """What a wait records of the event that it took, in the order of jsonb."""
    return encode(
        {
            "id": str(event.id),
            "payload": decode(event.payload),
            "published_at": (event.published_at - EPOCH) // MICROSECOND,
            "correlation_key": event.correlation_key,
        }
    ).decode()

"""What the queue answers: frozen records, named after the columns they come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from uuid import UUID

if TYPE_CHECKING:
    from xjobs.jobs import JobHandle


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


N = TypeVar("N", bound=tuple[Any, ...])


def maker(kind: type[N]) -> Callable[[tuple[Any, ...]], N]:
    """What makes a NamedTuple of all its fields in order, in half the time that calling its class takes."""
    return partial(tuple.__new__, kind)


class Enqueued(NamedTuple):
    """The answer to an enqueue.

    Attributes:
        id: the job's id; of the row that was already there when `deduped`.
        run_id: the run that the job carries through retries and requeues.
        deduped: a live job with the same key, or a job with the given id, answered in place of a new one.
    """

    id: UUID
    run_id: UUID
    deduped: bool


class JobRow(NamedTuple):
    """One job as it stands in the store; every field is the column of its name. Instants are in UTC."""

    id: UUID
    name: str
    queue: str
    state: str
    input: Any
    idempotency_key: str
    run_id: UUID
    attempt: int
    max_attempts: int
    claims: int
    run_at: datetime
    visible_at: datetime | None
    claimed_by: str | None
    last_error: str | None
    last_error_stack: str | None
    tenant_id: str | None
    created_at: datetime
    updated_at: datetime
    traceparent: str | None
    enqueued_by: str | None
    progress: Any

    @property
    def cursor(self) -> str:
        """Where this row stands in a listing, for `after=` and `before=` of the next page."""
        return f"{(self.created_at - EPOCH) // MICROSECOND}:{self.id}"


class Bulk(NamedTuple):
    """The answer of a bulk verb.

    Attributes:
        affected: how many jobs it moved.
        remaining: how many another call could still move; calling until this is zero comes to an end.
    """

    affected: int
    remaining: int


class Pause(NamedTuple):
    """A paused queue, and since when."""

    name: str
    paused_at: datetime


class ClaimedJob(NamedTuple):
    """One job as a claim hands it out. `claims` is its claim ordinal, on which every settle is fenced.

    `state` is `running`; a row that the claim buried has `dead` or `failed` and must not be run.
    """

    id: UUID
    name: str
    queue: str
    state: str
    input: Any
    idempotency_key: str
    run_id: UUID
    attempt: int
    max_attempts: int
    claims: int
    run_at: datetime
    visible_at: datetime | None
    tenant_id: str | None
    created_at: datetime
    traceparent: str | None
    enqueued_by: str | None
    last_error: str | None


class StepRecord(NamedTuple):
    """One recorded step of a run; every field but `output` is the column of its name.

    Attributes:
        status: `completed`, `failed`, `sleeping`, or `waiting` (for an event).
        output: what a completed step answered, as JSON values.
        wake_at: the end of a sleep or of a wait.
        event, correlation_key: what a wait looks for.
        attempts: how often it was tried.
        error: of the last failure.
    """

    name: str
    status: str
    output: Any
    started_at: datetime
    completed_at: datetime | None
    wake_at: datetime | None
    event: str | None
    correlation_key: str | None
    attempts: int
    error: str | None


class Event(NamedTuple):
    """A published event, as `publish` and `wait_for_event` answer it.

    Attributes:
        payload: JSON values.
        correlation_key: what `wait_for_event(match=...)` compares; None matches only waits for any.
        published_at: by the database's clock.
    """

    id: UUID
    name: str
    payload: Any
    correlation_key: str | None
    published_at: datetime


class Ending(NamedTuple):
    """How a run ended, as its `on_settled` hook is told.

    Attributes:
        job: the handle.
        outcome: `completed`, `dead-lettered`, `dropped` or `refused`.
        input: the values that the body received; None when the stored input no longer fits the job.
        result: what the body returned; None unless it completed. It is stored nowhere.
        error: the text of `last_error`; None when it completed.
        code: the code of the error, where it is one of ours; None otherwise, and for a lease that lapsed.
        attempt: counted from 1.
    """

    job: JobHandle[Any, Any, Any]
    job_id: UUID
    run_id: UUID
    outcome: str
    attempt: int
    tenant: str | None
    input: dict[str, Any] | None
    result: Any
    error: str | None
    code: str | None


class QueueStats(NamedTuple):
    """How many jobs of one queue are in each bucket; every job is in exactly one.

    Attributes:
        ready: due now. `delayed`: not due yet. `running`, `suspended`, `failed`, `dead`: by state.
        oldest_ready: how long the longest waiting due job has been due; zero when none is.
    """

    queue: str
    ready: int
    delayed: int
    running: int
    suspended: int
    failed: int
    dead: int
    oldest_ready: timedelta


class QueueDepth(NamedTuple):
    """How many jobs of one queue are work for workers to come: due ones, and running ones that no worker is leaving."""

    queue: str
    depth: int


class WorkerRow(NamedTuple):
    """One live worker; every field is the column of its name. Instants are in UTC.

    Attributes:
        queues: their names.
        concurrency: its slots over all queues.
        in_flight: ids of jobs that it runs, as texts, at most a hundred.
        draining_at: since when it takes no more jobs, or None.
    """

    id: str
    host: str
    queues: list[str]
    concurrency: int
    in_flight: list[str]
    started_at: datetime
    heartbeat_at: datetime
    expires_at: datetime
    draining_at: datetime | None


class Waiting(NamedTuple):
    """A live job and the instant from which a claim could take it: `run_at`, or the end of its lease."""

    id: UUID
    name: str
    queue: str
    state: str
    due_at: datetime
    due: bool
    paused: bool
    total: int


class Run(NamedTuple):
    """One attempt that a drain ran.

    Attributes:
        job: the handle. `job_name`, `job_id`: of the row.
        attempt: counted from 1.
        outcome: `completed`, `suspended` (it sleeps or waits), `retried`, `dead-lettered`, `dropped` (failed for good
            without a dead letter), `rate-limited`, `interrupted` (given back), `cancelled`, `crashed` (by a fault of
            the test), or `unowned` when the claim was gone by the time of the settle.
        started_at: by the queue's clock.
        error: what the body raised, or None.
        parent: the job whose body enqueued this one during the same drain, or None.
        steps: the names of the steps that this attempt carried out, in order: calls, and sleeps and waits that were
            over; those that it replayed are not among them.
        stop_reason: why no retry follows a failure: `terminal` or `attempts-exhausted`; otherwise None.
    """

    job: JobHandle[Any, Any, Any]
    job_name: str
    job_id: UUID
    attempt: int
    outcome: str
    started_at: datetime
    error: BaseException | None
    parent: UUID | None
    steps: tuple[str, ...] = ()
    stop_reason: str | None = None


class Jump(NamedTuple):
    """A move of the clock that a drain made, from one instant to the next at which a job was due."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class DrainReport:
    """What a drain did.

    Attributes:
        runs: every attempt, in the order of the claims.
        jumps: the moves of the clock that it made.
        waiting: the live jobs that are left, earliest first and those of paused queues last, with the instant at which
            each is due.
        buried: rows whose lease had lapsed on their final attempt; they were not run.
        reason: `idle` (nothing is left), `not due` (what is left is due later), or `paused`.
    """

    runs: tuple[Run, ...]
    jumps: tuple[Jump, ...]
    waiting: tuple[Waiting, ...]
    buried: tuple[ClaimedJob, ...]
    reason: str

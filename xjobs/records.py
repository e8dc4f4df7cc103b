"""What the queue answers: frozen records, named after the columns they come from."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

if TYPE_CHECKING:
    from xjobs.jobs import JobHandle


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


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
        outcome: `completed`, `retried`, `dead-lettered`, `dropped` (failed for good without a dead letter), or
            `unowned` when the claim was gone by the time of the settle.
        started_at: by the queue's clock.
        error: what the body raised, or None.
        parent: the job whose body enqueued this one during the same drain, or None.
    """

    job: JobHandle[Any, Any, Any]
    job_name: str
    job_id: UUID
    attempt: int
    outcome: str
    started_at: datetime
    error: BaseException | None
    parent: UUID | None


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

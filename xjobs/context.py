"""What a body receives about the attempt it runs in, when it asks for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID


def process_time() -> datetime:
    """The present instant by this process's clock, in UTC; libraries that freeze Python's time move it."""
    return datetime.now(UTC)


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseContext:
    """What both colours of context hold.

    Attributes:
        job_id: the row this attempt belongs to.
        run_id: stable across retries, suspensions and requeues of the job.
        attempt: counted from 1.
        max_attempts: after this attempt the job is not tried again.
        tenant: the tenant that the enqueuer gave, or None.
        enqueued_by: who enqueued the job, for reading only: it grants nothing.
        traceparent: the W3C trace context of the enqueuing request, or None.
    """

    job_id: UUID
    run_id: UUID
    attempt: int
    max_attempts: int
    tenant: str | None = None
    enqueued_by: str | None = None
    traceparent: str | None = None
    clock: Callable[[], datetime] = field(default=process_time, repr=False)

    @property
    def final_attempt(self) -> bool:
        """Whether the job is not tried again if this attempt fails."""
        return self.attempt >= self.max_attempts

    def now(self) -> datetime:
        """The present instant in UTC, by the clock of the queue that runs the body."""
        return self.clock()


class Context(BaseContext):
    """What a `def` body receives as its first parameter when that is annotated `xjobs.Context`."""

    __slots__ = ()


class AsyncContext(BaseContext):
    """What an `async def` body receives as its first parameter when that is annotated `xjobs.AsyncContext`."""

    __slots__ = ()

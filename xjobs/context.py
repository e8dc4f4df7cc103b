"""What a body receives about the attempt it runs in, when it asks for it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from xjobs.bridge import run_sync
from xjobs.clocks import process_time
from xjobs.signals import RunSignal
from xjobs.steps import AsyncSteps, Log, Steps


class Reporter(Protocol):
    """Where a body's progress goes (`xjobs.operations.progress`)."""

    async def report(self, done: float, total: float | None, note: str | None) -> None:
        """Note it, and write it when it is time to."""
        ...


@dataclass(frozen=True, kw_only=True)
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
    clock: Callable[[], datetime] = field(default=process_time, repr=False, compare=False)
    signal: RunSignal = field(default_factory=RunSignal, repr=False, compare=False)
    log: Log = field(repr=False, compare=False)
    reporter: Reporter = field(repr=False, compare=False)

    @property
    def final_attempt(self) -> bool:
        """Whether the job is not tried again if this attempt fails."""
        return self.attempt >= self.max_attempts

    @property
    def cancelled(self) -> bool:
        """Whether the body should stop: its job was cancelled, its time is up, its lease is lost, its worker ends.

        An `async def` body is cancelled besides; a `def` body has to ask, since nothing can stop a thread.
        """
        return self.signal.reason is not None

    def raise_if_cancelled(self) -> None:
        """Raise why the body should stop, if it should: JobCancelled, JobTimeout, LeaseLost, SlotLost or Draining."""
        self.signal.raise_if_stopped()

    def now(self) -> datetime:
        """The present instant in UTC, by the clock of the queue that runs the body."""
        return self.clock()


class Context(BaseContext):
    """What a `def` body receives as its first parameter when that is annotated `xjobs.Context`."""

    @property
    def step(self) -> Steps:
        """The durable steps of the run."""
        return Steps(self.log)

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Report how far the body is, for operators: `queue.job(id).progress`.

        Written at most once a second and before the job is settled; a number that is not finite is left out, and a note
        is cut at 200 characters. A write that fails is logged and never fails the job.
        """
        run_sync(self.reporter.report(done, total, note))


class AsyncContext(BaseContext):
    """What an `async def` body receives as its first parameter when that is annotated `xjobs.AsyncContext`."""

    @property
    def step(self) -> AsyncSteps:
        """The durable steps of the run; each call is awaited."""
        steps: AsyncSteps | None = self.__dict__.get("_steps")
        if steps is None:
            steps = self.__dict__["_steps"] = AsyncSteps(self.log)
        return steps

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> Coroutine[Any, Any, None]:
        """Report how far the body is; to be awaited. See `Context.progress`."""
        return self.reporter.report(done, total, note)

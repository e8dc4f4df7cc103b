"""What tests of job bodies need where no queue is involved: a context to call a body with."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypedDict, Unpack
from uuid import UUID

from xjobs import sql
from xjobs.bridge import run_sync
from xjobs.clocks import process_time
from xjobs.context import AsyncContext, Context
from xjobs.drivers.base import Driver
from xjobs.errors import JobTimeout
from xjobs.ids import new_id
from xjobs.operations.claim import take
from xjobs.operations.progress import Progress
from xjobs.operations.steps import StepLog, Suspended
from xjobs.records import ClaimedJob, Event
from xjobs.signals import RunSignal

__all__ = ["async_context", "context"]

_WORKER = "test"


class _Fields(TypedDict, total=False):
    job_id: UUID
    run_id: UUID
    attempt: int
    max_attempts: int
    tenant: str | None
    enqueued_by: str | None
    traceparent: str | None


def context(*, events: Mapping[str, Any] | None = None, **fields: Unpack[_Fields]) -> Context:
    """A context for calling a `def` body alone: `welcome_email(context(attempt=3), user_id=7)`.

    Its steps run and their answers are checked as a queue would; sleeps are over at once.

    Args:
        events: what waits find, payloads by the event's name; a wait for another one times out at once.
        fields: those of `Context`; without them it is the first of three attempts of a job with a new id.
    """
    return Context(**_filled(events, fields))


def async_context(*, events: Mapping[str, Any] | None = None, **fields: Unpack[_Fields]) -> AsyncContext:
    """The same for an `async def` body."""
    return AsyncContext(**_filled(events, fields))


class _AloneLog(StepLog):
    """The steps of a body that no queue runs: nothing suspends it."""

    events: Mapping[str, Any]

    async def sleep(self, name: str | None, duration: timedelta | float) -> None:
        try:
            await super().sleep(name, duration)
        except Suspended:
            self.suspension = None

    async def wait(self, name: str, event: str, **options: Any) -> Event | None:
        try:
            await super().wait(name, event, **options)
        except Suspended:
            self.suspension = None
        if event in self.events:
            return Event(new_id(), event, self.events[event], options.get("match"), process_time())
        if options.get("required"):
            raise JobTimeout(f"step {name!r} waits for event {event!r}, and the context was given none", "give events=")
        return None


def _filled(events: Mapping[str, Any] | None, fields: _Fields) -> Any:
    job_id, run_id = fields.get("job_id") or new_id(), fields.get("run_id") or new_id()
    given: _Fields = {"attempt": 1, "max_attempts": 3, **fields, "job_id": job_id, "run_id": run_id}
    signal = RunSignal()
    driver, job = _claimed(job_id, run_id)
    log = _AloneLog(driver, job, worker_id=_WORKER, signal=signal, clock=process_time)
    log.events = events or {}
    reporter = Progress(driver, job, worker_id=_WORKER, signal=signal, clock=process_time)
    return {**given, "signal": signal, "log": log, "reporter": reporter}


def _claimed(job_id: UUID, run_id: UUID) -> tuple[Driver, ClaimedJob]:
    """A claimed job in a memory of its own, for the log to write to."""
    from xjobs.drivers.memory import MemoryDriver

    driver = MemoryDriver()
    row = {
        "id": job_id,
        "name": "body",
        "queue": "default",
        "input": "{}",
        "idempotency_key": "body",
        "run_id": run_id,
        "max_attempts": 2**31 - 1,
        "run_at": None,
        "delay": None,
        "tenant_id": None,
        "traceparent": None,
        "enqueued_by": None,
    }
    run_sync(driver.run(sql.SQL_ENQUEUE_ONE, **row))
    (job,) = run_sync(take(driver, ["default"], worker_id=_WORKER)).jobs
    return driver, job

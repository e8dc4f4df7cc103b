"""Durable steps: what one attempt does with the steps of its run. Recorded ones are replayed, from one read."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from xjobs import points, sql
from xjobs.codec import to_json
from xjobs.drivers.base import Driver
from xjobs.errors import (
    Aborted,
    Draining,
    Error,
    Invariant,
    JobCancelled,
    JobTimeout,
    LeaseLost,
    StepDuplicate,
    StepNotAwaited,
)
from xjobs.ids import check_id
from xjobs.limits import ZERO, check_duration, check_text
from xjobs.operations.settle import storable
from xjobs.records import EPOCH, MICROSECOND, ClaimedJob, Event, StepRecord
from xjobs.signals import RunSignal, overdue
from xjobs.steps import WAIT_TIMEOUT, NotAwaited

logger = logging.getLogger("xjobs")


class Suspended(BaseException):
    """Leaves a body whose run sleeps or waits. Not an Exception, so that a body's own handlers let it through.

    Attributes:
        remaining: from now until the run is due again.
        event: the name of the event that it waits for; None for a sleep.
    """

    def __init__(self, step: str, remaining: timedelta, event: str | None = None) -> None:
        super().__init__(f"step {step!r} waits for {remaining}")
        self.step = step
        self.remaining = remaining
        self.event = event


class StepLog:
    """The steps of one attempt.

    Args:
        driver: what records them; one that the body's colour can use.
        job: the claim on which every write is fenced.
        worker_id: who holds the claim.
        signal: once it says stop, no step is begun or recorded, except that a step which a worker's cut-off caught is.
        clock: the queue's present instant.
        step_timeout: how long one `run` may take; None for ever.
    """

    def __init__(
        self,
        driver: Driver,
        job: ClaimedJob,
        *,
        worker_id: str,
        signal: RunSignal,
        clock: Callable[[], datetime],
        step_timeout: timedelta | None = None,
    ) -> None:
        self.step_timeout = step_timeout
        self.ran: list[str] = []
        self.suspension: Suspended | None = None
        self.not_awaited: dict[object, NotAwaited] = {}
        self._driver = driver
        self._job = job
        self._worker_id = worker_id
        self._signal = signal
        self._clock = clock
        self._records: dict[str, StepRecord] | None = None
        self._latest: datetime | None = None
        self._used: set[str] = set()
        self._sleeps: dict[timedelta, int] = {}
        self._ended = False

    async def run(self, name: str, produce: Callable[[], Awaitable[Any]]) -> Any:
        """The recorded output of the step, or what `produce` answers, which is recorded first."""
        __tracebackhide__ = True
        record = await self._begin(name, "run")
        if record is not None and record.status == "completed":
            return record.output
        if "before_step" in points.heard:
            await points.reach("before_step", job=self._job, step=name)
        began = self._clock()
        self.ran.append(name)
        try:
            value = await produce()
            self._check_in_time(name, began)
            output, text = to_json(value, "output")
        except Exception as error:
            await self._record_failure(name, error, began)
            raise
        if "before_record" in points.heard:
            await points.reach("before_record", job=self._job, step=name)
        await self._put(name, "completed", text, None, began)
        if "after_step" in points.heard:
            await points.reach("after_step", job=self._job, step=name)
        return output

    async def sleep(self, name: str | None, duration: timedelta | float) -> None:
        """Suspend the run until `duration` after the step began; at once when that is over."""
        __tracebackhide__ = True
        span = check_duration(duration, "duration", low=ZERO)
        step = self._sleep_name(span) if name is None else name
        record = await self._begin(step, "sleep")
        if record is not None and record.status == "completed":
            return
        rows = await self._write(sql.SQL_STEP_SLEEP, step, duration=span)
        ((status, started_at, remaining),) = rows
        self._note(started_at)
        if status != "completed":
            raise self._suspend(step, remaining)
        self.ran.append(step)

    async def wait(
        self,
        name: str,
        event: str,
        *,
        match: str | None = None,
        timeout: timedelta | float = WAIT_TIMEOUT,  # noqa: ASYNC109 - of the run, which no process holds
        required: bool = False,
    ) -> Event | None:
        """The earliest event that fits and that the run has not taken; None when none came in time."""
        __tracebackhide__ = True
        event = check_text(event, "event")
        key = None if match is None else check_text(match, "correlation_key")
        span = check_duration(timeout, "timeout", low=ZERO)
        record = await self._begin(name, "wait")
        if record is not None and record.status == "completed":
            return _event(event, record.output)
        rows = await self._write(
            sql.SQL_STEP_WAIT, name, event=event, correlation_key=key, timeout=span, required=required
        )
        ((status, output, started_at, remaining),) = rows
        self._note(started_at)
        if status == "waiting":
            raise self._suspend(name, remaining, event)
        if status == "failed":
            raise JobTimeout(
                f"step {name!r} waited {span} for event {event!r}"
                + (f" of {key!r}" if key else "")
                + ", and none came",
                "publish it in time, wait longer, or leave required out and handle None",
                step=name,
                event=event,
            )
        self.ran.append(name)
        return _event(event, output)

    def end(self) -> StepNotAwaited | None:
        """Refuse what is still under way in the body: the attempt is over. Answers what was called and not awaited."""
        self._ended = True
        if not self.not_awaited:
            return None
        for step in self.not_awaited.values():
            step.close()
        names = [step.name for step in self.not_awaited.values()]
        return StepNotAwaited(
            f"step {', '.join(map(repr, names))} of job {self._job.name!r} was called and not awaited",
            "write await in front of ctx.step...",
            steps=tuple(names),
        )

    async def _begin(self, name: str, kind: str) -> StepRecord | None:
        """The record of a step that the body comes to, or None."""
        check_text(name, "step")
        self._check_going(f"step {name!r}")
        if name in self._used:
            raise StepDuplicate(
                f"step {name!r} is used twice in one attempt of job {self._job.name!r}",
                "give each step a name of its own, in a loop for example f'page:{number}'",
                step=name,
            )
        self._used.add(name)
        if self._records is None:
            rows = await self._driver.run(sql.SQL_STEPS, run_id=self._job.run_id)
            if self._records is None:
                records = [StepRecord(*row) for row in rows]
                self._records = {record.name: record for record in records}
                self._latest = records[-1].started_at if records else None
        record = self._records.get(name)
        if record is not None and record.status == "completed" and _kind(record) != kind:
            raise Invariant(
                f"step {name!r} of run {self._job.run_id} was recorded as a {_kind(record)} and is now a {kind}",
                "give a changed step a new name, or requeue the job from it",
                step=name,
            )
        return record

    def _check_going(self, what: str) -> None:
        if self._ended:
            raise Aborted(
                f"{what} of job {self._job.name!r} came after its attempt had ended",
                "await everything that the body starts before it returns",
            )
        if self.suspension is not None:
            raise self.suspension
        reason = self._signal.reason
        if reason is not None:
            raise self._aborted(what, reason) from reason

    def _aborted(self, what: str, reason: Error) -> Aborted:
        return Aborted(
            f"{what} of job {self._job.name!r} is not recorded: {reason.fact}", "let the exception end the body"
        )

    def _check_in_time(self, name: str, began: datetime) -> None:
        if self.step_timeout is not None and self._clock() - began >= self.step_timeout:
            raise overdue(self.step_timeout, f"step {name!r}")

    async def _record_failure(self, name: str, error: Exception, began: datetime) -> None:
        """Record that a step failed. Its own error matters more than one in keeping the books."""
        if self._ended or self._signal.reason is not None:
            return
        try:
            await self._put(name, "failed", None, storable(f"{type(error).__name__}: {error}"), began)
        except Exception as problem:  # noqa: BLE001 - the step's error is raised, whatever this one is
            logger.warning(
                "jobs.step.failure-unrecorded", extra={"job_id": self._job.id, "step": name, "problem": repr(problem)}
            )

    async def _put(self, name: str, status: str, output: str | None, error: str | None, began: datetime) -> None:
        elapsed = max(self._clock() - began, ZERO)
        ((started_at,),) = await self._write(
            sql.SQL_STEP_PUT, name, status=status, output=output, error=error, elapsed=elapsed
        )
        self._note(started_at)

    async def _write(self, statement: sql.Statement, name: str, **values: Any) -> list[Any]:
        """Send a fenced write.

        Raises:
            Aborted: the run must stop, or has ended.
            LeaseLost, JobCancelled: the claim is gone; nothing was written.
        """
        reason = self._signal.reason
        if self._ended or (reason is not None and not isinstance(reason, Draining)):
            self._check_going(f"step {name!r}")
        job = self._job
        rows = await self._driver.run(
            statement,
            id=job.id,
            worker_id=self._worker_id,
            claim=job.claims,
            name=name,
            after=self._latest,
            **values,
        )
        if not rows:
            gone = await claim_gone(self._driver, job)
            self._signal.stop(gone)
            raise gone
        return rows

    def _note(self, started_at: datetime) -> None:
        if self._latest is None or started_at > self._latest:
            self._latest = started_at

    def _suspend(self, name: str, remaining: timedelta, event: str | None = None) -> Suspended:
        self.suspension = Suspended(name, remaining, event)
        return self.suspension

    def _sleep_name(self, span: timedelta) -> str:
        """The name of a sleep that has none: its length, numbered from the second of that length on."""
        number = self._sleeps[span] = self._sleeps.get(span, 0) + 1
        seconds = f"{span.total_seconds():.6f}".rstrip("0").rstrip(".")
        return f"sleep:{seconds}s" + (f"#{number}" if number > 1 else "")


async def claim_gone(driver: Driver, job: ClaimedJob) -> Error:
    """Why a write that is fenced on a claim met nothing."""
    rows = await driver.run(sql.SQL_JOB, id=job.id)
    state = rows[0][3] if rows else "removed"
    if state == "cancelled":
        return JobCancelled(f"job {job.name!r} ({job.id}) has been cancelled", "let the body end", id=job.id)
    return LeaseLost(
        f"claim {job.claims} of job {job.name!r} ({job.id}) is gone, the job is {state}",
        "let the body end: its lease lapsed, and the job belongs to whoever claims it next",
        id=job.id,
    )


async def steps(driver: Driver, run_id: UUID | str) -> list[StepRecord]:
    """The recorded steps of a run, in the order in which they began.

    Raises:
        IdInvalid: `run_id` is no UUID.
    """
    rows = await driver.run(sql.SQL_STEPS, run_id=check_id(run_id, "run_id"))
    return [StepRecord(*row) for row in rows]


def _kind(record: StepRecord) -> str:
    return "wait" if record.event is not None else "sleep" if record.wake_at is not None else "run"


def _event(name: str, output: Any) -> Event | None:
    if "id" not in output:
        return None
    published_at = EPOCH + output["published_at"] * MICROSECOND
    return Event(UUID(output["id"]), name, output["payload"], output["correlation_key"], published_at)

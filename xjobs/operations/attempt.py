"""One attempt of a claimed job: rebuild its input, run the body, and decide what the outcome means for the row."""

from __future__ import annotations

import time
import traceback
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from random import Random
from typing import Any, NamedTuple, Protocol

from xjobs import points, tracing
from xjobs.classify import verdict
from xjobs.context import AsyncContext, Context
from xjobs.drivers.base import Driver
from xjobs.errors import Error, JobCancelled, JobTimeout
from xjobs.jobs import JobHandle
from xjobs.limits import ZERO
from xjobs.operations.enqueue import enqueuing_job
from xjobs.operations.progress import Progress
from xjobs.operations.settle import Ack, Nack, ack_one, nack
from xjobs.operations.steps import StepLog, Suspended
from xjobs.records import ClaimedJob, maker
from xjobs.signals import RunSignal

SHORTEST = 0.001
"""Seconds from which on a body's duration is told; counters have it in whole milliseconds."""


class Callee(Protocol):
    """What a host calls: a job's body, or its ending hook."""

    @property
    def body(self) -> Callable[..., Any]:
        """The function."""
        ...

    @property
    def is_async(self) -> bool:
        """Whether it is an `async def`."""
        ...


class BodyCaller(Protocol):
    """How a host calls a body: in place, in a thread, or on an event loop.

    A host that can end a body early (an `async def` body can be cancelled) does so when the signal stops, and has the
    signal stop at its deadline also while the body does not ask.
    """

    def __call__(
        self, callee: Callee, arguments: tuple[Any, ...], values: dict[str, Any], signal: RunSignal
    ) -> Awaitable[Any]:
        """Call it and answer what it returns; what it raises goes through."""
        ...


class Execution(NamedTuple):
    """What came of running a body, before anything is written.

    Attributes:
        outcome: see `Run.outcome`.
        error: what the body raised, or why it failed without raising.
        interrupt: an exception that is no outcome of the job, such as KeyboardInterrupt; the attempt is given back and
            the caller raises it again.
        stop_reason: see `Run.stop_reason`.
        result: what the body returned.
        values: the input that it received; None when the stored input did not fit.
        steps: the names of the steps that it ran.
        awaits: the name of the event for which the run is parked, or None.
    """

    settlement: Ack | Nack
    outcome: str
    error: BaseException | None = None
    interrupt: BaseException | None = None
    stop_reason: str | None = None
    result: Any = None
    values: dict[str, Any] | None = None
    steps: tuple[str, ...] = ()
    awaits: str | None = None


_ack, _execution = maker(Ack), maker(Execution)


async def execute(
    driver: Driver,
    job: ClaimedJob,
    handle: JobHandle[Any, Any, Any],
    *,
    worker_id: str,
    call: BodyCaller,
    clock: Callable[[], datetime],
    random: Random,
    signal: RunSignal | None = None,
    timer: Callable[[], float] = time.perf_counter,
) -> Execution:
    """Run the body of a claimed job and decide how to settle it. Nothing of the job's row is written but progress.

    Args:
        driver: what the body's steps and progress are written by; one that the body's colour can use.
        signal: stops the run; the attempt's deadline is set on it.

    Raises:
        Crash: a listener at a named point has the process die here; nothing may be settled.
    """
    __tracebackhide__ = True
    signal = signal or RunSignal()
    if handle.timeout is not None:
        signal.expire_after(handle.timeout, clock)
    surroundings = _surroundings(driver, job, handle, worker_id, clock, signal) if handle.takes_context else None
    began = timer()
    token = enqueuing_job.set(job.id)
    error: BaseException | None = None
    result, values = None, None
    try:
        if "before_body" in points.heard:
            await points.reach("before_body", job=job)
        values = handle.codec.decode(job.input)
        arguments = surroundings[:1] if surroundings else ()
        if tracing.concerns(job):
            with tracing.attempt(job):
                result = await call(handle, arguments, values, signal)
        else:
            result = await call(handle, arguments, values, signal)
        if "after_body" in points.heard:
            await points.reach("after_body", job=job)
    except points.Crash as crash:
        crash.steps = tuple(surroundings.log.ran) if surroundings else ()
        raise
    except BaseException as raised:  # noqa: BLE001 - whatever a body raises is its outcome
        error = raised
    finally:
        enqueuing_job.reset(token)
        not_awaited = surroundings.log.end() if surroundings else None
    ran: tuple[str, ...] = ()
    suspension = None if error is None else _suspension(error)
    if surroundings:
        await surroundings.progress.flush()
        ran = tuple(surroundings.log.ran)
        suspension = suspension or surroundings.log.suspension
    took = timer() - began
    duration = timedelta(0, took) if took >= SHORTEST else ZERO
    reason = signal.reason
    if error is None and suspension is None and reason is None and not_awaited is None:
        return _execution((_ack((job, duration)), "completed", None, None, None, result, values, ran, None))
    ended = _Attempt(job, handle, random, reason).ended(error or not_awaited, suspension)
    settlement = ended.settlement._replace(duration=duration)
    return ended._replace(settlement=settlement, result=result, values=values, steps=ran)


def broken(job: ClaimedJob, handle: JobHandle[Any, Any, Any], problem: BaseException, random: Random) -> Execution:
    """The outcome of an attempt in which the host failed: a failure like one of the body, so that it ends."""
    return _Attempt(job, handle, random, None)._failed(problem)  # noqa: SLF001 - of this file


async def settle(driver: Driver, execution: Execution, *, worker_id: str) -> bool:
    """Write the outcome of one execution; False when the claim was gone and nothing was written."""
    settlement = execution.settlement
    if "before_settle" in points.heard:
        await points.reach("before_settle", job=settlement.job, outcome=execution.outcome)
    if isinstance(settlement, Ack):
        landed = await ack_one(driver, settlement.job, settlement.duration, worker_id=worker_id)
    else:
        landed = bool(await nack(driver, [settlement], worker_id=worker_id))
    if "after_settle" in points.heard:
        await points.reach("after_settle", job=settlement.job, outcome=execution.outcome, landed=landed)
    return landed


class _Attempt(NamedTuple):
    """What decides the outcome, besides what the body did. `reason` is the run signal's."""

    job: ClaimedJob
    handle: JobHandle[Any, Any, Any]
    random: Random
    reason: Error | None

    def ended(self, error: BaseException | None, suspension: Suspended | None) -> Execution:
        """The outcome of a body that raised `error`, or returned."""
        reason = self.reason
        if isinstance(reason, JobTimeout):
            return self._failed(_because(reason, error))
        if isinstance(reason, JobCancelled):
            return Execution(Nack(self.job, counted=False), "cancelled", reason)
        if error is None and suspension is None:
            return Execution(Ack(self.job), "completed")  # also while a worker ends: the work is done
        if reason is not None:
            given_back = Nack(self.job, error=describe(reason), counted=False)
            return Execution(given_back, "interrupted", _because(reason, error))
        if suspension is not None:
            parked = Nack(self.job, delay=suspension.remaining, counted=False, park=True)
            return Execution(parked, "suspended", awaits=suspension.event)
        assert error is not None  # noqa: S101 - the cases above
        if not isinstance(error, Exception):
            settlement = Nack(self.job, error=describe(error), counted=False)
            return Execution(settlement, "interrupted", error)._replace(interrupt=error)
        return self._failed(error)

    def _failed(self, error: BaseException) -> Execution:
        job, retry = self.job, self.handle.retry
        decided = verdict(error, job.attempt, job.max_attempts, retry, self.random)
        text = describe(error) + (f" ({decided.note})" if decided.note else "")
        nack = Nack(job, error=text, stack=_stack(error))
        if decided.stop_reason is None:
            nack = nack._replace(delay=decided.delay, counted=decided.counted)
            return Execution(nack, "retried" if decided.counted else "rate-limited", error)
        if retry.dead_letter:
            execution = Execution(nack._replace(dead_letter=True), "dead-lettered", error)
        else:
            execution = Execution(nack._replace(fail=True), "dropped", error)
        return execution._replace(stop_reason=decided.stop_reason)


def describe(error: BaseException) -> str:
    """The text of `last_error`; an exception whose own text fails is still described."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception as problem:  # noqa: BLE001 - foreign code, and the attempt has to be settled
        text = f"<its text raised {type(problem).__name__}>"
    code = f" [{error.code}]" if isinstance(error, Error) else ""
    return f"{name}{code}: {text}" if text else f"{name}{code}"


def _stack(error: BaseException) -> str:
    """The traceback; one that cannot be written, as that of a SyntaxError with odd fields, is no reason to fail."""
    try:
        return "".join(traceback.format_exception(error))
    except Exception as problem:  # noqa: BLE001 - it is foreign code that writes it
        return f"<its traceback raised {type(problem).__name__}>"


def _because(reason: Error, error: BaseException | None) -> Error:
    """The reason, with what the body raised on its way out as its context."""
    if error is not None and error is not reason and reason.__context__ is None and error.__cause__ is not reason:
        reason.__context__ = error
    return reason


def _suspension(error: BaseException | None) -> Suspended | None:
    """The suspension that left the body, alone or as all that a task group raised."""
    if isinstance(error, Suspended):
        return error
    if isinstance(error, BaseExceptionGroup):
        found, rest = error.split(Suspended)
        while rest is None and isinstance(found, BaseExceptionGroup):
            first = found.exceptions[0]
            if isinstance(first, Suspended):
                return first
            found = first
    return None


class _Surroundings(NamedTuple):
    """What an attempt of a body that takes the context has around it."""

    context: Context | AsyncContext
    log: StepLog
    progress: Progress


def _surroundings(
    driver: Driver,
    job: ClaimedJob,
    handle: JobHandle[Any, Any, Any],
    worker_id: str,
    clock: Callable[[], datetime],
    signal: RunSignal,
) -> _Surroundings:
    log = StepLog(driver, job, worker_id=worker_id, signal=signal, clock=clock, step_timeout=handle.step_timeout)
    progress = Progress(driver, job, worker_id=worker_id, signal=signal, clock=clock)
    context = (AsyncContext if handle.is_async else Context)(
        job_id=job.id,
        run_id=job.run_id,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        tenant=job.tenant_id,
        enqueued_by=job.enqueued_by,
        traceparent=job.traceparent,
        clock=clock,
        signal=signal,
        log=log,
        reporter=progress,
    )
    return _Surroundings(context, log, progress)

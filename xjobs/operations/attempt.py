"""One attempt of a claimed job: rebuild its input, run the body, and decide what the outcome means for the row."""

from __future__ import annotations

import time
import traceback
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from random import Random
from typing import Any, NamedTuple, Protocol

from xjobs import points
from xjobs.context import AsyncContext, Context
from xjobs.drivers.base import Driver
from xjobs.errors import Error
from xjobs.jobs import JobHandle
from xjobs.operations.enqueue import enqueuing_job
from xjobs.operations.settle import Ack, Nack, ack, nack
from xjobs.records import ClaimedJob


class BodyCaller(Protocol):
    """How a body is called: in place, in a thread, or on an event loop."""

    def __call__(
        self, handle: JobHandle[Any, Any, Any], arguments: tuple[Any, ...], values: dict[str, Any]
    ) -> Awaitable[Any]:
        """Call the body and answer what it returns; what it raises goes through."""
        ...


class Execution(NamedTuple):
    """What came of running a body, before anything is written.

    `interrupt` is an exception that is no outcome of the job, such as KeyboardInterrupt; the attempt is given back and
    the caller raises it again.
    """

    settlement: Ack | Nack
    outcome: str
    started_at: datetime
    error: BaseException | None = None
    interrupt: BaseException | None = None


async def execute(
    job: ClaimedJob,
    handle: JobHandle[Any, Any, Any],
    *,
    call: BodyCaller,
    clock: Callable[[], datetime],
    random: Random,
    timer: Callable[[], float] = time.perf_counter,
) -> Execution:
    """Run the body of a claimed job and decide how to settle it. Nothing is written."""
    __tracebackhide__ = True
    started_at, began = clock(), timer()
    token = enqueuing_job.set(job.id)
    try:
        if "before_body" in points.heard:
            await points.reach("before_body", job=job)
        await call(handle, _context(job, handle, clock), handle.codec.decode(job.input))
        if "after_body" in points.heard:
            await points.reach("after_body", job=job)
    except Exception as error:  # noqa: BLE001 - whatever a body raises is its outcome
        settlement, outcome = _failed(job, handle, error, random)
        return Execution(settlement._replace(duration=_since(began, timer)), outcome, started_at, error)
    except BaseException as interrupt:  # noqa: BLE001 - given back here, raised again by the caller
        settlement = Nack(job, error=_describe(interrupt), counted=False)
        return Execution(settlement, "interrupted", started_at, interrupt, interrupt)
    finally:
        enqueuing_job.reset(token)
    return Execution(Ack(job, _since(began, timer)), "completed", started_at)


async def settle(driver: Driver, execution: Execution, *, worker_id: str) -> bool:
    """Write the outcome of one execution; False when the claim was gone and nothing was written."""
    settlement = execution.settlement
    if "before_settle" in points.heard:
        await points.reach("before_settle", job=settlement.job, outcome=execution.outcome)
    if isinstance(settlement, Ack):
        landed = await ack(driver, [settlement], worker_id=worker_id)
    else:
        landed = await nack(driver, [settlement], worker_id=worker_id)
    if "after_settle" in points.heard:
        await points.reach("after_settle", job=settlement.job, outcome=execution.outcome, landed=bool(landed))
    return bool(landed)


def _context(job: ClaimedJob, handle: JobHandle[Any, Any, Any], clock: Callable[[], datetime]) -> tuple[Any, ...]:
    if not handle.takes_context:
        return ()
    kind = AsyncContext if handle.is_async else Context
    return (
        kind(
            job_id=job.id,
            run_id=job.run_id,
            attempt=job.attempt,
            max_attempts=job.max_attempts,
            tenant=job.tenant_id,
            enqueued_by=job.enqueued_by,
            traceparent=job.traceparent,
            clock=clock,
        ),
    )


def _failed(job: ClaimedJob, handle: JobHandle[Any, Any, Any], error: Exception, random: Random) -> tuple[Nack, str]:
    text, stack = _describe(error), "".join(traceback.format_exception(error))
    if job.attempt < job.max_attempts:
        delay = handle.retry.delay_after(job.attempt, random)
        return Nack(job, delay=delay, error=text, stack=stack), "retried"
    if handle.retry.dead_letter:
        return Nack(job, error=text, stack=stack, dead_letter=True), "dead-lettered"
    return Nack(job, error=text, stack=stack, fail=True), "dropped"


def _describe(error: BaseException) -> str:
    """The text of `last_error`; an exception whose own text fails is still described."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception as problem:  # noqa: BLE001 - foreign code, and the attempt has to be settled
        text = f"<its text raised {type(problem).__name__}>"
    code = f" [{error.code}]" if isinstance(error, Error) else ""
    return f"{name}{code}: {text}" if text else f"{name}{code}"


def _since(began: float, timer: Callable[[], float]) -> timedelta:
    return timedelta(seconds=max(0.0, timer() - began))

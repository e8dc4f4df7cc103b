"""Telling a job's `on_settled` hook how a run ended, after the row says so, by whoever wrote it there."""

from __future__ import annotations

from typing import Any

from xjobs.errors import Error, OnSettledFailed
from xjobs.jobs import JobHandle
from xjobs.operations.attempt import BodyCaller, Execution, describe
from xjobs.records import ClaimedJob, Ending
from xjobs.signals import RunSignal

ENDINGS = ("completed", "dead-lettered", "dropped", "refused")
"""The outcomes that end a run."""

TRIES = 3
"""How often a hook that fails is called, back to back."""


async def announce(
    job: ClaimedJob, handle: JobHandle[Any, Any, Any], execution: Execution, *, call: BodyCaller
) -> OnSettledFailed | None:
    """Tell the hook of an execution whose settle has landed; answers what went wrong, which changes nothing else."""
    if handle.ending_hook is None or execution.outcome not in ENDINGS:
        return None
    error = execution.error
    text = getattr(execution.settlement, "error", None)
    code = error.code if isinstance(error, Error) else None
    return await _tell(job, handle, execution.outcome, execution.values, execution.result, text, code, call)


async def announce_buried(
    job: ClaimedJob, handle: JobHandle[Any, Any, Any], *, call: BodyCaller
) -> OnSettledFailed | None:
    """Tell the hook of a row that a claim buried, since its lease had lapsed on the final attempt."""
    if handle.ending_hook is None:
        return None
    try:
        values = handle.codec.decode(job.input)
    except Error:
        values = None
    outcome = "dead-lettered" if job.state == "dead" else "dropped"
    return await _tell(job, handle, outcome, values, None, job.last_error, None, call)


async def _tell(
    job: ClaimedJob,
    handle: JobHandle[Any, Any, Any],
    outcome: str,
    values: dict[str, Any] | None,
    result: Any,
    error: str | None,
    code: str | None,
    call: BodyCaller,
) -> OnSettledFailed | None:
    __tracebackhide__ = True
    hook = handle.ending_hook
    assert hook is not None  # noqa: S101 - the callers looked
    ending = Ending(handle, job.id, job.run_id, outcome, job.attempt, job.tenant_id, values, result, error, code)
    failure = Exception()
    for _ in range(TRIES):
        try:
            await call(hook, (ending,), {}, RunSignal())
        except Exception as problem:  # noqa: BLE001 - foreign code, and the run has ended whatever it does
            failure = problem
        else:
            return None
    failed = OnSettledFailed(
        f"the on_settled hook of job {handle.name!r} failed {TRIES} times for job {job.id}, which is {outcome}:"
        f" {describe(failure)}",
        "the row stands as it is; mend the hook, and do by hand what it should have done",
        job_id=job.id,
        outcome=outcome,
    )
    failed.__cause__ = failure
    return failed

"""What operators do to jobs: cancel, requeue, promote and remove, one by its id or many by a filter.

A refusal changes nothing. The bulk verbs take the oldest first and at most 1,000 a call; they answer how many they
moved and how many another call could still move, so calling until that is zero comes to an end.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from xjobs import sql
from xjobs.drivers.base import Driver
from xjobs.errors import (
    Invariant,
    JobDuplicate,
    JobNotCancellable,
    JobNotFound,
    JobNotPromotable,
    JobNotRemovable,
    JobNotRequeueable,
)
from xjobs.ids import check_id
from xjobs.jobs import JobHandle
from xjobs.limits import check_count, check_text
from xjobs.records import Bulk, JobRow
from xjobs.sql import Statement
from xjobs.states import ALL, FINISHED, LIVE

MAX_BULK = 1_000
"""The most jobs that one bulk call moves."""

JobId = UUID | str
JobFilter = JobHandle[Any, Any, Any] | str | None


async def cancel(driver: Driver, id: JobId, *, reason: str | None = None) -> JobRow:  # noqa: A002 - the column's name
    """Stop a live job and answer its row; a running body learns of it at its next heartbeat.

    Args:
        id: the job's.
        reason: becomes `last_error`.

    Raises:
        JobNotCancellable: there is no such job, or it has finished.
    """
    job_id, reason = check_id(id, "id"), _reason(reason)
    rows = await driver.run(sql.SQL_CANCEL, id=job_id, reason=reason)
    if not rows:
        raise JobNotCancellable(f"there is no job {job_id}", "look its id up in queue.jobs()", id=job_id)
    was, *columns = rows[0]
    if columns[0] is None:
        raise JobNotCancellable(f"job {job_id} is {was}", "only a live job can be stopped", id=job_id, state=was)
    return JobRow(*columns)


async def requeue(driver: Driver, id: JobId, *, from_step: str | None = None) -> JobRow:  # noqa: A002
    """Make a finished job ready again, with all its attempts, due now, in the same run; answer its row.

    Its recorded steps are replayed. `from_step` drops that step and those that began after it, in the same statement; a
    name that the run does not have drops nothing.

    Raises:
        JobNotFound: there is no such job.
        Invariant: `from_step` is no step name.
        JobNotRequeueable: it has not finished.
        JobDuplicate: a live job holds its key.
    """
    job_id = check_id(id, "id")
    step = None if from_step is None else check_text(from_step, "step")
    while True:
        rows = await driver.run(sql.SQL_REQUEUE, id=job_id, from_step=step)
        if not rows:
            raise _not_found(job_id)
        was, holder, *columns = rows[0]
        if columns[0] is not None:
            return JobRow(*columns)
        if was not in FINISHED or holder is not None:
            break
        # It was moved while the statement waited for it, so the steps that the statement saw are old.
    if was not in FINISHED:
        raise JobNotRequeueable(
            f"job {job_id} is {was}", "only a finished job can be requeued; cancel it first", id=job_id, state=was
        )
    raise JobDuplicate(
        f"the key of job {job_id} is held by the live job {holder}", "wait until that one has finished", id=holder
    )


async def promote(driver: Driver, id: JobId) -> JobRow:  # noqa: A002
    """Make a job that waits for its instant due now, and answer its row. A suspended job wakes by its own rules.

    Raises:
        JobNotFound: there is no such job.
        JobNotPromotable: it does not wait.
    """
    job_id = check_id(id, "id")
    rows = await driver.run(sql.SQL_PROMOTE, id=job_id)
    if not rows:
        raise _not_found(job_id)
    was, *columns = rows[0]
    if columns[0] is None:
        state = "due already" if was in ("ready", "delayed") else was
        raise JobNotPromotable(
            f"job {job_id} is {state}", "only a ready or delayed job that is not due yet can be", id=job_id, state=was
        )
    return JobRow(*columns)


async def remove(driver: Driver, id: JobId) -> JobRow:  # noqa: A002
    """Delete a job that is not running, with the steps of its run, and answer the row that it was.

    Raises:
        JobNotFound: there is no such job.
        JobNotRemovable: it is running.
    """
    job_id = check_id(id, "id")
    while True:
        rows = await driver.run(sql.SQL_REMOVE, id=job_id)
        if not rows:
            raise _not_found(job_id)
        was, *columns = rows[0]
        if columns[0] is not None:
            return JobRow(*columns)
        if was == "running":
            raise JobNotRemovable(f"job {job_id} is {was}", "cancel it first", id=job_id, state=was)
        # It was moved while the statement waited for it, so what the statement saw of its run is old.


async def cancel_many(
    driver: Driver,
    *,
    state: str,
    queue: str | None = None,
    job: JobFilter = None,
    tenant: str | None = None,
    limit: int = MAX_BULK,
    reason: str | None = None,
) -> Bulk:
    """Cancel live jobs of one state.

    Raises:
        Invariant: `state` is not a live one, or another argument cannot be.
    """
    filters = _filters(state, LIVE, queue, job, tenant, limit)
    return await _bulk(driver, sql.SQL_CANCEL_MANY, reason=_reason(reason), **filters)


async def requeue_many(
    driver: Driver,
    *,
    state: str,
    queue: str | None = None,
    job: JobFilter = None,
    tenant: str | None = None,
    limit: int = MAX_BULK,
) -> Bulk:
    """Requeue finished jobs of one state whose key is free; of several with one key, the oldest.

    Raises:
        Invariant: `state` is not a finished one, or another argument cannot be.
    """
    return await _bulk(driver, sql.SQL_REQUEUE_MANY, **_filters(state, FINISHED, queue, job, tenant, limit))


async def promote_many(
    driver: Driver,
    *,
    state: str,
    queue: str | None = None,
    job: JobFilter = None,
    tenant: str | None = None,
    limit: int = MAX_BULK,
) -> Bulk:
    """Make jobs of one state that wait for their instant due now.

    Raises:
        Invariant: `state` is not ready or delayed, or another argument cannot be.
    """
    return await _bulk(driver, sql.SQL_PROMOTE_MANY, **_filters(state, ("ready", "delayed"), queue, job, tenant, limit))


async def remove_many(
    driver: Driver,
    *,
    state: str,
    queue: str | None = None,
    job: JobFilter = None,
    tenant: str | None = None,
    limit: int = MAX_BULK,
) -> Bulk:
    """Delete jobs of one state, with the steps of their runs.

    Raises:
        JobNotRemovable: `state` is running.
        Invariant: another argument cannot be.
    """
    if state == "running":
        raise JobNotRemovable("state is 'running'", "cancel the jobs first", state=state)
    return await _bulk(driver, sql.SQL_REMOVE_MANY, **_filters(state, ALL, queue, job, tenant, limit))


def _filters(
    state: str, allowed: tuple[str, ...], queue: str | None, job: JobFilter, tenant: str | None, limit: int
) -> dict[str, Any]:
    if state not in allowed:
        raise Invariant(f"state is {state!r}", f"give one of {', '.join(allowed)}")
    name = job if job is None or isinstance(job, str) else job.name
    return {
        "state": state,
        "queue": None if queue is None else check_text(queue, "queue"),
        "name": None if name is None else check_text(name, "name"),
        "tenant_id": None if tenant is None else check_text(tenant, "tenant"),
        "limit": check_count(limit, "limit", high=MAX_BULK),
    }


async def _bulk(driver: Driver, statement: Statement, **parameters: Any) -> Bulk:
    (row,) = await driver.run(statement, **parameters)
    return Bulk(*row)


def _reason(reason: str | None) -> str | None:
    return None if reason is None else check_text(reason, "reason")


def _not_found(job_id: UUID) -> JobNotFound:
    return JobNotFound(f"there is no job {job_id}", "look its id up in queue.jobs()", id=job_id)

"""Reading jobs, without changing anything."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any
from uuid import UUID

from xjobs import sql
from xjobs.drivers.base import Driver
from xjobs.errors import Invariant, PageInvalid
from xjobs.ids import check_id
from xjobs.jobs import JobHandle
from xjobs.limits import check_count, check_instant, check_text
from xjobs.records import EPOCH, MICROSECOND, JobRow, Waiting
from xjobs.states import ALL, check_state

MAX_PAGE = 200
"""The most rows of one listing."""


async def job(driver: Driver, id: UUID | str) -> JobRow | None:  # noqa: A002 - the column's name
    """The job with this id, or None.

    Raises:
        IdInvalid: not a UUID.
        RowStateUnknown: the row is from a newer version.
    """
    rows = await driver.run(sql.SQL_JOB, id=check_id(id, "id"))
    return _checked(rows[0]) if rows else None


async def jobs(
    driver: Driver,
    job: JobHandle[Any, Any, Any] | str | None = None,
    *,
    queue: str | None = None,
    state: str | None = None,
    tenant: str | None = None,
    id_prefix: str | None = None,
    created_from: datetime | None = None,
    created_to: datetime | None = None,
    after: JobRow | str | None = None,
    before: JobRow | str | None = None,
    limit: int = 100,
) -> list[JobRow]:
    """One page of the jobs that match every filter, newest first.

    A page shorter than its limit is the last one. Jobs that are enqueued while pages are turned are newer than every
    cursor, so each job that was there before is seen once.

    Args:
        job: a handle, or a job's name.
        queue, state, tenant: of the rows.
        id_prefix: the beginning of the id, as text.
        created_from: the earliest instant of the enqueue.
        created_to: the first instant that is too late.
        after: the last row of the page before this one, or its `cursor`.
        before: the first row of the page after this one, or its `cursor`: answers the rows nearest to it.
        limit: at most 200.

    Raises:
        PageInvalid: `limit` is over 200, or a cursor is not one.
        Invariant: an unknown state, both cursors, or another filter that cannot be.
    """
    if check_count(limit, "limit") > MAX_PAGE:
        raise PageInvalid(f"limit is {limit}", f"ask for at most {MAX_PAGE} rows a page")
    if after is not None and before is not None:
        raise Invariant("both after= and before= are given", "give the cursor of one side")
    filters = _filters(job, queue, state, tenant, id_prefix, created_from, created_to)
    if before is not None:
        at, job_id = _cursor(before, "before")
        rows = await driver.run(sql.SQL_JOBS_BEFORE, before_created_at=at, before_id=job_id, limit=limit, **filters)
    else:
        since, last = (None, None) if after is None else _cursor(after, "after")
        rows = await driver.run(sql.SQL_JOBS, after_created_at=since, after_id=last, limit=limit, **filters)
    return [_checked(row) for row in rows]


async def every_job(driver: Driver) -> list[JobRow]:
    """All rows there are, in the order of their enqueues; for tests, whose tables are small."""
    nothing = _filters(None, None, None, None, None, None, None)
    rows = await driver.run(sql.SQL_JOBS, after_created_at=None, after_id=None, limit=2**31 - 1, **nothing)
    return [_checked(row) for row in reversed(rows)]


def _filters(
    job: JobHandle[Any, Any, Any] | str | None,
    queue: str | None,
    state: str | None,
    tenant: str | None,
    id_prefix: str | None,
    created_from: datetime | None,
    created_to: datetime | None,
) -> dict[str, Any]:
    if state is not None and state not in ALL:
        raise Invariant(f"state is {state!r}", f"give one of {', '.join(ALL)}")
    name = job if job is None or isinstance(job, str) else job.name
    return {
        "name": None if name is None else check_text(name, "name"),
        "queue": None if queue is None else check_text(queue, "queue"),
        "state": state,
        "tenant_id": None if tenant is None else check_text(tenant, "tenant"),
        "id_prefix": None if id_prefix is None else check_text(id_prefix, "id_prefix").lower(),
        "created_from": None if created_from is None else check_instant(created_from, "created_from"),
        "created_to": None if created_to is None else check_instant(created_to, "created_to"),
    }


_CURSOR = re.compile(r"(-?[0-9]{1,18}):([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})")


def _cursor(cursor: JobRow | str, name: str) -> tuple[datetime, UUID]:
    """The instant and id that a cursor names. What was given is not repeated in the error: it may be a stranger's."""
    if isinstance(cursor, JobRow):
        return cursor.created_at, cursor.id
    match = _CURSOR.fullmatch(cursor) if isinstance(cursor, str) else None
    try:
        if match is not None:
            return EPOCH + int(match[1]) * MICROSECOND, UUID(match[2])
    except OverflowError:
        pass
    raise PageInvalid(f"{name}= is not a cursor", "pass a row of a page, or its cursor")


async def waiting(driver: Driver, limit: int = 100) -> list[Waiting]:
    """The live jobs by the instant from which a claim could take them, earliest first; those of paused queues last."""
    return [Waiting(*row) for row in await driver.run(sql.SQL_WAITING, limit=check_count(limit, "limit"))]


def _checked(row: tuple[Any, ...]) -> JobRow:
    answer = JobRow(*row)
    check_state(answer.state)
    return answer

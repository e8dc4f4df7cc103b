"""Reading jobs, without changing anything."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from xjobs import sql
from xjobs.drivers.base import Driver
from xjobs.errors import Invariant, PageInvalid
from xjobs.ids import check_id
from xjobs.jobs import JobHandle
from xjobs.limits import check_count, check_text
from xjobs.records import JobRow, Waiting
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
    limit: int = 100,
) -> list[JobRow]:
    """The newest jobs that match, newest first; at most 200.

    Raises:
        PageInvalid: `limit` is over 200.
        Invariant: an unknown state, or another filter that cannot be.
    """
    if state is not None and state not in ALL:
        raise Invariant(f"state is {state!r}", f"give one of {', '.join(ALL)}")
    if check_count(limit, "limit") > MAX_PAGE:
        raise PageInvalid(f"limit is {limit}", f"ask for at most {MAX_PAGE} rows a page")
    name = job if job is None or isinstance(job, str) else job.name
    rows = await driver.run(
        sql.SQL_JOBS,
        name=None if name is None else check_text(name, "name"),
        queue=None if queue is None else check_text(queue, "queue"),
        state=state,
        limit=limit,
    )
    return [_checked(row) for row in rows]


async def waiting(driver: Driver, limit: int = 100) -> list[Waiting]:
    """The live jobs by the instant from which a claim could take them, earliest first; those of paused queues last."""
    return [Waiting(*row) for row in await driver.run(sql.SQL_WAITING, limit=check_count(limit, "limit"))]


def _checked(row: tuple[Any, ...]) -> JobRow:
    answer = JobRow(*row)
    check_state(answer.state)
    return answer

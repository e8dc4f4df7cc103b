"""Putting jobs in: one statement inserts each job or answers the row that stands in its place."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from xjobs import points, sql, tracing
from xjobs.drivers.base import Driver
from xjobs.errors import DriverUnavailable, Invariant, JobDuplicate
from xjobs.ids import new_pair, new_pairs
from xjobs.jobs import Call
from xjobs.records import Enqueued, maker

enqueuing_job: ContextVar[UUID | None] = ContextVar("xjobs_enqueuing_job", default=None)
"""The job whose body is running here; it is the parent of what the body enqueues."""

# The holder of a key may settle between the insert that it stopped and the look at it; then the key is free, and may
# be taken by another one that is not visible yet. With a broken index every try ends so.
_TRIES = 10

Columns = dict[str, list[Any]]

_enqueued = maker(Enqueued)

_PLURALS = {
    "id": "ids",
    "name": "names",
    "queue": "queues",
    "input": "inputs",
    "idempotency_key": "idempotency_keys",
    "run_id": "run_ids",
    "max_attempts": "max_attempts",
    "run_at": "run_ats",
    "delay": "delays",
    "tenant_id": "tenant_ids",
    "traceparent": "traceparents",
    "enqueued_by": "enqueued_bys",
}
"""What the columns of a row are called in statements over many."""


async def enqueue(driver: Driver, call: Call) -> Enqueued:
    """Add one job; a live job with its key, or any job with its given id, answers in its place.

    Raises:
        JobDuplicate: the call says `on_conflict="error"` and a live job holds the key.
        DriverUnavailable: the store does not answer.
    """
    row = _row(call)
    if call.options.id is None and await driver.run(sql.SQL_ENQUEUE_ONE, **row):
        made = _enqueued((row["id"], row["run_id"], False))
    else:
        (made,) = await _put(driver, [call], _as_many(row, named=call.options.id is not None))
    if "enqueued" in points.heard:
        await _announce([call], [made])
    if made.deduped and call.options.on_conflict == "error" and made.id != call.options.id:
        raise JobDuplicate(
            f"job {call.job.name!r} is already live under this key, as {made.id}",
            "leave on_conflict at 'dedupe' to be answered that job, or wait until it has finished",
            id=made.id,
            run_id=made.run_id,
            name=call.job.name,
        )
    return made


async def enqueue_many(driver: Driver, calls: Sequence[Call]) -> list[Enqueued]:
    """Add many jobs in one statement, all or none; the answers are in the order of the calls.

    Two calls with one key are one job, whether the other one is in the store already or in the same list.

    Raises:
        Invariant: a call says `on_conflict="error"`, which is for single enqueues, or two calls name one id.
        DriverUnavailable: the store does not answer.
    """
    chosen = [call.options.id for call in calls if call.options.id is not None]
    if len(set(chosen)) != len(chosen):
        raise Invariant("two of the calls are given the same id", "give each call its own id, or none")
    for call in calls:
        if call.options.on_conflict == "error":
            raise Invariant(
                f"{call!r} says on_conflict='error' among {len(calls)} calls",
                "enqueue it by itself, or look at deduped in the answers",
            )
    if not calls:
        return []
    answers = await _put(driver, calls, _rows(calls))
    if "enqueued" in points.heard:
        await _announce(calls, answers)
    return answers


async def _put(driver: Driver, calls: Sequence[Call], rows: Columns) -> list[Enqueued]:
    """Insert the rows, or find what stands in their place; again for those of which neither was to be seen."""
    answers = await _insert(driver, rows)
    missing = [position for position, answer in enumerate(answers) if answer.id is None]
    for _ in range(_TRIES - 1):
        if not missing:
            break
        again = await _insert(driver, {name: [values[at] for at in missing] for name, values in rows.items()})
        for position, answer in zip(missing, again, strict=True):
            answers[position] = answer
        missing = [position for position in missing if answers[position].id is None]
    if missing:
        raise DriverUnavailable(
            f"job {calls[missing[0]].job.name!r} was refused {_TRIES} times by a key that no live job holds",
            "check the live index with `xjobs schema check` and install the schema again",
        )
    return answers


async def _insert(driver: Driver, rows: Columns) -> list[Enqueued]:
    """Insert the rows; those that were not are answered by what holds their id or key, or None."""
    standing = await driver.run(sql.SQL_ENQUEUE, **rows)
    answers = [_enqueued((job_id, run_id, False)) for job_id, run_id in zip(rows["ids"], rows["run_ids"], strict=True)]
    if standing:
        tenants = [tenant or "" for tenant in rows["tenant_ids"]]
        keys = list(zip(rows["names"], tenants, rows["idempotency_keys"], strict=True))
        places = {position - 1 for position, _, _ in standing}
        made = {keys[at]: answer for at, answer in enumerate(answers) if at not in places}
        for position, job_id, run_id in standing:
            at = position - 1
            # A job of the same list has taken the key, unless the row with the given id was there before.
            sibling = None if job_id == rows["ids"][at] else made.get(keys[at])
            answers[at] = Enqueued(job_id, run_id, True) if sibling is None else sibling._replace(deduped=True)
    return answers


async def _announce(calls: Sequence[Call], answers: Sequence[Enqueued]) -> None:
    for call, answer in zip(calls, answers, strict=True):
        await points.reach("enqueued", call=call, answer=answer, parent=enqueuing_job.get())


def _row(call: Call) -> dict[str, Any]:
    """The columns of one job, as `SQL_ENQUEUE_ONE` takes them."""
    job, _, _, options = call
    job_id, run_id = new_pair()
    if options.id is not None:
        job_id = options.id
    return {
        "id": job_id,
        "name": job.name,
        "queue": options.queue or job.queue,
        "input": call.input_json,
        "idempotency_key": job.key_of(call, job_id),
        "run_id": options.run_id or run_id,
        "max_attempts": job.retry.attempts,
        "run_at": options.run_at,
        "delay": options.delay,
        "tenant_id": job.tenant_of(call),
        "traceparent": options.traceparent or tracing.current(),
        "enqueued_by": options.enqueued_by,
    }


def _rows(calls: Sequence[Call]) -> Columns:
    """The columns of many jobs, as `SQL_ENQUEUE` takes them: a list for each column, which is quicker than a row for
    each job.
    """
    jobs, options = [call.job for call in calls], [call.options for call in calls]
    pairs = new_pairs(len(calls))
    ids = [given.id or job_id for given, (job_id, _) in zip(options, pairs, strict=True)]
    traceparent = tracing.current()
    return {
        "ids": ids,
        "named": [given.id is not None for given in options],
        "names": [job.name for job in jobs],
        "queues": [given.queue or job.queue for given, job in zip(options, jobs, strict=True)],
        "inputs": [call.input_json for call in calls],
        "idempotency_keys": [call.job.key_of(call, job_id) for call, job_id in zip(calls, ids, strict=True)],
        "run_ids": [given.run_id or run_id for given, (_, run_id) in zip(options, pairs, strict=True)],
        "max_attempts": [job.retry.attempts for job in jobs],
        "run_ats": [given.run_at for given in options],
        "delays": [given.delay for given in options],
        "tenant_ids": [call.job.tenant_of(call) for call in calls],
        "traceparents": [given.traceparent or traceparent for given in options],
        "enqueued_bys": [given.enqueued_by for given in options],
    }


def _as_many(row: dict[str, Any], *, named: bool) -> Columns:
    """One row as `SQL_ENQUEUE` takes it."""
    return {"named": [named], **{_PLURALS[column]: [value] for column, value in row.items()}}

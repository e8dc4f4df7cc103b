"""Twins of the statements in sql/enqueue.sql."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from xjobs.drivers.memory.store import Job, LiveKey, Session


def enqueue(
    session: Session,
    *,
    ids: Sequence[UUID],
    named: Sequence[bool],
    names: Sequence[str],
    queues: Sequence[str],
    inputs: Sequence[str],
    idempotency_keys: Sequence[str],
    run_ids: Sequence[UUID],
    max_attempts: Sequence[int],
    run_ats: Sequence[datetime | None],
    delays: Sequence[timedelta | None],
    tenant_ids: Sequence[str | None],
    traceparents: Sequence[str | None],
    enqueued_bys: Sequence[str | None],
) -> list[tuple[Any, ...]]:
    """Twin of SQL_ENQUEUE."""
    made: dict[LiveKey, Job] = {}
    answers: list[tuple[Any, ...]] = []
    rows = zip(
        ids,
        names,
        queues,
        inputs,
        idempotency_keys,
        run_ids,
        max_attempts,
        run_ats,
        delays,
        tenant_ids,
        traceparents,
        enqueued_bys,
        strict=True,
    )
    for position, (is_named, row) in enumerate(zip(named, rows, strict=True), 1):
        job_id, name, key, tenant = row[0], row[1], row[4], row[9]
        live_key = (name, tenant or "", key)
        standing = _standing(session, job_id, is_named, live_key, made)
        if standing is None:
            made[live_key] = Job(session.now, live_key, *row)
        elif made.get(live_key) is standing:
            answers.append((position, None, None))
        else:
            answers.append((position, standing.id, standing.run_id))
    for job in made.values():
        session.insert(job)
    return answers


def enqueue_one(
    session: Session,
    *,
    id: UUID,  # noqa: A002 - the parameter of the statement
    name: str,
    queue: str,
    input: str,  # noqa: A002
    idempotency_key: str,
    run_id: UUID,
    max_attempts: int,
    run_at: datetime | None,
    delay: timedelta | None,
    tenant_id: str | None,
    traceparent: str | None,
    enqueued_by: str | None,
) -> list[tuple[Any, ...]]:
    """Twin of SQL_ENQUEUE_ONE."""
    live_key = name, tenant_id or "", idempotency_key
    store = session.store
    # Nearly always nothing is in the way, which three look-ups tell.
    if (live_key in store.live or store.freeing or id.int in store.jobs) and (
        _standing(session, id, False, live_key, {}) is not None
    ):
        return []
    job = Job(
        session.now,
        live_key,
        id,
        name,
        queue,
        input,
        idempotency_key,
        run_id,
        max_attempts,
        run_at,
        delay,
        tenant_id,
        traceparent,
        enqueued_by,
    )
    session.insert(job)
    return [(id,)]


def _standing(session: Session, job_id: UUID, named: bool, live_key: LiveKey, made: dict[LiveKey, Job]) -> Job | None:
    """The row that answers in place of a new one."""
    store = session.store
    known = store.jobs.get(job_id.int)
    if named and known is not None:
        seen = session.visible(known)
        if seen is not None:
            return seen
    holder = store.live.get(live_key)
    if holder is not None:
        session.wait_for_key(holder)
        return holder
    if live_key in store.freeing:
        session.wait_for_key(store.freeing[live_key])
    sibling = made.get(live_key)
    if sibling is None and known is not None:
        # Last, as on Postgres: only a row that no key keeps out comes to the primary key.
        session.wait_for_key(known, f"the id {job_id}")
    return sibling

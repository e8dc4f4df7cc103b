"""Twins of the statements in sql/workers.sql."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from msgspec.json import decode

from xjobs.drivers.memory.store import Session, Worker


def announce(
    session: Session,
    *,
    id: str,  # noqa: A002 - the parameter's name
    host: str,
    queues: str,
    concurrency: int,
    in_flight: str,
    started_at: datetime,
    ttl: timedelta,
    draining: bool,
) -> list[tuple[Any, ...]]:
    """Twin of SQL_WORKER_ANNOUNCE."""
    row = session.store.workers.get(id)
    if row is not None:
        session.wait_for(row, f"worker {id!r}")
    if row is None or row.gone:
        row = Worker()
        row.id, row.draining_at = id, None
        session.put(session.store.workers, id, row)
    else:
        session.keep(row)
    row.host, row.queues, row.concurrency, row.in_flight, row.started_at = (
        host,
        queues,
        concurrency,
        in_flight,
        started_at,
    )
    row.heartbeat_at, row.expires_at = session.now, session.now + ttl
    row.draining_at = (row.draining_at or session.now) if draining else None
    return [(row.draining_at,)]


def forget(session: Session, *, id: str) -> list[tuple[Any, ...]]:  # noqa: A002 - the parameter's name
    """Twin of SQL_WORKER_FORGET."""
    row = session.store.workers.get(id)
    if row is None or session.visible(row) is None:
        return []
    session.wait_for(row, f"worker {id!r}")
    session.drop(session.store.workers, id, row)
    return [(id,)]


def workers(session: Session) -> list[tuple[Any, ...]]:
    """Twin of SQL_WORKERS."""
    live: list[Worker] = []
    for worker_id, row in list(session.store.workers.items()):
        seen = session.visible(row)
        if seen is None:
            continue
        if seen.expires_at > session.now:
            live.append(seen)
        elif not session.locked(row):
            session.drop(session.store.workers, worker_id, row)
    live.sort(key=lambda worker: (worker.started_at, worker.id.encode()))
    return [
        (
            worker.id,
            worker.host,
            decode(worker.queues),
            worker.concurrency,
            decode(worker.in_flight),
            worker.started_at,
            worker.heartbeat_at,
            worker.expires_at,
            worker.draining_at,
        )
        for worker in live
    ]

"""Twins of the statements in sql/events.sql, and the table of events."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from heapq import nlargest, nsmallest
from typing import Any
from uuid import UUID

from msgspec.json import decode

from xjobs.drivers.memory.store import Row, Session

Rows = list[tuple[Any, ...]]


class StoredEvent(Row):
    """A row of x_job_events. `payload` is JSON text."""

    __slots__ = ("correlation_key", "expires_at", "id", "name", "payload", "published_at")

    def __init__(
        self,
        id: UUID,  # noqa: A002 - the column's name
        name: str,
        payload: str,
        correlation_key: str | None,
        published_at: datetime,
        ttl: timedelta,
    ) -> None:
        super().__init__()
        self.id = id
        self.name = name
        self.payload = payload
        self.correlation_key = correlation_key
        self.published_at = published_at
        self.expires_at = published_at + ttl


def publish(
    session: Session,
    *,
    id: UUID,  # noqa: A002 - the parameter of the statement
    name: str,
    payload: str,
    correlation_key: str | None,
    ttl: timedelta,
) -> Rows:
    """Twin of SQL_EVENT_PUBLISH."""
    event = StoredEvent(id, name, payload, correlation_key, session.now, ttl)
    session.put(session.store.events.setdefault(name, {}), id, event)
    waited_for = any(
        seen.event == name and seen.status == "waiting"
        for step in session.store.waits.values()
        if (seen := session.visible(step)) is not None
    )
    if waited_for:
        session.notify("x_events_wake", name)
    return [(event.published_at, event.expires_at, "" if waited_for else None)]


def events(session: Session, *, name: str | None, limit: int) -> Rows:
    """Twin of SQL_EVENTS."""
    names = session.store.events if name is None else [name]
    found = (event for each in names for event in visible_events(session, each))
    return [
        (event.id, event.name, decode(event.payload), event.correlation_key, event.published_at, event.expires_at)
        for event in nlargest(limit, found, key=lambda event: event.id.int)
    ]


def purge(session: Session, *, limit: int) -> Rows:
    """Twin of SQL_EVENTS_PURGE."""
    expired = [
        event
        for table in session.store.events.values()
        for event in table.values()
        if not session.locked(event) and not event.gone and event.expires_at <= session.now
    ]
    gone = nsmallest(limit, expired, key=lambda event: event.id.int)
    for event in gone:
        session.drop(session.store.events[event.name], event.id, event)
    return [(len(gone),)]


def visible_events(session: Session, name: str) -> Iterator[StoredEvent]:
    """The events of a name that a session sees and that have not expired."""
    for row in session.store.events.get(name, {}).values():
        seen: StoredEvent | None = session.visible(row)
        if seen is not None and seen.expires_at > session.now:
            yield seen

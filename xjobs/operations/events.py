"""Publishing events that runs wait for, waking those runs, and deleting what has expired."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from xjobs import sql
from xjobs.codec import to_json
from xjobs.drivers.base import Driver
from xjobs.ids import new_id
from xjobs.limits import check_count, check_duration, check_text
from xjobs.records import Event

TTL = timedelta(days=7)
"""How long an event can be found, when its publisher says nothing."""

MAX_PAGE = 1_000
PURGE_BATCH = 1_000


async def publish(
    driver: Driver,
    name: str,
    payload: Any = None,
    *,
    correlation_key: str | None = None,
    ttl: timedelta | float = TTL,
) -> Event:
    """Store an event, for every run that waits for it now or later, until it expires.

    Args:
        name: what happened, such as `parcel.picked`.
        payload: strict JSON values.
        correlation_key: whom it concerns; waits compare it with their `match`.
        ttl: how long it can be found, a timedelta or seconds; seven days when not given.

    Raises:
        InputInvalid: the payload is not strict JSON; the message names the path.
        Invariant: a name, key or ttl that cannot be.
    """
    event_id, event = new_id(), check_text(name, "event")
    key = None if correlation_key is None else check_text(correlation_key, "correlation_key")
    payload, text = to_json(payload, "payload")
    duration = check_duration(ttl, "ttl", low=timedelta(microseconds=1))
    ((published_at, _expires_at, _sent),) = await driver.run(
        sql.SQL_EVENT_PUBLISH, id=event_id, name=event, payload=text, correlation_key=key, ttl=duration
    )
    return Event(event_id, event, payload, key, published_at)


async def events(driver: Driver, name: str | None = None, *, limit: int = 100) -> list[Event]:
    """The events that have not expired, of one name or of all, the last one published first.

    Raises:
        Invariant: a limit that is no count, or over 1,000.
    """
    count = check_count(limit, "limit", high=MAX_PAGE)
    rows = await driver.run(sql.SQL_EVENTS, name=None if name is None else check_text(name, "event"), limit=count)
    return [Event(*row[:5]) for row in rows]


async def purge_events(driver: Driver, *, batch: int = PURGE_BATCH) -> int:
    """Delete the events that have expired, `batch` in each statement; answer how many.

    Raises:
        Invariant: `batch` is no count, or zero.
    """
    check_count(batch, "batch", low=1)
    total = 0
    gone: int
    while True:
        ((gone,),) = await driver.run(sql.SQL_EVENTS_PURGE, limit=batch)
        total += gone
        if gone < batch:
            return total


async def wake_waits(driver: Driver, events: Sequence[str] | None = None) -> list[tuple[UUID, str]]:
    """Make suspended runs due whose event has come, of these names or of all; answer the jobs and their queues.

    This is how a waiting run wakes before its time is up: whoever runs jobs asks when it is told of an event, and from
    time to time, for one whose publisher committed late.
    """
    rows = await driver.run(sql.SQL_WAKE_WAITS, events=None if events is None else list(events))
    return [(row[0], row[1]) for row in rows]

"""Twins of the statements in sql/slots.sql."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from xjobs.drivers.memory.store import Session, Slot, SlotKey


def acquire(
    session: Session, *, keys: Sequence[str], limits: Sequence[int], holders: Sequence[str], ttl: timedelta
) -> list[tuple[Any, ...]]:
    """Twin of SQL_SLOT_ACQUIRE."""
    most: Counter[str] = Counter()
    for key, limit in zip(keys, limits, strict=True):
        most[key] = max(most[key], limit)
    free = {key: iter(_free(session, key, limit)) for key, limit in most.items()}
    chosen: list[tuple[int, SlotKey, str]] = []
    for position, (key, limit, holder) in enumerate(zip(keys, limits, holders, strict=True), 1):
        slot = next(free[key], None)
        if slot is not None and slot < limit:
            chosen.append((position, (key, slot), holder))
    for _, place, _ in chosen:
        _wait_for(session, place)
    for _, place, holder in chosen:
        _take(session, place, holder, ttl)
    return [(position, place[1]) for position, place, _ in chosen]


def release(
    session: Session, *, keys: Sequence[str], slots: Sequence[int], holders: Sequence[str]
) -> list[tuple[Any, ...]]:
    """Twin of SQL_SLOT_RELEASE."""
    held = dict(standing(session, keys, slots, holders, lapsed=True).values())
    for place, slot in held.items():
        session.drop(session.store.slots, place, slot)
    return [(len(held),)]


def holders(session: Session, *, keys: Sequence[str]) -> list[tuple[Any, ...]]:
    """Twin of SQL_SLOT_HOLDERS."""
    live = [
        (key, slot, seen.holder)
        for (key, slot), row in session.store.slots.items()
        if key in keys and (seen := session.visible(row)) is not None and seen.expires_at > session.now
    ]
    return sorted(live, key=lambda row: (row[0].encode(), row[1]))


def standing(
    session: Session, keys: Sequence[str], slots: Sequence[int], holders: Sequence[str], *, lapsed: bool
) -> dict[int, tuple[SlotKey, Slot]]:
    """The slots that their holders hold, by position from 1; lapsed ones too if asked."""
    found: dict[int, tuple[SlotKey, Slot]] = {}
    for position, (key, slot, holder) in enumerate(zip(keys, slots, holders, strict=True), 1):
        row = session.store.slots.get((key, slot))
        seen = None if row is None else session.visible(row)
        if row is None or seen is None or seen.holder != holder or not (lapsed or seen.expires_at > session.now):
            continue
        session.wait_for(row, f"slot {slot} of {key!r}")
        found[position] = (key, slot), row
    return found


def _free(session: Session, key: str, limit: int) -> list[int]:
    """The slots below the limit that nobody is seen to hold, lowest first."""
    free = []
    for slot in range(limit):
        row = session.store.slots.get((key, slot))
        seen = None if row is None else session.visible(row)
        if seen is None or seen.expires_at <= session.now:
            free.append(slot)
    return free


def _wait_for(session: Session, place: SlotKey) -> None:
    row = session.store.slots.get(place)
    if row is not None:
        session.wait_for(row, f"slot {place[1]} of {place[0]!r}")


def _take(session: Session, place: SlotKey, holder: str, ttl: timedelta) -> None:
    row = session.store.slots.get(place)
    if row is None or row.gone:
        row = Slot()
        session.put(session.store.slots, place, row)
    else:
        session.keep(row)
    row.holder, row.expires_at = holder, session.now + ttl

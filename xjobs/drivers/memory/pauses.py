"""Twins of the statements in sql/pauses.sql."""

from __future__ import annotations

from typing import Any

from xjobs.drivers.memory.store import Session


def pause(session: Session, *, kind: str, name: str) -> list[tuple[Any, ...]]:
    """Twin of SQL_PAUSE."""
    return [(name,)] if session.add_pause(kind, name) else []


def resume(session: Session, *, kind: str, name: str) -> list[tuple[Any, ...]]:
    """Twin of SQL_RESUME."""
    return [(name,)] if session.drop_pause(kind, name) else []


def paused(session: Session, *, kind: str) -> list[tuple[Any, ...]]:
    """Twin of SQL_PAUSED."""
    found = [
        (name, seen.paused_at)
        for (kind_of_row, name), pause in session.store.pauses.items()
        if kind_of_row == kind and (seen := session.visible(pause)) is not None
    ]
    return sorted(found, key=lambda row: row[0].encode())

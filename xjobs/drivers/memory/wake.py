"""Twins of the statements in sql/wake.sql."""

from __future__ import annotations

from typing import Any

from xjobs.drivers.memory.store import Session


def wake(session: Session, *, payload: str) -> list[tuple[Any, ...]]:
    """Twin of SQL_WAKE."""
    session.notify("x_jobs_wake", payload)
    return [("",)]

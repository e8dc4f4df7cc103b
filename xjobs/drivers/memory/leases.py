"""Twins of the statements in sql/leases.sql."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from xjobs.drivers.memory.settle import held_claims
from xjobs.drivers.memory.store import Session


def heartbeat(
    session: Session, *, ids: Sequence[UUID], worker_id: str, claims: Sequence[int], lease: timedelta
) -> list[tuple[Any, ...]]:
    """Twin of SQL_HEARTBEAT."""
    held = held_claims(session, ids, worker_id, claims, ids)
    for job, _ in held:
        session.change(job, visible_at=session.now + lease)
    return [(job.id,) for job, _ in held]

"""Twins of the statements in sql/leases.sql."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from xjobs.drivers.memory.settle import held_claims
from xjobs.drivers.memory.slots import standing
from xjobs.drivers.memory.store import Session


def heartbeat(
    session: Session, *, ids: Sequence[UUID], worker_id: str, claims: Sequence[int], lease: timedelta
) -> list[tuple[Any, ...]]:
    """Twin of SQL_HEARTBEAT."""
    held = held_claims(session, ids, worker_id, claims, ids)
    for job, _ in held:
        session.change(job, visible_at=session.now + lease)
    return [(job.id,) for job, _ in held]


def renew(
    session: Session,
    *,
    worker_id: str,
    lease: timedelta,
    ids: Sequence[UUID],
    claims: Sequence[int],
    keys: Sequence[str],
    slots: Sequence[int],
    holders: Sequence[str],
) -> list[tuple[Any, ...]]:
    """Twin of SQL_RENEW."""
    held = held_claims(session, ids, worker_id, claims, range(1, len(ids) + 1))
    kept = standing(session, keys, slots, holders, lapsed=False)
    for job, _ in held:
        session.change(job, visible_at=session.now + lease)
    for _, slot in kept.values():
        session.keep(slot)
        slot.expires_at = session.now + lease
    renewed = {position for _, position in held}
    leases = [
        ("lease", position, "held" if position in renewed else _why_not(session, *claim))
        for position, claim in enumerate(zip(ids, claims, strict=True), 1)
    ]
    return leases + [("slot", at, "held" if at in kept else "lost") for at, _ in enumerate(keys, 1)]


def _why_not(session: Session, job_id: UUID, claim: int) -> str:
    """Why a claim does not stand any more."""
    job = session.store.jobs.get(job_id.int)
    seen = None if job is None else session.visible(job)
    return "cancelled" if seen is not None and seen.state == "cancelled" and seen.claims == claim else "lost"

"""What tests of job bodies need where no queue is involved: a context to call a body with."""

from __future__ import annotations

from typing import TypedDict, Unpack
from uuid import UUID

from xjobs.context import AsyncContext, Context
from xjobs.ids import new_id

__all__ = ["async_context", "context"]


class _Fields(TypedDict, total=False):
    job_id: UUID
    run_id: UUID
    attempt: int
    max_attempts: int
    tenant: str | None
    enqueued_by: str | None
    traceparent: str | None


def context(**fields: Unpack[_Fields]) -> Context:
    """A context for calling a `def` body alone: `welcome_email(context(attempt=3), user_id=7)`.

    Without `fields` it is the first of three attempts of a job with a new id; they are those of `Context`.
    """
    return Context(**_filled(fields))


def async_context(**fields: Unpack[_Fields]) -> AsyncContext:
    """The same for an `async def` body."""
    return AsyncContext(**_filled(fields))


def _filled(fields: _Fields) -> _Fields:
    defaults: _Fields = {"job_id": new_id(), "run_id": new_id(), "attempt": 1, "max_attempts": 3}
    return {**defaults, **fields}

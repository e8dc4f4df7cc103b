"""Owns what the queue's own statements demand of its schema: which index is there for which of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from xjobs.ddl.postgres.queries import Query, Use, single
from xjobs.ddl.sources import Source
from xjobs.sql import statements

__all__ = ["SCHEMA", "queue_queries"]

SCHEMA: Final = "xjobs.sql:SQL_JOBS_TABLE"
"""The reference of the queue's own schema."""

_USES: Final = {
    "SQL_CLAIM": (Use("x_jobs_order_idx", ordered=True), Use("x_jobs_lease_idx", ordered=True)),
    "SQL_ENQUEUE": (Use("x_jobs_name_tenant_idempotency_live_idx"),),
    "SQL_ENQUEUE_ONE": (Use("x_jobs_name_tenant_idempotency_live_idx"),),
    "SQL_JOBS": (Use("x_jobs_created_idx", ordered=True),),
    "SQL_REMOVE": (Use("x_jobs_run_idx"),),
    # Every worker reads it at intervals, so it must find in the index what it counts, and nothing else.
    "SQL_STATS": (Use("x_jobs_depth_idx", whole=True, alone=True),),
}

# An operator's verb for any state but one, which no partial index is over.
_MAY_SCAN: Final = frozenset({"SQL_REMOVE_MANY"})


def queue_queries(changed: Mapping[str, str] = MappingProxyType({})) -> list[Query]:
    """Every statement of the queue, with what it demands; `changed` has other texts for some, by name."""
    return [
        single(
            Source(f"xjobs.sql:{name}", changed.get(name, statement), "queries"),
            uses=_USES.get(name, ()),
            may_scan=name in _MAY_SCAN,
        )
        for name, statement in statements().items()
    ]

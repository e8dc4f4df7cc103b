"""One test, every driver: memory, blocking Postgres and async Postgres.

A conformance test is an `async def` over `queue`, an AsyncQueue. Its driver may be the blocking one, whose coroutines
never suspend. Time is moved by `clock`, on all of them.
"""

from __future__ import annotations

from conformance.fixtures import (
    clock,
    drain,
    drain_of,
    drain_setup,
    own_registry,
    postgres,
    queue,
    second,
    store,
    tables,
    work,
    worker_id,
)

__all__ = [
    "clock",
    "drain",
    "drain_of",
    "drain_setup",
    "own_registry",
    "postgres",
    "queue",
    "second",
    "store",
    "tables",
    "work",
    "worker_id",
]

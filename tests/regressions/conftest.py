"""Regressions run on every driver too."""

from __future__ import annotations

from conformance.fixtures import (
    clock,
    drain,
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

"""The least that a queue in memory does, as a measure of the machine: what our figures in memory are compared with.

One dict for each job, with every column of x_jobs; input as JSON text and back; one live job for each key; a fence on
the settle; counters by minute; jobs in the order in which they are due. No layers, no checks, no second backend.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from typing import Any

LEASE = timedelta(seconds=30)


class BareQueue:
    """Jobs by number."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self.live: dict[tuple[str, str, str], int] = {}
        self.due: list[tuple[datetime, int]] = []
        self.done: dict[tuple[str, int, datetime], int] = {}

    def enqueue(self, name: str, **values: Any) -> int:
        number, now = len(self.rows) + 1, datetime.now(UTC)
        key = name, "", str(number)
        if key in self.live:
            return self.live[key]
        self.rows[number] = {
            "id": number,
            "name": name,
            "queue": "default",
            "state": "ready",
            "input": json.dumps(values),
            "idempotency_key": key[2],
            "run_id": number,
            "attempt": 0,
            "max_attempts": 3,
            "claims": 0,
            "run_at": now,
            "visible_at": None,
            "claimed_by": None,
            "last_error": None,
            "last_error_stack": None,
            "tenant_id": None,
            "created_at": now,
            "updated_at": now,
            "traceparent": None,
            "enqueued_by": None,
            "progress": None,
        }
        self.live[key] = number
        heappush(self.due, (now, number))
        return number

    def drain(self, bodies: dict[str, Callable[..., Any]]) -> None:
        while self.due and self.due[0][0] <= (now := datetime.now(UTC)):
            row = self.rows[heappop(self.due)[1]]
            row["claims"] += 1
            row.update(
                state="running", attempt=row["attempt"] + 1, claimed_by="w", visible_at=now + LEASE, updated_at=now
            )
            claim = row["claims"]
            bodies[row["name"]](**json.loads(row["input"]))
            if row["state"] == "running" and row["claims"] == claim and row["claimed_by"] == "w":
                now = datetime.now(UTC)
                row.update(state="done", claimed_by=None, visible_at=None, updated_at=now)
                del self.live[row["name"], "", row["idempotency_key"]]
                counter = row["name"], 60_000, now.replace(second=0, microsecond=0)
                self.done[counter] = self.done.get(counter, 0) + 1

"""Progress of a running body: at most one write a second, the last value always written, each fenced on the claim."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from xjobs import sql
from xjobs.codec import to_json
from xjobs.drivers.base import Driver
from xjobs.errors import Error
from xjobs.records import ClaimedJob
from xjobs.signals import RunSignal

logger = logging.getLogger("xjobs")

INTERVAL = 1.0
"""Seconds of real time between two writes of one attempt."""

MAX_NOTE = 200
"""How many characters of a note are kept."""


class Progress:
    """What one attempt has reported, and what of it is not written yet."""

    def __init__(
        self,
        driver: Driver,
        job: ClaimedJob,
        *,
        worker_id: str,
        signal: RunSignal,
        clock: Callable[[], datetime],
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._driver = driver
        self._job = job
        self._worker_id = worker_id
        self._signal = signal
        self._clock = clock
        self._timer = timer
        self._pending: str | None = None
        self._next = -math.inf

    async def report(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Note the progress, and write it when the last write is a second ago."""
        value = _value(done, total, note, self._clock())
        if value is None:
            return
        self._pending = value
        if self._timer() >= self._next:
            await self.flush()

    async def flush(self) -> None:
        """Write what is not written yet. A write that fails is logged and fails nothing."""
        value, self._pending = self._pending, None
        if value is None or self._signal.reason is not None:
            return
        self._next = self._timer() + INTERVAL
        job = self._job
        try:
            await self._driver.run(
                sql.SQL_PROGRESS, id=job.id, worker_id=self._worker_id, claim=job.claims, progress=value
            )
        except Error as problem:
            logger.warning("jobs.progress.failed", extra={"job_id": job.id, "problem": str(problem)})


def _value(done: float, total: float | None, note: str | None, at: datetime) -> str | None:
    """The JSON text to store; None for numbers that are not finite, which say nothing."""
    if not math.isfinite(done) or (total is not None and not math.isfinite(total)):
        return None
    value: dict[str, Any] = {"done": done, "total": total, "at": at.isoformat()}
    if note is not None:
        value["note"] = note[:MAX_NOTE]
    return to_json(value, "progress")[1]

"""How a worker process ends: the first SIGTERM or SIGINT shuts the worker down within its budget, a second stops at
once.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from xjobs.worker import log
from xjobs.worker.worker import Worker

SIGNALS = (signal.SIGTERM, signal.SIGINT)

GRACE = 1.0
"""Seconds beyond the budget after which the process ends even when a body blocks the event loop."""


@contextmanager
def shut_down_by_signals(worker: Worker) -> Iterator[None]:
    """Handle SIGTERM and SIGINT for the length of the block. For the main thread.

    The handlers are Python's own and not the event loop's: a body that blocks the loop must not keep them waiting.
    """
    told: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        if told:
            log.warning("jobs.worker.stopped-at-once", signal=signal.Signals(number).name)
            _leave(128 + number)
        told.append(number)
        log.info("jobs.worker.drain-signalled", signal=signal.Signals(number).name)
        worker.stop()
        last = threading.Timer(worker.settings.shutdown.total_seconds() + GRACE, _overdue)
        last.daemon = True
        last.start()

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _overdue() -> None:
    log.error("jobs.worker.drain-overdue")
    _leave(1)


def _leave(code: int) -> None:
    """End the process now, whatever its threads do."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

"""Spaces out attempts to connect while a database is away, over all connections that share a gate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from random import Random

from xjobs.errors import DriverUnavailable

FLOOR, CEILING = 0.75, 5.0
"""Seconds from a failed attempt to the next one: at first, and after many. Jitter takes off up to a quarter."""

POLL = 0.01
"""Seconds between looks at whether another connection's attempt has ended."""


class ConnectGate:
    """Lets one attempt to connect through at a time, and after one that failed none for a pause that grows.

    Connections of all threads and tasks of a worker share one, so that an outage is met by one attempt now and then and
    not by one of each. The first that succeeds opens the way for all.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, random: Random | None = None) -> None:
        self._clock = clock
        self._random = random or Random()
        self._lock = threading.Lock()
        self._busy = False
        self._failures = 0
        self._closed_until = 0.0
        self._error: DriverUnavailable | None = None

    def try_enter(self) -> bool:
        """Begin an attempt, which must be ended by `leave`; False while another one is under way.

        Raises:
            DriverUnavailable: an attempt failed a moment ago, and nothing is tried before the pause is over.
        """
        with self._lock:
            if self._busy:
                return False
            if self._error is not None and self._clock() < self._closed_until:
                raise self._error
            self._busy = True
            return True

    def leave(self, error: DriverUnavailable | None) -> None:
        """End an attempt, with the error it failed with."""
        with self._lock:
            self._busy, self._error = False, error
            if error is None:
                self._failures = 0
                return
            pause = min(CEILING, FLOOR * 2**self._failures)
            self._failures = min(self._failures + 1, 16)
            self._closed_until = self._clock() + pause * (1 - self._random.random() / 4)

"""How waiting for a server is timed, also while tests are frozen."""

from __future__ import annotations

import time

POLL = 0.002  # seconds


def seconds() -> float:
    """A clock that goes on while tests are frozen, also if this module was first imported in a freeze."""
    # freezegun swaps `time.monotonic` but not this one, and time-machine only its wall clock.
    return time.clock_gettime(time.CLOCK_MONOTONIC)

"""When a job comes back that its limit kept out: the more come back in vain, the more rarely they do."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable
from datetime import timedelta

AT_ONCE = 50
"""How many jobs may find one limit full, one after the other, before they come back more rarely."""

APART = 0.01
"""Seconds by which each further one comes back later: however many wait, about a hundred a second are looked at in
vain."""

MOST = 30.0
"""Seconds after which a job that waits for its limit comes back at the latest."""

REMEMBERED = 1_000
"""Limits that are counted; with more, those are forgotten that have kept out the fewest."""


class Waits:
    """Counts, for each limit, how many jobs it has kept out since it last let one in.

    Args:
        first: after which time a job comes back while few wait.
        clock: seconds, monotonic.
    """

    def __init__(self, first: timedelta, clock: Callable[[], float] = time.monotonic) -> None:
        self._first = first.total_seconds()
        self._clock = clock
        self._kept_out: Counter[Hashable] = Counter()

    def let_in(self, limit: Hashable) -> None:
        """A job has passed the limit."""
        self._kept_out.pop(limit, None)

    def again_in(self, limit: Hashable) -> timedelta:
        """A job has found the limit full; after which time it is to come back."""
        self._kept_out[limit] += 1
        count = self._kept_out[limit]
        if len(self._kept_out) > REMEMBERED:
            self._kept_out = Counter(dict(self._kept_out.most_common(REMEMBERED // 2)))
        return timedelta(seconds=max(self._first, min(MOST, self._first + APART * (count - AT_ONCE))))

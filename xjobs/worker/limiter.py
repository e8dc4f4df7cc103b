"""Limits of one process: runs at a time in all, per queue and per tenant, and starts per tenant and time."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

from xjobs.errors import Invariant
from xjobs.limits import check_count, check_duration

GLOBAL_TENANT = "global"
"""Stands for jobs that have no tenant."""

MAX_TENANTS = 20_000
SWEEP = 60.0
"""Seconds between looks for rate windows in which nothing has started for long."""


class Rate(NamedTuple):
    """At most `limit` starts within any `window`, a timedelta or seconds."""

    limit: int
    window: timedelta | float


class Place:
    """A run's place in the limits, until it is given back."""

    __slots__ = ("_given", "_limiter", "queue", "started", "tenant")

    def __init__(self, limiter: Limiter, queue: str, tenant: str, started: float) -> None:
        self._limiter = limiter
        self._given = False
        self.queue, self.tenant, self.started = queue, tenant, started

    def release(self) -> None:
        """Give the place back; again is harmless."""
        if not self._given:
            self._given = True
            self._limiter._leave(self)  # noqa: SLF001 - the two are one

    def abandon(self) -> None:
        """Give it back for a run that never started: it does not count against the rate either."""
        if not self._given:
            self._limiter._forget_start(self)  # noqa: SLF001
            self.release()


class Limiter:
    """The limits of one process. None is no limit, 0 lets nothing start.

    Args:
        total: runs at a time.
        per_queue: runs at a time of each queue.
        per_tenant: runs at a time of each tenant; jobs without one count together.
        rate_per_tenant: starts of each tenant within a window of time.
        max_tenants: for how many tenants starts are remembered; beyond it those that have started least are forgotten.
        clock: seconds, monotonic.

    Raises:
        Invariant: a number or a window that cannot be.
    """

    def __init__(
        self,
        *,
        total: int | None = None,
        per_queue: int | None = None,
        per_tenant: int | None = None,
        rate_per_tenant: Rate | None = None,
        max_tenants: int = MAX_TENANTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = None if total is None else check_count(total, "total")
        self._per_queue = None if per_queue is None else check_count(per_queue, "per_queue")
        self._per_tenant = None if per_tenant is None else check_count(per_tenant, "per_tenant")
        self._rate, self._window = None, 0.0
        if rate_per_tenant is not None:
            if not isinstance(rate_per_tenant, Rate):
                raise Invariant(f"rate_per_tenant is {rate_per_tenant!r}", "give a Rate, such as Rate(5, window=60)")
            window = check_duration(rate_per_tenant.window, "window", low=timedelta(microseconds=1))
            self._rate = check_count(rate_per_tenant.limit, "rate_per_tenant")
            self._window = window.total_seconds()
        self._max_tenants = check_count(max_tenants, "max_tenants", low=1)
        self._clock = clock
        self._running = 0
        self._of_queue: Counter[str] = Counter()
        self._of_tenant: Counter[str] = Counter()
        self._starts: dict[str, deque[float]] = {}
        self._swept = clock()

    def acquire(self, queue: str, tenant: str | None) -> Place | None:
        """A place for a run that is about to start; None when a limit is reached."""
        return None if self.blocked_by(queue, tenant) else self._enter(queue, tenant or GLOBAL_TENANT)

    def blocked_by(self, queue: str, tenant: str | None) -> str | None:
        """The first limit that keeps a run from starting now: total, per_queue, per_tenant or rate_per_tenant."""
        name = tenant or GLOBAL_TENANT
        checks = (
            ("total", self._total, self._running),
            ("per_queue", self._per_queue, self._of_queue[queue]),
            ("per_tenant", self._per_tenant, self._of_tenant[name]),
            ("rate_per_tenant", self._rate, self._recent(name)),
        )
        return next((limit for limit, most, now in checks if most is not None and now >= most), None)

    def _recent(self, tenant: str) -> int:
        """How many runs of a tenant started within the window."""
        starts = self._starts.get(tenant)
        if starts is None:
            return 0
        since = self._clock() - self._window
        while starts and starts[0] <= since:
            starts.popleft()
        if not starts:
            del self._starts[tenant]
        return len(starts)

    def _enter(self, queue: str, tenant: str) -> Place:
        now = self._clock()
        self._running += 1
        self._of_queue[queue] += 1
        self._of_tenant[tenant] += 1
        if self._rate is not None:
            self._starts.setdefault(tenant, deque()).append(now)
            self._sweep(now)
        return Place(self, queue, tenant, now)

    def _leave(self, place: Place) -> None:
        self._running -= 1
        for counts, name in ((self._of_queue, place.queue), (self._of_tenant, place.tenant)):
            counts[name] -= 1
            if not counts[name]:
                del counts[name]

    def _forget_start(self, place: Place) -> None:
        starts = self._starts.get(place.tenant)
        if starts is not None and place.started in starts:
            starts.remove(place.started)

    def _sweep(self, now: float) -> None:
        """Keep what is remembered bounded."""
        if now - self._swept >= SWEEP:
            self._swept = now
            for tenant in list(self._starts):
                self._recent(tenant)
        if len(self._starts) > self._max_tenants:
            least_first = sorted(self._starts, key=lambda tenant: len(self._starts[tenant]))
            for tenant in least_first[: len(least_first) - max(1, self._max_tenants * 9 // 10)]:
                del self._starts[tenant]

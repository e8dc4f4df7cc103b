"""When a worker looks at its queues again: at once while there is work, ever more rarely while there is none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush

AFTER_WORK = 0.2
"""The pause after a pass that found work, as a part of the floor."""

DUE_HINT_WITHIN = 60.0
"""Seconds ahead for which a job that comes due is remembered; polls find the others."""

DUE_HINT_SLACK = 0.01
"""Seconds after a due instant at which to look, since the database's clock decides."""


class Pace:
    """The pause between two passes, which a wake, a freed slot or a job that comes due cuts short.

    Time is the event loop's, which stands still for no frozen clock.

    Args:
        floor: seconds to the next pass after the first that found nothing; a fifth of it after one that found work.
        ceiling: answers the longest pause at this moment; each empty pass doubles the pause up to it.
    """

    def __init__(self, floor: float, ceiling: Callable[[], float]) -> None:
        self._floor = floor
        self._ceiling = ceiling
        self._pause = self._next = floor
        self._kicked = False
        self._waiting: asyncio.Future[None] | None = None
        self._hints: list[float] = []
        self._timer: asyncio.TimerHandle | None = None

    def found_work(self) -> None:
        """Begin anew, with one short pause: what comes within a moment of a notification is announced by no other."""
        self._pause, self._next = self._floor * AFTER_WORK, self._floor

    def found_nothing(self) -> None:
        """Take twice the last pause; the floor after the first pass that found nothing."""
        self._pause = self._next
        self._next = max(self._floor, min(self._next * 2, self._ceiling()))

    def kick(self) -> None:
        """End the pause, or leave out the next one when a pass is under way: it may have looked too early."""
        if not self._kicked:
            self._kicked = True
            self._end()

    def wake(self) -> None:
        """There is work: kick, and begin anew."""
        self.found_work()
        self.kick()

    def due_in(self, seconds: float) -> None:
        """A job comes due then, so kick shortly after."""
        if seconds > DUE_HINT_WITHIN:
            return
        heappush(self._hints, asyncio.get_running_loop().time() + max(0.0, seconds) + DUE_HINT_SLACK)
        self._arm()

    def _arm(self) -> None:
        """Have a timer for the earliest hint."""
        if self._timer is not None and self._timer.when() <= self._hints[0]:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(self._hints[0], self._due)

    def _due(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._hints and self._hints[0] <= now:
            heappop(self._hints)
        if self._hints:
            self._arm()
        self.kick()

    def close(self) -> None:
        """Forget what comes due."""
        self._hints.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def wait(self, *, forever: bool = False) -> None:
        """Wait until the pause is over or cut short; `forever` is until it is cut short."""
        if not self._kicked:
            loop = asyncio.get_running_loop()
            self._waiting = loop.create_future()
            timer = None if forever else loop.call_later(self._pause, self._end)
            try:
                await self._waiting
            finally:
                self._waiting = None
                if timer is not None:
                    timer.cancel()
        self._kicked = False

    def _end(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

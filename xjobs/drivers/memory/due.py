"""The rows of a queue by the instant at which they are due, and by id where that is equal.

Nearly always rows come in this order, so those go to the end of a queue and only the others into a heap: taking the first
row costs the same however many there are. A row is taken from the middle by leaving its entry behind: an entry counts
while it is the latest that its row was given.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xjobs.drivers.memory.store import Job

Entry = tuple[datetime, int, "Job"]


class Due:
    """Rows in order; those that are outdated go when they come to the front."""

    __slots__ = ("_ascending", "_others")

    def __init__(self) -> None:
        self._ascending: deque[Entry] = deque()
        self._others: list[Entry] = []

    def put(self, instant: datetime, job: Job) -> None:
        """Enter a row; any other entry of it is outdated then."""
        job.entry = entry = instant, job.id.int, job
        ascending = self._ascending
        if not ascending or ascending[-1] < entry:
            ascending.append(entry)
        else:
            heappush(self._others, entry)

    def take(self, now: datetime) -> Job | None:
        """Take out the first row, if it is due."""
        ascending, others = self._ascending, self._others
        while ascending or others:
            from_others = not ascending or (others and others[0] < ascending[0])
            entry = others[0] if from_others else ascending[0]
            job = entry[2]
            outdated = job.entry is not entry
            if not outdated and entry[0] > now:
                return None
            if from_others:
                heappop(others)
            else:
                ascending.popleft()
            if not outdated:
                return job
        return None

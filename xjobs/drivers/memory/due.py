"""The rows of a queue by the instant at which they are due, and by id where that is equal.

Nearly always rows come in this order, so those go to the end of a line and only the others into a heap: taking the
first costs the same however many there are. A row is taken from the middle by leaving its entry behind: an entry counts
while it is the latest that its row was given.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xjobs.drivers.memory.store import Job, Transaction

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

    def take(self, now: datetime, limit: int, transaction: Transaction | None) -> list[Job]:
        """Take out up to `limit` rows that are due, in their order; those that another transaction has locked stay."""
        taken: list[Job] = []
        locked: list[tuple[datetime, Job]] = []
        ascending, others = self._ascending, self._others
        while limit and (ascending or others):
            from_others = others and (not ascending or others[0] < ascending[0])
            entry = others[0] if from_others else ascending[0]
            instant, _, job = entry
            if job.entry is entry:
                if instant > now:
                    break
                if job.writer is None or job.writer is transaction:
                    taken.append(job)
                    limit -= 1
                else:
                    locked.append((instant, job))
            if from_others:
                heappop(others)
            else:
                ascending.popleft()
        for instant, job in locked:
            self.put(instant, job)
        return taken

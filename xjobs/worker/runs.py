"""What a worker holds: the claims that it has not settled yet, each with its signal and its slot."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from xjobs.jobs import JobHandle
from xjobs.operations.slots import Slot
from xjobs.records import ClaimedJob
from xjobs.signals import RunSignal


class Run:
    """One claim in this worker's hands.

    Attributes:
        job: the claim.
        handle: its job; None for a name that nothing here declares.
        signal: tells the body to stop.
        lease_until: when the lease ends at the latest, on this process's monotonic clock, if nothing renews it.
        slot: its fleet-wide slot, if its job is limited.
        place: its place in the limits of this process, if there are any.
        settling: its outcome is on the way to the store, so that a claim that is gone is no loss any more.
        gone: the claim is lost, cancelled or handed back: nothing is renewed and no outcome would land.
        task: of the attempt of an `async def` body; the event loop's.
        busy: it occupies a slot of its queue.
    """

    __slots__ = ("busy", "gone", "handle", "job", "lease_until", "place", "settling", "signal", "slot", "task")

    def __init__(self, job: ClaimedJob, handle: JobHandle[Any, Any, Any] | None, lease_until: float) -> None:
        self.job = job
        self.handle = handle
        self.signal = RunSignal()
        self.lease_until = lease_until
        self.slot: Slot | None = None
        self.place: Any = None
        self.settling = self.gone = self.busy = False
        self.task: asyncio.Task[None] | None = None


class Held:
    """The runs of a worker, from the claim until the settle has landed or is known not to.

    The loop adds and removes runs, the keeper reads them from its thread; `lock` is for changes to a run that both
    decide on.
    """

    def __init__(self, slots: Mapping[str, int]) -> None:
        self.lock = threading.Lock()
        self._slots = slots
        self._runs: set[Run] = set()
        self._busy = dict.fromkeys(slots, 0)

    def add(self, runs: Sequence[Run]) -> None:
        """Take up claims, which occupy slots of their queues from now on."""
        self._runs.update(runs)
        for run in runs:
            run.busy = True
            self._busy[run.job.queue] += 1

    def body_ended(self, run: Run) -> None:
        """Free the slot of a run whose body has ended; the claim is held on until it is settled."""
        run.busy = False
        self._busy[run.job.queue] -= 1

    def remove(self, runs: Sequence[Run]) -> set[str]:
        """Let go of claims, and of the slots of those that never had a body; answers the queues of such slots."""
        self._runs.difference_update(runs)
        freed = set()
        for run in runs:
            if run.busy:
                self.body_ended(run)
                freed.add(run.job.queue)
        return freed

    def snapshot(self) -> list[Run]:
        """The runs at this moment; safe in any thread, since the copy is made in one step of the interpreter."""
        return list(self._runs)

    def free(self, queue: str) -> int:
        """How many slots of a queue are free."""
        return self._slots[queue] - self._busy[queue]

    @property
    def bodies(self) -> int:
        """How many slots are occupied: by bodies, and by jobs that are turned away until that is written."""
        return sum(self._busy.values())

    def __len__(self) -> int:
        return len(self._runs)

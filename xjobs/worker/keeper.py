"""Keeps what a worker holds, from a thread and a connection of their own: a body that blocks the event loop loses
nothing.

Every heartbeat it renews all leases and slots in one round trip, lists the worker in the registry, and looks for events
that were published without being heard. At the end of a shutdown's budget it hands back what is still held.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from xjobs.bridge import run_sync
from xjobs.drivers.base import Driver
from xjobs.errors import DriverUnavailable, Error, JobCancelled, LeaseLost, SlotLost
from xjobs.limits import ZERO
from xjobs.operations import workers
from xjobs.operations.events import wake_waits
from xjobs.operations.leases import Standing, renew_all
from xjobs.operations.settle import Nack, nack
from xjobs.operations.slots import release
from xjobs.worker import log
from xjobs.worker.runs import Held, Run
from xjobs.worker.settings import Settings

Monotonic = Callable[[], float]


class Keeper:
    """The thread that renews.

    Args:
        driver: a blocking one of its own.
        settings: the worker's.
        held: what is renewed.
        woke: called when suspended runs have become due since their event had come.
        clock: the queue's present instant, for the registry's `started_at`.
        monotonic: seconds of this process, by which the end of a lease is reckoned.
    """

    def __init__(
        self,
        driver: Driver,
        settings: Settings,
        held: Held,
        *,
        woke: Callable[[], object],
        clock: Callable[[], datetime],
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._driver = driver
        self._settings = settings
        self._held = held
        self._woke = woke
        self._started_at = clock()
        self._monotonic = monotonic
        self._turn = threading.Lock()
        self._changed = threading.Condition()
        self._closing = False
        self._listed = False
        self.owed: list[Run] = []
        self.draining = False
        self.paused = False
        self._at: list[tuple[float, Callable[[], None]]] = []
        self._thread = threading.Thread(target=self._run, name=f"{settings.worker_id} keeper", daemon=True)

    def start(self) -> None:
        """Begin, by listing the worker."""
        self.at(self._monotonic(), self._announce)
        self._thread.start()

    def drain(self) -> None:
        """List the worker as one that takes no more jobs, at the next opportunity."""
        self.draining = True
        self.at(self._monotonic(), self._announce)

    def at(self, instant: float, act: Callable[[], None]) -> None:
        """Do something in the keeper's thread at an instant of its clock."""
        with self._changed:
            self._at.append((instant, act))
            self._changed.notify()

    def close(self, timeout: float | None) -> bool:
        """End the thread and take the worker off the list; False when that did not happen in time."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def renew(self, for_longer: timedelta = ZERO) -> None:
        """Renew all leases and slots now, in this thread; those that are gone have their runs stopped."""
        if self.paused:
            return
        with self._turn:
            began = self._monotonic()
            runs = self._standing(began)
            # Also of claims that are gone: their bodies go on until they notice, and count until then.
            slots = [(run, run.slot) for run in self._held.snapshot() if run.slot is not None]
            if not runs and not slots:
                return
            try:
                renewed = run_sync(
                    renew_all(
                        self._driver,
                        [run.job for run in runs],
                        [slot for _, slot in slots],
                        worker_id=self._settings.worker_id,
                        lease=self._settings.lease + for_longer,
                    )
                )
            except Exception as problem:  # noqa: BLE001 - the next one may succeed; until then leases run down
                log.warning("jobs.heartbeat.failed", jobs=len(runs), error=_said(problem))
                self._standing(self._monotonic())
                return
            if self._monotonic() - began >= self._settings.lease.total_seconds():
                self._standing(self._monotonic())  # it landed too late to be relied on
                return
            for run, standing in zip(runs, renewed.leases, strict=True):
                self._apply(run, standing, began)
            for (run, slot), standing in zip(slots, renewed.slots, strict=True):
                if standing == "lost" and not self._settled(run) and run.signal.stop(_slot_lost(run, slot.key)):
                    log.error("jobs.worker.slot-lost", job=run.job.id, name=run.job.name)

    def expire(self) -> None:
        """Stop the runs whose leases have run down; for another thread, since a renewal may hang."""
        if not self.paused:
            self._standing(self._monotonic())

    def hand_back(self, reason: Error) -> int:
        """Give back every claim that is still held, uncounted, with its slot; its body, if it goes on, settles nothing.

        Answers how many were given back. Those that could not be are in `owed`, and are tried again by the next call.
        """
        with self._turn:
            self.owed += [run for run in self._held.snapshot() if self._take(run)]
            if not self.owed:
                return 0
            runs = self.owed
            worker_id = self._settings.worker_id
            landed = run_sync(
                nack(
                    self._driver,
                    [
                        Nack(run.job, error=f"{type(reason).__name__} [{reason.code}]: {reason}", counted=False)
                        for run in runs
                    ],
                    worker_id=worker_id,
                )
            )
            self.owed = []
            run_sync(release(self._driver, [run.slot for run in runs if run.slot is not None]))
        log.warning("jobs.worker.drain-handed-back", jobs=len(landed))
        return len(landed)

    def _take(self, run: Run) -> bool:
        """Have a run settle nothing any more; False when it is about to, or cannot."""
        with self._held.lock:
            if run.gone or run.settling:
                return False
            run.gone = True
            return True

    def _run(self) -> None:
        beat = self._settings.heartbeat.total_seconds()
        due = self._monotonic() + beat
        while True:
            now = self._monotonic()
            for act in self._due(now):
                self._guarded(act)
            if self._closing:
                break
            if now >= due:
                self._guarded(self.renew)
                self._guarded(self._announce)
                self._guarded(self._look_for_events)
                due = max(due + beat, self._monotonic())
            with self._changed:
                until = min([due, *(instant for instant, _ in self._at)])
                if not self._closing:
                    self._changed.wait(max(0.0, until - self._monotonic()))
        self._guarded(self._forget)

    def _due(self, now: float) -> Sequence[Callable[[], None]]:
        with self._changed:
            due = sorted((entry for entry in self._at if entry[0] <= now), key=lambda entry: entry[0])
            self._at = [entry for entry in self._at if entry[0] > now]
        return [act for _, act in due]

    def _guarded(self, act: Callable[[], object]) -> None:
        """The thread outlives whatever goes wrong in one of its tasks."""
        try:
            act()
        except DriverUnavailable as problem:
            log.warning("jobs.heartbeat.failed", error=problem.fact)
        except Exception as problem:  # noqa: BLE001
            log.error("jobs.heartbeat.failed", cause=problem)

    def _standing(self, now: float) -> list[Run]:
        """The runs to renew; those whose lease has run down by our clock are lost, whatever the store will say."""
        runs = []
        for run in self._held.snapshot():
            if run.gone:
                continue
            if run.lease_until <= now:
                self._lose(run, f"its lease of {self._settings.lease} ran down before a renewal landed")
            else:
                runs.append(run)
        return runs

    def _apply(self, run: Run, standing: Standing, began: float) -> None:
        if standing == "held":
            run.lease_until = began + self._settings.lease.total_seconds()
        elif standing == "cancelled":
            self._stop(run, JobCancelled(f"job {run.job.name!r} ({run.job.id}) was cancelled", "stop the work"))
        else:
            self._lose(run, "another worker has it, or it was settled elsewhere")

    def _lose(self, run: Run, why: str) -> None:
        reason = LeaseLost(
            f"job {run.job.name!r} ({run.job.id}) is no longer this worker's: {why}",
            "stop the work: the job is delivered again",
        )
        if self._stop(run, reason):
            log.error("jobs.lease.lost", job=run.job.id, name=run.job.name, queue=run.job.queue, why=why)

    def _stop(self, run: Run, reason: Error) -> bool:
        """Stop a run whose claim is gone; False when that is no loss, since its outcome is known or on its way."""
        with self._held.lock:
            if run.gone or run.settling:
                return False
            run.gone = True
        run.signal.stop(reason)
        return True

    def _settled(self, run: Run) -> bool:
        with self._held.lock:
            return run.gone or run.settling

    def _announce(self) -> None:
        settings = self._settings
        try:
            run_sync(
                workers.announce(
                    self._driver,
                    worker_id=settings.worker_id,
                    host=settings.host,
                    queues=settings.queues,
                    in_flight=[run.job.id for run in self._held.snapshot()],
                    started_at=self._started_at,
                    ttl=settings.lease,
                    draining=self.draining,
                )
            )
            self._listed = True
        except DriverUnavailable as problem:
            log.warning("jobs.worker.announce-failed", error=problem.fact)

    def _look_for_events(self) -> None:
        if not self.draining and run_sync(wake_waits(self._driver)):
            self._woke()

    def _forget(self) -> None:
        if self._listed:
            run_sync(workers.forget(self._driver, self._settings.worker_id))


def _slot_lost(run: Run, key: str) -> SlotLost:
    return SlotLost(
        f"job {run.job.name!r} ({run.job.id}) lost its slot of {key!r}",
        "stop the work: others may run in its place",
    )


def _said(problem: BaseException) -> str:
    return problem.fact if isinstance(problem, Error) else str(problem)

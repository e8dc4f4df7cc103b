"""Lets claimed jobs in: those that nothing keeps out start at once, the others go back where they came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from random import Random
from typing import Any

from xjobs.drivers.base import Driver
from xjobs.jobs import JobHandle
from xjobs.operations.admit import Admitted, Candidate, KeyFailed, Refused, Shed, Verdict, admit, raising
from xjobs.operations.attempt import Execution, execute
from xjobs.operations.settle import Nack
from xjobs.worker import log
from xjobs.worker.limiter import Limiter
from xjobs.worker.runs import Run
from xjobs.worker.settings import Settings
from xjobs.worker.waits import Waits

UNKNOWN_AGAIN_IN = timedelta(seconds=30)
"""How long a job is parked whose name nothing here declares: another version of the app may know it."""

Start = Callable[[Run], None]
TurnAway = Callable[[Run, Execution], None]


class Admission:
    """The gate between a claim and the body.

    Args:
        driver: for the slots of fleet-wide limits.
        settings: the worker's.
        limiter: the limits of this process, or None.
        clock: the queue's present instant.
        random: the source of retry jitter.
        start: called with each run that may start.
        turn_away: called with each run that may not, and what is to be written for it.
    """

    def __init__(
        self,
        driver: Driver,
        settings: Settings,
        limiter: Limiter | None,
        *,
        clock: Callable[[], datetime],
        random: Random,
        start: Start,
        turn_away: TurnAway,
    ) -> None:
        self._driver = driver
        self._settings = settings
        self._limiter = limiter
        self._clock = clock
        self._random = random
        self._start = start
        self._turn_away = turn_away
        self._unknown: set[str] = set()
        self._waits = Waits(settings.poll)

    async def let_in(self, runs: Sequence[Run]) -> None:
        """Start the runs of a claim that may start; each of the others is turned away before this returns.

        Raises:
            Exception: the store of slots did not answer, or there is no thread to be had; the runs that it kept from
                running have been turned away, uncounted.
        """
        limited: list[Run] = []
        for place, run in enumerate(runs):
            if run.handle is None:
                self._park(run)
            elif self._limiter is not None and not self._has_place(run, self._limiter):
                log.debug("jobs.worker.shed", job=run.job.id, name=run.job.name, by="limiter")
                self._away(run, Nack(run.job, delay=self._waits.again_in(_tenant(run)), counted=False), "shed")
            elif run.handle.concurrency_limit is not None:
                limited.append(run)
            else:
                try:
                    self._start(run)
                except BaseException:
                    self._turn_all_away([*limited, *runs[place:]])
                    raise
        if limited:
            await self._take_slots(limited)

    def hand_back(self, runs: Sequence[Run]) -> None:
        """Turn away all runs of a claim that came too late, with no attempt spent."""
        for run in runs:
            self._away(run, Nack(run.job, counted=False), "shed")

    def _has_place(self, run: Run, limiter: Limiter) -> bool:
        run.place = limiter.acquire(run.job.queue, run.job.tenant_id)
        if run.place is None:
            return False
        self._waits.let_in(_tenant(run))
        return True

    async def _take_slots(self, runs: list[Run]) -> None:
        settings = self._settings
        candidates = [Candidate(run.job, _known(run)) for run in runs]
        try:
            verdicts = await admit(
                self._driver,
                candidates,
                worker_id=settings.worker_id,
                ttl=settings.lease,
                again_in=settings.poll,
            )
        except BaseException:
            self._turn_all_away(runs)
            raise
        for run, verdict in zip(runs, verdicts, strict=True):
            await self._decide(run, verdict)

    async def _decide(self, run: Run, verdict: Verdict) -> None:
        match verdict:
            case Admitted(slot):
                run.slot = slot
                self._waits.let_in(slot.key)
                self._start(run)
            case Shed(settlement, key):
                self._abandon(run)
                log.debug("jobs.worker.shed", job=run.job.id, name=run.job.name, by="concurrency_limit")
                self._away(run, settlement._replace(delay=self._waits.again_in(key)), "shed")
            case Refused(settlement, error, values):
                self._abandon(run)
                log.info("jobs.attempt.refused", job=run.job.id, name=run.job.name, code=error.code)
                self._turn_away(run, Execution(settlement, "refused", error, values=values))
            case KeyFailed(error):
                self._abandon(run)
                self._turn_away(run, await self._failed(run, error))

    def _turn_all_away(self, runs: Sequence[Run]) -> None:
        for run in runs:
            self._abandon(run)
            self._away(run, Nack(run.job, delay=self._settings.poll, counted=False), "shed")

    def _park(self, run: Run) -> None:
        """Set aside a job that another version of the app may know."""
        name = run.job.name
        if name not in self._unknown:
            self._unknown.add(name)
            log.warning("jobs.worker.job-unknown", name=name, queue=run.job.queue)
        error = f"JobUnknown [X_JOB_UNKNOWN]: no job {name!r} is declared in worker {self._settings.worker_id}"
        self._away(run, Nack(run.job, delay=UNKNOWN_AGAIN_IN, error=error, counted=False, park=True), "parked")

    def _abandon(self, run: Run) -> None:
        if run.place is not None:
            run.place.abandon()
            run.place = None

    def _away(self, run: Run, settlement: Nack, outcome: str) -> None:
        self._turn_away(run, Execution(settlement, outcome))

    async def _failed(self, run: Run, error: Exception) -> Execution:
        """The attempt of a run whose body was kept from running by an error."""
        return await execute(
            self._driver,
            run.job,
            _known(run),
            worker_id=self._settings.worker_id,
            call=raising(error),
            clock=self._clock,
            random=self._random,
            signal=run.signal,
        )


def _tenant(run: Run) -> tuple[str, str | None]:
    return run.job.queue, run.job.tenant_id


def _known(run: Run) -> JobHandle[Any, Any, Any]:
    assert run.handle is not None  # noqa: S101 - runs without a handle have been parked
    return run.handle

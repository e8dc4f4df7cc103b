"""The worker: claims due jobs of its queues, runs them, and settles them, until it is told to stop."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from random import Random
from typing import Any, Literal, Self
from uuid import UUID

from xjobs import in_use, points, registry
from xjobs.clocks import process_time
from xjobs.drivers.base import Driver
from xjobs.errors import Draining, DriverUnavailable, Invariant, OnSettledFailed
from xjobs.limits import ZERO, check_duration
from xjobs.operations.attempt import Execution, describe
from xjobs.operations.claim import Claimed, give_back, take
from xjobs.operations.endings import announce, announce_buried
from xjobs.operations.events import wake_waits
from xjobs.operations.settle import Ack, Nack
from xjobs.operations.slots import release
from xjobs.queue import AsyncQueue, Drivers, Queue
from xjobs.worker import log
from xjobs.worker.admission import Admission
from xjobs.worker.bodies import Bodies
from xjobs.worker.connections import Connections, MemoryConnections, connections_to
from xjobs.worker.keeper import Keeper
from xjobs.worker.limiter import Limiter
from xjobs.worker.pacing import Pace
from xjobs.worker.runs import Held, Run
from xjobs.worker.settings import Settings, settings
from xjobs.worker.settling import Outcome, Settling
from xjobs.worker.wake import Wake

State = Literal["idle", "running", "draining", "stopped"]

MARGIN = 2.0
"""Seconds before the end of a shutdown's budget at which bodies are told to stop; at most half the budget. At half of
the margin their claims are handed back."""

LAG_TICK, LAG_TOLD = 1.0, 0.2
"""Seconds between looks at whether the event loop is late, and the lateness that is logged."""

SHARED = 100
"""The slots of a queue from which on one claim fills half of them, and not all."""

HAND_BACK_AGAIN = 0.25
"""Seconds until jobs are handed back again that could not be."""

HOOKS = 100
"""How many ending hooks may wait for their turn, besides those that run, before nothing more is claimed."""

LAST_LOOK = 5.0
"""Seconds that a worker without a deadline takes at its end to give back what a claim may have brought."""

MAX_BACKLOG = 2_000
"""The most outcomes that may wait to be written before nothing more is claimed."""


class Worker:
    """One worker on one event loop. `run` serves until `retire` or `stop`, which may be called from any thread.

    Args:
        connections: where its statements go.
        settings: see `xjobs.worker.settings`.
        limiter: limits of this process, or None.
        clock: the queue's present instant, as bodies see it.
        random: the source of jitter.
    """

    def __init__(
        self,
        connections: Connections,
        settings: Settings,
        *,
        limiter: Limiter | None = None,
        clock: Callable[[], datetime] = process_time,
        random: Random | None = None,
    ) -> None:
        self.settings = settings
        self._connections = connections
        self._limiter = limiter
        self._clock = clock
        self._random = random or Random()
        self.state: State = "idle"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deadline: float | None = None
        self._parts: _Parts | None = None
        self.abandoned = 0
        """How many jobs the last `run` had to leave to the end of their leases."""

    @classmethod
    def connect(cls, url: str, *, limiter: Limiter | None = None, **options: Any) -> Self:
        """A worker by the address of its queue; the options are those of `xjobs.worker.settings.settings`.

        Raises:
            Invariant: an option that cannot be, or `memory://`, which no other process sees.
            DriverUnavailable: the address cannot be read.
        """
        return cls(connections_to(url), settings(**options), limiter=limiter)

    @classmethod
    def over(cls, queue: Queue | AsyncQueue, *, limiter: Limiter | None = None, **options: Any) -> Self:
        """A worker in the process of a memory queue, on its tables.

        Raises:
            Invariant: the queue is not in memory.
        """
        from xjobs.drivers.memory import MemoryDriver

        driver = queue.driver
        if not isinstance(driver, MemoryDriver):
            raise Invariant(f"{queue!r} is not in memory", "use Worker.connect with the address of its database")
        return cls(MemoryConnections(driver), settings(**options), limiter=limiter)

    async def run(self) -> None:
        """Serve the queues until the worker is told to stop, and end when its last job is settled or handed back.

        Raises:
            Invariant: it runs already.
        """
        if self._parts is not None:
            raise Invariant(f"worker {self.settings.worker_id} is {self.state}", "run it once at a time")
        parts = self._parts = _Parts(self)
        self._loop = asyncio.get_running_loop()
        self.abandoned = 0
        if self.state != "draining":
            self.state = "running"
        try:
            await parts.serve()
        finally:
            self._parts = None
            self.state = "stopped"
            self._deadline = None

    def retire(self) -> None:
        """Claim nothing more, and end when the last running job is done, however long that takes."""
        self._drain(None)

    def stop(self, within: Any = None) -> None:
        """The same within a time, a timedelta or seconds; of several the earliest end counts.

        Shortly before it, running bodies are told to stop, and then their jobs are handed back with no attempt spent.
        The default is the `shutdown` setting.
        """
        budget = self.settings.shutdown if within is None else check_duration(within, "within")
        self._drain(budget.total_seconds())

    def renew(self, for_longer: timedelta = ZERO) -> None:
        """Renew all leases and slots now, for so much longer than usual; for tests that move the clock."""
        if self._parts is not None:
            self._parts.keeper.renew(for_longer)

    @property
    def deadline(self) -> float | None:
        """When the worker ends at the latest, on the monotonic clock; None when it takes the time that its jobs do."""
        return self._deadline

    def _drain(self, budget: float | None) -> None:
        if self.state != "draining":
            self.state = "draining"
            log.info("jobs.worker.draining", worker=self.settings.worker_id, within=budget)
        end = None if budget is None else time.monotonic() + budget
        sooner = end is not None and (self._deadline is None or end < self._deadline)
        if sooner:
            self._deadline = end
        if self._parts is not None:
            self._parts.drain(self._deadline if sooner else None)


class _Parts:
    """What one `run` of a worker is made of, from its start to its end."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.settings = worker.settings
        self.connections = worker._connections  # noqa: SLF001 - the two are one
        clock, random = worker._clock, worker._random  # noqa: SLF001
        self.loop = asyncio.get_running_loop()
        self.ending = asyncio.Event()
        self.empty = asyncio.Event()
        self.held = Held(self.settings.queues)
        self.bodies = Bodies(
            self.connections.blocking,
            self.connections.awaiting,
            clock=clock,
            random=random,
            worker_id=self.settings.worker_id,
            ended=self._ended,
        )
        self.keeper = Keeper(self.connections.keeper, self.settings, self.held, woke=self._woke, clock=clock)
        self.settling = Settling(
            self.connections.settles, self.settings.worker_id, lambda: self.held.bodies > 0, self._settled
        )
        self.admission = Admission(
            self.connections.claims,
            self.settings,
            worker._limiter,  # noqa: SLF001
            clock=clock,
            random=random,
            start=self.bodies.start,
            turn_away=self._turned_away,
        )
        self.pace = Pace(self.settings.poll.total_seconds(), self._ceiling)
        self.wake = Wake(
            self.connections, self.connections.claims, self.settings.queues.keys(), self.pace.wake, self._event, random
        )
        self.short: set[str] = set()  # queues that had more due jobs, as far as is known, than free slots
        self.choked = False  # nothing is claimed until more outcomes are written
        self.events: set[str] = set()  # that some run waits for, and that have come
        self.hooks: set[asyncio.Task[OnSettledFailed | None]] = set()
        self.hook_turns = asyncio.Semaphore(self.settings.slots)
        self.failures = 0  # passes that failed, one after the other, for another reason than an outage
        self.strays = False  # a claim may have landed whose answer never came

    async def serve(self) -> None:
        """Run until drained."""
        settles = asyncio.create_task(self.settling.run(), name=f"{self.settings.worker_id} settles")
        others = [
            asyncio.create_task(self.wake.run(), name=f"{self.settings.worker_id} wake"),
            asyncio.create_task(self._watch_loop(), name=f"{self.settings.worker_id} loop lag"),
        ]
        using = in_use.push_under(Drivers(blocking=self.connections.blocking, awaiting=self.connections.awaiting))
        try:
            self.keeper.start()
            if self.worker.state == "draining":
                self.drain(self.worker.deadline)
            self._tell_start()
            claims = asyncio.create_task(self._claim_until_ending(), name=f"{self.settings.worker_id} claims")
            others.append(claims)
            await self._until_claimed(claims)
            await self._until_empty()
        except BaseException:
            await self._give_up()
            raise
        finally:
            for task in others:
                task.cancel()
            await _ended_within(self._left(), others)  # what claims turn away on their way out is still written
            await self._close(settles)
            using.stop()

    async def _until_claimed(self, claims: asyncio.Task[None]) -> None:
        """Wait for the last claim, until the deadline if there is one: the server may never answer."""
        ending = asyncio.create_task(self.ending.wait())
        try:
            await asyncio.wait([claims, ending], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
        while not claims.done():
            deadline = self.worker.deadline
            left = 1.0 if deadline is None else min(1.0, deadline - time.monotonic())
            if left <= 0:
                log.warning("jobs.worker.claim-left")
                return
            await asyncio.wait([claims], timeout=left)
        claims.result()

    def drain(self, deadline: float | None) -> None:
        """Claim nothing more; with a deadline, have bodies told to stop and jobs handed back before it."""
        self.keeper.drain()
        if deadline is not None:
            margin = min(MARGIN, (deadline - time.monotonic()) / 2)
            self.keeper.at(deadline - margin, self._cut_off)
            self.keeper.at(deadline - margin / 2, self._hand_back)
            with suppress(RuntimeError):  # the loop has ended
                self.loop.call_soon_threadsafe(self._end_by, deadline, margin)
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._end)

    def _end_by(self, deadline: float, margin: float) -> None:
        """Tell bodies from the loop as well, since the keeper's statement may hang, and then hooks."""
        left = deadline - time.monotonic()
        self.loop.call_later(max(0.0, left - margin), self._cut_off)
        self.loop.call_later(max(0.0, left - margin / 2), self._cancel_hooks)

    async def _give_up(self) -> None:
        """When `run` itself is cancelled or fails: have bodies stop, and hand back what is held all the same."""
        now = time.monotonic()
        self.worker._deadline = min(self.worker.deadline or math.inf, now + MARGIN)  # noqa: SLF001 - the two are one
        self._end()
        self._cut_off()
        self._cancel_hooks()
        self.keeper.at(now + MARGIN / 2, self._hand_back)
        await self._until_empty()

    def _end(self) -> None:
        self.ending.set()
        self.pace.kick()
        self._look_whether_empty()

    def _cut_off(self) -> None:
        """Tell the bodies that run to stop; also from the keeper's thread, so that a blocked loop is no way out."""
        told = [run for run in self.held.snapshot() if not run.settling and run.signal.stop(_draining(run))]
        if told:
            log.warning("jobs.worker.drain-cancelling", jobs=len(told))

    def _hand_back(self) -> None:
        try:
            self.keeper.hand_back(Draining("the worker shut down before the job was done", "it is run again"))
        except Exception:
            self.keeper.at(time.monotonic() + HAND_BACK_AGAIN, self._hand_back)
            raise
        finally:
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._look_whether_empty)

    def _cancel_hooks(self) -> None:
        if self.hooks:
            log.warning("jobs.on-settled.left", hooks=len(self.hooks))
        for task in self.hooks:
            task.cancel()

    async def _claim_until_ending(self) -> None:
        while not self.ending.is_set():
            free = self._free()
            if not self.choked:
                self.short = self.settings.queues.keys() - free.keys()
            if not free:
                await self.pace.wait(forever=True)
                continue
            try:
                if self.strays:
                    await self._give_back_strays(self.connections.claims)
                more = await self._pass(self._asks(free))
            except Exception as problem:  # noqa: BLE001 - the next pass may succeed
                self._note_failed(problem)
                await self._pause()
            else:
                self.failures = 0
                if not more:
                    await self.pace.wait()

    async def _pause(self) -> None:
        """After a failed pass, whatever kicks; longer each time, but in an outage, which connections pace."""
        pause = self.settings.poll.total_seconds() * 2 ** min(self.failures, 30)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(pause, self.settings.idle_poll.total_seconds())):
                await self.ending.wait()

    def _note_failed(self, problem: Exception) -> None:
        if isinstance(problem, DriverUnavailable):
            log.warning("jobs.worker.tick-failed", error=problem.fact)
        else:
            self.failures += 1
            log.error("jobs.worker.tick-failed", cause=problem)

    def _free(self) -> dict[str, int]:
        """The slots of each queue in which nothing runs, if it has any."""
        if self._overfull():
            self.choked = True
            return {}
        return {queue: count for queue in self.settings.queues if (count := self.held.free(queue)) > 0}

    def _overfull(self) -> bool:
        """Whether more jobs have ended than what their endings bring about keeps up with."""
        return self.settling.backlog > MAX_BACKLOG or len(self.hooks) > HOOKS + self.settings.slots

    def _unchoke(self) -> None:
        if self.choked and not self._overfull():
            self.choked = False
            self.pace.kick()

    def _asks(self, free: Mapping[str, int]) -> list[tuple[list[str], int]]:
        """What to claim: for each queue as much as it has free slots; of an idle worker, of all queues at once."""
        if self.held.bodies == 0:
            return [(list(free), min(self._share(queue, count) for queue, count in free.items()))]
        return [([queue], self._share(queue, count)) for queue, count in free.items()]

    def _share(self, queue: str, free: int) -> int:
        """How many of so many free slots one claim is to fill: while its jobs run, the next one is under way."""
        return min(free, max(SHARED, self.settings.queues[queue] // 2))

    async def _pass(self, asks: Sequence[tuple[list[str], int]]) -> bool:
        """Claim and start; whether there may be more to claim at once."""
        if self.events:
            await self._wake_waits()
        more = found = False
        for queues, limit in asks:
            asked = time.monotonic()
            claimed = await self._claim(queues, limit)
            count = len(claimed.jobs) + len(claimed.buried)
            if count >= limit:
                self.short = self.short | set(queues)
                more = True
            found = found or count > 0
            await self._begin(claimed, asked)
            if self.worker.state == "draining":
                break
        if found:
            self.pace.found_work()
        else:
            self.pace.found_nothing()
        return more

    async def _claim(self, queues: list[str], limit: int) -> Claimed:
        settings = self.settings
        try:
            return await take(
                self.connections.claims, queues, worker_id=settings.worker_id, limit=limit, lease=settings.lease
            )
        except points.Crash:  # a test has this process die here: what was claimed stays claimed
            return Claimed([], [])
        except BaseException:
            self.strays = True
            raise

    async def _begin(self, claimed: Claimed, asked: float) -> None:
        until = asked + self.settings.lease.total_seconds()
        runs = [Run(job, registry.find(job.name), until) for job in claimed.jobs]
        self.held.add(runs)
        for job in claimed.buried:
            log.error("jobs.claim.exhausted", job=job.id, name=job.name, queue=job.queue, state=job.state)
            handle = registry.find(job.name)
            if handle is not None and handle.ending_hook is not None:
                self._in_background(announce_buried(job, handle, call=self.bodies.call))
        # Since we asked, the worker was told to end, and they would begin past the point of being told to stop; or
        # their leases have run out, and they may be somebody else's by now.
        if self.worker.state == "draining" or time.monotonic() >= until:
            self.admission.hand_back(runs)
        else:
            await self.admission.let_in(runs)

    def _event(self, name: str) -> None:
        self.events.add(name)
        self.pace.kick()

    async def _wake_waits(self) -> None:
        """Have the runs due that wait for events which have come; the claim that follows takes ours."""
        names = sorted(self.events)
        self.events.clear()
        try:
            await wake_waits(self.connections.claims, names)
        except BaseException:
            self.events.update(names)
            raise

    def _woke(self) -> None:
        """From the keeper's thread."""
        with suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(self.pace.wake)

    async def _give_back_strays(self, driver: Driver) -> None:
        """Have nothing under this worker's name that it does not know of; no claim may be under way."""
        known = [run.job for run in self.held.snapshot()]
        count = await give_back(driver, known, queues=list(self.settings.queues), worker_id=self.settings.worker_id)
        self.strays = False
        if count:
            log.warning("jobs.claim.answer-lost", jobs=count)

    def _ended(self, run: Run, execution: Execution | None) -> None:
        """A body has ended: free its slot and have its outcome written."""
        self.held.body_ended(run)
        if run.place is not None:
            run.place.release()
        if execution is None:
            self.held.remove([run])  # its lease lapses
            self._look_whether_empty()
        else:
            self.settling.put(run, execution)
        if run.job.queue in self.short:
            self.pace.kick()

    def _turned_away(self, run: Run, execution: Execution) -> None:
        """A job was kept from running; its slot is free once that is written, since until then it is claimed."""
        if run.place is not None:
            run.place.release()
        self.settling.put(run, execution)

    async def _settled(self, outcomes: Sequence[Outcome], landed: set[UUID] | None) -> None:
        if self.held.remove([run for run, _ in outcomes]) & self.short:
            self.pace.kick()
        for run, execution in outcomes:
            settlement, handle = execution.settlement, run.handle
            hooked = handle is not None and handle.ending_hook is not None
            if type(settlement) is Ack and not hooked:
                continue
            if landed is not None and run.job.id not in landed:
                continue
            if isinstance(settlement, Nack):
                self._note_due(settlement)
                _tell_attempt(run, execution)
                if execution.awaits is not None:
                    self._event(execution.awaits)  # it may have been published between the look for it and the parking
            if handle is not None and hooked:
                self._in_background(announce(run.job, handle, execution, call=self.bodies.call))
        slots = [run.slot for run, _ in outcomes if run.slot is not None]
        if slots:
            try:
                await release(self.connections.settles, slots)
            except Exception as problem:  # noqa: BLE001 - they lapse by themselves
                log.warning("jobs.worker.slot-release-failed", slots=len(slots), error=str(problem))
        self._unchoke()
        self._look_whether_empty()

    def _in_background(self, hook: Coroutine[Any, Any, OnSettledFailed | None]) -> None:
        """Have an ending hook called, in its turn; the worker does not end before it has."""
        task = asyncio.create_task(self._in_turn(hook))
        self.hooks.add(task)
        task.add_done_callback(self._hook_ended)

    async def _in_turn(self, hook: Coroutine[Any, Any, OnSettledFailed | None]) -> OnSettledFailed | None:
        """As many at a time as there are slots: hooks are no way past the worker's concurrency."""
        try:
            async with self.hook_turns:
                return await hook
        finally:
            hook.close()  # where its turn never came

    def _hook_ended(self, task: asyncio.Task[OnSettledFailed | None]) -> None:
        self.hooks.discard(task)
        failed = None if task.cancelled() else task.exception() or task.result()
        if failed is not None:
            log.error("jobs.on-settled.failed", cause=failed)
        self._unchoke()
        self._look_whether_empty()

    def _note_due(self, settlement: Nack) -> None:
        delay = settlement.delay
        self.pace.due_in(delay if isinstance(delay, int | float) else delay.total_seconds())

    def _look_whether_empty(self) -> None:
        if self.ending.is_set() and not self.held.snapshot() and not self.hooks and not self.keeper.owed:
            self.empty.set()

    async def _until_empty(self) -> None:
        """Wait for the runs that are held, until the deadline if there is one."""
        self.empty.clear()  # a claim that was under way may have brought more
        self._look_whether_empty()
        while not self.empty.is_set():
            deadline = self.worker.deadline
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                held = sum(not run.gone for run in self.held.snapshot())
                self.worker.abandoned = held + len(self.keeper.owed)
                log.error("jobs.worker.drain-abandoned", bodies=self.held.bodies, jobs=self.worker.abandoned)
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(min(1.0, left) if left is not None else 1.0):
                    await self.empty.wait()

    async def _close(self, settles: asyncio.Task[None]) -> None:
        self.pace.close()
        self.settling.close()
        left = self._left()
        await asyncio.wait([settles], timeout=left)
        settles.cancel()
        if self.strays:  # a claim that was cut off may have landed
            with suppress(Exception):
                async with asyncio.timeout(left or LAST_LOOK):
                    await self._give_back_strays(self.connections.settles)
        stubborn = await self.bodies.close(0.0 if self.held.snapshot() else 1.0)
        if stubborn:
            log.warning("jobs.worker.bodies-left", bodies=len(stubborn), names=", ".join(stubborn))
        await _ended_within(self._left(), [settles])
        if not self.keeper.close(self._left()):
            log.warning("jobs.worker.keeper-left")
        with suppress(Exception):
            await self.connections.close()
        log.info("jobs.worker.stopped", worker=self.settings.worker_id)

    def _left(self) -> float | None:
        deadline = self.worker.deadline
        return None if deadline is None else max(0.5, deadline - time.monotonic())

    def _ceiling(self) -> float:
        longest = self.settings.idle_poll_woken if self.wake.proven else self.settings.idle_poll
        return longest.total_seconds()

    async def _watch_loop(self) -> None:
        """Log when the loop was late: a body that blocks it keeps all others waiting."""
        while True:
            began = time.monotonic()
            await asyncio.sleep(LAG_TICK)
            lag = time.monotonic() - began - LAG_TICK
            if lag > LAG_TOLD:
                log.warning("jobs.loop.lag", seconds=round(lag, 3))
            self.keeper.expire()

    def _tell_start(self) -> None:
        queues = self.settings.queues
        log.info(
            "jobs.worker.started",
            worker=self.settings.worker_id,
            queues=",".join(f"{queue}:{slots}" for queue, slots in queues.items()),
            jobs=",".join(handle.name for handle in registry.registered_jobs()) or "none",
        )
        for queue in sorted(queues.keys() - registry.queues()):
            log.warning("jobs.worker.queue-unregistered", queue=queue)


async def _ended_within(seconds: float | None, tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait for tasks that have been cancelled; what they raise on their way out is nobody's."""
    done, _ = await asyncio.wait(tasks, timeout=seconds)
    for task in done:
        if not task.cancelled():
            task.exception()


def _tell_attempt(run: Run, execution: Execution) -> None:
    """Log an attempt that came to no good, once it is settled so."""
    job, error = run.job, execution.error
    facts = {"job": job.id, "name": job.name, "attempt": job.attempt, "outcome": execution.outcome}
    if execution.outcome == "interrupted":
        log.warning("jobs.attempt.interrupted", **facts, error=describe(error) if error else None)
    elif execution.outcome in ("retried", "rate-limited"):
        log.warning("jobs.attempt.failed", **facts, retry=True, error=describe(error) if error else None)
    elif execution.outcome in ("dead-lettered", "dropped"):
        log.error("jobs.attempt.failed", cause=error, **facts, retry=False, stop_reason=execution.stop_reason)


def _draining(run: Run) -> Draining:
    return Draining(
        f"the worker shuts down and its time for job {run.job.name!r} ({run.job.id}) is over",
        "stop the work: the job is handed back with no attempt spent",
    )

"""Running what is due until nothing is, as tests do: one job at a time, in (run_at, id) order, through the worker's own
claim, attempt and settle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any, Literal, Protocol, TypeVar
from uuid import UUID

from xjobs import points, registry
from xjobs.drivers.base import Driver
from xjobs.errors import DrainStopped, Invariant, JobUnknown, OnSettledFailed
from xjobs.jobs import JobHandle
from xjobs.limits import check_count, check_duration, check_instant, check_queues
from xjobs.operations.admit import Refused, Shed, enter, raising
from xjobs.operations.attempt import BodyCaller, Execution, execute, settle
from xjobs.operations.claim import LEASE, give_back, take
from xjobs.operations.endings import announce, announce_buried
from xjobs.operations.events import wake_waits
from xjobs.operations.inspect import job as find_job, waiting
from xjobs.operations.settle import Ack, Nack, nack
from xjobs.operations.slots import release
from xjobs.records import ClaimedJob, DrainReport, JobRow, Jump, Run, Waiting, maker
from xjobs.signals import RunSignal

BUDGET = 1_000
"""How many attempts a drain runs before it gives up on coming to an end."""

MAX_ADVANCE = timedelta(days=366)
"""How far a drain moves the clock in all."""

R = TypeVar("R")

_run = maker(Run)

_ANCESTORS = 5
_NOT_DUE_SHOWN = 5


class Surround(Protocol):
    """How a host runs an attempt, or an ending hook, in surroundings of its own."""

    def __call__(self, run: Coroutine[Any, Any, R], /) -> Awaitable[R]:
        """Run it and answer what it answers; what it raises goes through."""
        ...


async def _here(run: Coroutine[Any, Any, R], /) -> R:
    __tracebackhide__ = True
    return await run


@dataclass(kw_only=True, slots=True)
class DrainSetup:
    """What a drain needs from its surroundings.

    Attributes:
        call: how bodies are called.
        clock: the queue's present instant.
        random: the source of retry jitter.
        worker_id: who claims; another one goes on after a crash.
        queues: the queues that are known to exist; the drain adds those that it finds.
        running: gets the job whose body is running, and its signal, for whoever must renew its lease.
        history: every run is added to it, also when the drain ends by raising.
        bodies: the driver by which the steps of a body of that job are recorded; the drain's own when None.
        move: moves the clock to an instant; None when this drain cannot.
        surround: keeps context variables of attempts and hooks apart, and from the caller's.
        succeed: answers who goes on after a crash at a named point; `worker_id` itself when None.
    """

    call: BodyCaller
    clock: Callable[[], datetime]
    random: Random
    worker_id: str
    queues: set[str]
    running: list[tuple[ClaimedJob, RunSignal]]
    history: list[Run] = field(default_factory=list)
    bodies: Callable[[JobHandle[Any, Any, Any]], Driver] | None = None
    move: Callable[[datetime], Any] | None = None
    surround: Surround = _here
    succeed: Callable[[], str] | None = None


@dataclass(slots=True)
class _Drain:
    """The state of one drain."""

    driver: Driver
    setup: DrainSetup
    budget: int
    collect: bool
    until: datetime | None
    max_advance: timedelta
    move: Callable[[datetime], Any] | None = None
    runs: list[Run] = field(default_factory=list)
    jumps: list[Jump] = field(default_factory=list)
    buried: list[ClaimedJob] = field(default_factory=list)
    parents: dict[UUID, UUID] = field(default_factory=dict)
    declared: frozenset[str] = frozenset()
    count: int = -1
    asked: list[str] = field(default_factory=list)
    shed: int = 0

    async def run(self) -> DrainReport:
        __tracebackhide__ = True
        with points.listening(self._note_enqueue, "enqueued"):
            while True:
                while await self._run_next():
                    pass
                left = await waiting(self.driver)
                if self._found_queues(left) or await self._woke(left):
                    continue
                if self.move is not None and await self._jump(left):
                    continue
                return self._report(left)

    async def run_one(self) -> Run | None:
        __tracebackhide__ = True
        with points.listening(self._note_enqueue, "enqueued"):
            while not self.runs:
                if await self._run_next():
                    continue
                left = await waiting(self.driver)
                if not self._found_queues(left) and not await self._woke(left):
                    return None
            return self.runs[-1]

    async def _run_next(self) -> bool:
        """Claim, run and settle the next due job; False when none is due."""
        __tracebackhide__ = True
        if len(self.runs) + self.shed >= self.budget:
            left = await waiting(self.driver)
            if any(job.due and not job.paused for job in left):
                raise await self._stopped(f"{self.budget:,} runs and jobs are still due", left)
            return False
        try:
            claimed = await take(self.driver, self._asked(), worker_id=self.setup.worker_id)
        except points.Crash:
            self._crashed()
            return True
        for job in claimed.buried:
            await self._bury(job)
        for job in claimed.jobs:
            await self._attempt(job)
        return bool(claimed.jobs or claimed.buried)

    async def _woke(self, left: Iterable[Waiting]) -> bool:
        """Whether suspended runs are due now since the event has come that they wait for."""
        return any(job.state == "suspended" for job in left) and bool(await wake_waits(self.driver))

    async def _bury(self, job: ClaimedJob) -> None:
        __tracebackhide__ = True
        self.buried.append(job)
        handle = registry.find(job.name)
        if handle is not None:
            self._raise_hook(await self.setup.surround(announce_buried(job, handle, call=self.setup.call)))

    async def _attempt(self, job: ClaimedJob) -> None:
        __tracebackhide__ = True
        setup, handle = self.setup, registry.find(job.name)
        if handle is None:
            await nack(self.driver, [Nack(job, counted=False)], worker_id=setup.worker_id)
            raise JobUnknown(
                f"job {job.name!r} ({job.id}) is queued, but nothing in this process declares it",
                f"import the module that does; declared here: {_names()}",
                name=job.name,
                id=job.id,
            )
        slot, call = None, setup.call
        if handle.concurrency_limit is not None:
            entry = await enter(self.driver, job, handle, worker_id=setup.worker_id)
            if entry.back is not None:
                await self._turn_away(job, handle, entry.back)
                return
            if entry.error is not None:
                call = raising(entry.error)
            slot = entry.slot
        started_at = (job.visible_at or setup.clock() + LEASE) - LEASE  # the instant of the claim
        running = job, RunSignal()
        setup.running.append(running)
        try:
            execution = await setup.surround(
                execute(
                    self.driver if setup.bodies is None else setup.bodies(handle),
                    job,
                    handle,
                    worker_id=setup.worker_id,
                    call=call,
                    clock=setup.clock,
                    random=setup.random,
                    signal=running[1],
                )
            )
            landed = await settle(self.driver, execution, worker_id=setup.worker_id)
            if slot is not None:
                await release(self.driver, [slot])
        except points.Crash as crash:
            self._note_run(job, handle, "crashed", Execution(Ack(job), "crashed", steps=crash.steps), started_at)
            self._crashed()
            return
        finally:
            setup.running.remove(running)
        outcome = execution.outcome if landed or execution.outcome == "cancelled" else "unowned"
        self._note_run(job, handle, outcome, execution, started_at)
        if handle.ending_hook is not None and landed:
            failed = await setup.surround(announce(job, handle, execution, call=setup.call))
        else:
            failed = None
        if execution.error is not None:
            self._raise_from(job, execution)
        if failed is not None:
            self._raise_hook(failed)

    def _crashed(self) -> None:
        """Go on as another worker: what the one that died has claimed stays leased to it."""
        if self.setup.succeed is not None:
            self.setup.worker_id = self.setup.succeed()

    def _note_run(
        self, job: ClaimedJob, handle: JobHandle[Any, Any, Any], outcome: str, ended: Execution, started_at: datetime
    ) -> None:
        parent = self.parents.get(job.id) if self.parents else None
        run = _run(
            (
                handle,
                job.name,
                job.id,
                job.attempt,
                outcome,
                started_at,
                ended.error,
                parent,
                ended.steps,
                ended.stop_reason,
            )
        )
        self.runs.append(run)
        self.setup.history.append(run)

    async def _turn_away(self, job: ClaimedJob, handle: JobHandle[Any, Any, Any], back: Shed | Refused) -> None:
        """Write what becomes of a job that its limit keeps from running; one that comes back uses up the budget too."""
        __tracebackhide__ = True
        landed = await nack(self.driver, [back.settlement], worker_id=self.setup.worker_id)
        if isinstance(back, Shed):
            self.shed += 1
        elif landed:
            refused = Execution(back.settlement, "refused", back.error, values=back.values)
            self._note_run(job, handle, "refused", refused, self.setup.clock())
            self._raise_hook(await self.setup.surround(announce(job, handle, refused, call=self.setup.call)))

    def _raise_from(self, job: ClaimedJob, execution: Execution) -> None:
        __tracebackhide__ = True
        error = execution.interrupt or execution.error
        if error is None or (execution.interrupt is None and execution.outcome in ("cancelled", "interrupted")):
            return
        if self.collect and execution.interrupt is None and not isinstance(error, AssertionError):
            return
        error.add_note(f"xjobs: in attempt {job.attempt} of {job.max_attempts} of job {_call_text(job)}, id {job.id}")
        raise error

    def _raise_hook(self, failed: OnSettledFailed | None) -> None:
        __tracebackhide__ = True
        if failed is not None and (not self.collect or isinstance(failed.__cause__, AssertionError)):
            raise failed

    def _note_enqueue(self, _point: str, facts: dict[str, Any]) -> None:
        if facts["answer"].deduped:
            return
        self.setup.queues.add(facts["call"].options.queue or facts["call"].job.queue)
        if facts["parent"] is not None:
            self.parents[facts["answer"].id] = facts["parent"]

    def _asked(self) -> list[str]:
        """The queues to claim from; the list is the same one while they are."""
        declared, count = registry.queues(), len(self.setup.queues)
        if declared is not self.declared or count != self.count:
            self.declared, self.count = declared, count
            self.asked = check_queues(self.setup.queues | declared)
        return self.asked

    def _found_queues(self, left: Iterable[Waiting]) -> bool:
        """Whether due jobs are in queues that the claim did not ask; they are asked from now on."""
        asked = self.setup.queues | registry.queues()
        new = {job.queue for job in left if job.due and not job.paused} - asked
        self.setup.queues |= new
        return bool(new)

    async def _jump(self, left: list[Waiting]) -> bool:
        """Move the clock to the next due instant; False when there is none to go to."""
        assert self.move is not None  # noqa: S101 - the caller asked
        now = self.setup.clock()
        due = [job.due_at for job in left if not job.due and not job.paused]
        if self.until is not None:
            due = [instant for instant in due if instant <= self.until] or ([self.until] if now < self.until else [])
        if not due:
            return False
        if self.until is None:
            spent = sum(((jump.end - jump.start) for jump in self.jumps), timedelta(0))
            if spent + (due[0] - now) > self.max_advance:
                raise await self._stopped(
                    f"the clock had moved {spent} and the next job lies beyond {self.max_advance}", left
                )
        self.move(due[0])
        self.jumps.append(Jump(now, due[0]))
        return True

    def _report(self, left: list[Waiting]) -> DrainReport:
        reason = "idle" if not left else "paused" if all(job.paused for job in left) else "not due"
        return DrainReport(tuple(self.runs), tuple(self.jumps), tuple(left), tuple(self.buried), reason)

    async def _stopped(self, why: str, left: list[Waiting]) -> DrainStopped:
        counts = Counter(run.job_name for run in self.runs)
        lines = [f"drain stopped: {why}"]
        if counts:
            name, times = counts.most_common(1)[0]
            last = next(run for run in reversed(self.runs) if run.job_name == name)
            lines.append(f"  job {name!r} ran {times:,} times, last as attempt {last.attempt} ({last.outcome})")
            lines.append(f"  it was queued by: {await self._lineage(last.job_id)}")
        now = self.setup.clock()
        not_due = [job for job in left if not job.due]
        lines += [f"  not due: {job.name!r} ({job.id}) in {job.due_at - now}" for job in not_due[:_NOT_DUE_SHOWN]]
        if len(not_due) > _NOT_DUE_SHOWN:
            lines.append(f"  not due: {left[0].total - (len(left) - len(not_due)) - _NOT_DUE_SHOWN} more")
        return DrainStopped(
            "\n".join(lines),
            "end the loop in the job, or pass a larger budget= or max_advance=",
            report=self._report(left),
        )

    async def _lineage(self, job_id: UUID) -> str:
        chain, seen = [await self._named(job_id)], {job_id}
        while (parent := self.parents.get(job_id)) is not None and parent not in seen:
            if len(chain) > _ANCESTORS:
                chain.append("...")
                break
            chain.append(await self._named(parent))
            seen.add(parent)
            job_id = parent
        return " <- ".join(chain)

    async def _named(self, job_id: UUID) -> str:
        row = await find_job(self.driver, job_id)
        return str(job_id) if row is None else _call_text(row)


async def drain(
    driver: Driver,
    setup: DrainSetup,
    *,
    budget: int = BUDGET,
    errors: Literal["raise", "collect"] = "raise",
    until: datetime | timedelta | float | None = None,
    advance: bool = False,
    max_advance: timedelta | float = MAX_ADVANCE,
) -> DrainReport:
    """Run due jobs, and those that they enqueue, until none is due.

    Raises:
        DrainStopped: the budget of runs or of virtual time is used up.
        JobUnknown: a due job is declared nowhere in this process.
        Exception: what a body raised, once its attempt is settled, unless `errors="collect"`; an AssertionError is
            raised in either case.
    """
    __tracebackhide__ = True  # what a body raises is shown from the test straight to the body
    if errors not in ("raise", "collect"):
        raise Invariant(f"errors is {errors!r}", "give 'raise' or 'collect'")
    move = setup.move if advance or until is not None else None
    if move is not None:
        move(setup.clock())  # stands still from here on, so that every jump is exact
    state = _Drain(
        driver,
        setup,
        budget=check_count(budget, "budget", low=1),
        collect=errors == "collect",
        until=_end(until, setup.clock) if until is not None else None,
        max_advance=check_duration(max_advance, "max_advance", low=timedelta(0)),
        move=move,
    )
    return await state.run()


async def next_due(driver: Driver) -> datetime | None:
    """The instant at which the first live job that is not paused is due, which may have passed; None when none is."""
    await wake_waits(driver)
    return next((job.due_at for job in await waiting(driver) if not job.paused), None)


async def give_back_claims(driver: Driver, setup: DrainSetup, worker_id: str) -> None:
    """Make jobs ready again that a drain has claimed which is over.

    One that was cancelled while a claim or a settle was under way leaves a job running that it does not know of.
    """
    await give_back(driver, [], queues=check_queues(setup.queues | registry.queues()), worker_id=worker_id)


async def run_next(driver: Driver, setup: DrainSetup) -> Run | None:
    """Run the one job that is due first; None when none is due. What its body raises is raised here."""
    __tracebackhide__ = True
    return await _Drain(driver, setup, budget=BUDGET, collect=False, until=None, max_advance=MAX_ADVANCE).run_one()


def _end(until: datetime | timedelta | float, clock: Callable[[], datetime]) -> datetime:
    if isinstance(until, datetime):
        return check_instant(until, "until")
    return clock() + check_duration(until, "until", low=timedelta(0))


def _call_text(job: ClaimedJob | JobRow) -> str:
    """The job as a call, its input in the order of the declaration; stored input is in the order of jsonb."""
    arguments = job.input if isinstance(job.input, dict) else {}
    handle = registry.find(job.name)
    names = [name for name in handle.codec.parameters if name in arguments] if handle is not None else []
    names += [name for name in arguments if name not in names]
    return f"{job.name}({', '.join(f'{name}={arguments[name]!r}' for name in names)})"


def _names() -> str:
    return ", ".join(handle.name for handle in registry.registered_jobs()) or "none"

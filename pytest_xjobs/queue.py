"""The queue that a test gets: every method of a queue, and what tests need besides."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, Self, TypeVar, overload
from uuid import UUID

from pytest_xjobs.drain import Apart, InPlace, on_loop, refuse_on_loop
from pytest_xjobs.environment import Environment
from pytest_xjobs.matching import Expected, describe_row, explain_missing, nearest
from pytest_xjobs.ran import differences_of, explain_runs, run_histories
from xjobs.bridge import run_sync
from xjobs.drivers.base import Driver
from xjobs.errors import Invariant
from xjobs.in_use import TestUse
from xjobs.jobs import Call, JobHandle
from xjobs.limits import check_count
from xjobs.operations import drain as draining, inspect
from xjobs.operations.leases import renew
from xjobs.queue import Queue
from xjobs.records import DrainReport, Enqueued, JobRow, Run
from xjobs.states import ALL, LIVE
from xjobs.transactions import Colour

R = TypeVar("R")

_workers = itertools.count(1)


class XjobsQueue(Queue):
    """The queue of one test. `drain` is for blocking tests, `adrain` for async ones; all else serves both."""

    __test__ = False

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment.source)
        self.clock = environment.clock
        self._environment = environment
        self._queues = {"default"}
        self._under_way: list[draining.DrainSetup] = []
        self._failed: set[str] = set()  # the workers of drains that ended by raising
        self._history: list[Run] = []
        self._apart = Apart(environment.context)

    @property
    def dsn(self) -> str | None:
        """The URL of this test's Postgres database, or None in memory."""
        return self._environment.dsn

    @classmethod
    @contextmanager
    def in_use(cls, environment: Environment) -> Iterator[Self]:
        """The queue of a test, in use for the length of the block."""
        queue = cls(environment)
        unsubscribe = environment.clock.subscribe(lambda _state: queue._renew())
        environment.clock.next_due = queue._next_due
        with TestUse(environment.source):
            yield queue
        unsubscribe()

    def drain(
        self,
        *,
        until: datetime | timedelta | float | None = None,
        advance: bool = False,
        errors: Literal["raise", "collect"] = "raise",
        budget: int | None = None,
        max_advance: timedelta | float = draining.MAX_ADVANCE,
    ) -> DrainReport:
        """Run due jobs one by one, and those that they enqueue, until none is due.

        Jobs run in (run_at, id) order through the worker's own claim, attempt and settle. A `def` body runs in this
        thread.

        Args:
            until: also move the clock to each instant at which a job is due, up to this one (or this far from now), and
                leave it there.
            advance: the same without an end: until nothing waits any more.
            errors: `raise` lets what a body raises through, once its attempt is settled, with a note that names the
                job; `collect` puts it in the report and goes on. An AssertionError is raised in either case.
            budget: how many attempts to run at most; 1,000 when neither this nor `xjobs_drain_budget` says otherwise.
            max_advance: how far `advance` moves the clock at most; 366 days.

        Raises:
            DrainStopped: the budget is used up; the message says which job keeps coming back.
            JobUnknown: a due job is declared nowhere in this process.
            WrongColour: this thread runs an event loop: `await adrain()`.
        """
        __tracebackhide__ = True
        refuse_on_loop("drain")
        with InPlace() as call:
            return run_sync(self._drain("blocking", call, until, advance, errors, budget, max_advance))

    async def adrain(
        self,
        *,
        until: datetime | timedelta | float | None = None,
        advance: bool = False,
        errors: Literal["raise", "collect"] = "raise",
        budget: int | None = None,
        max_advance: timedelta | float = draining.MAX_ADVANCE,
    ) -> DrainReport:
        """`drain` for async tests: `async def` bodies are awaited on this loop, `def` bodies run in a thread."""
        __tracebackhide__ = True
        return await self._drain("async", on_loop, until, advance, errors, budget, max_advance)

    def run_next(self) -> Run | None:
        """Run the one job that is due first, and answer its run; None when none is due. What it raises is raised."""
        __tracebackhide__ = True
        refuse_on_loop("run_next")
        with InPlace() as call:
            return run_sync(self._as_worker("blocking", call, draining.run_next))

    async def arun_next(self) -> Run | None:
        """`run_next` for async tests."""
        return await self._as_worker("async", on_loop, draining.run_next)

    @overload
    def assert_enqueued(
        self,
        job: JobHandle[Any, Any, Any] | Call,
        *,
        input: Mapping[str, Any] | None = None,
        queue: str | None = None,
        key: str | None = None,
        tenant: str | None = None,
        due: datetime | timedelta | float | None = None,
        count: None = None,
    ) -> JobRow: ...

    @overload
    def assert_enqueued(
        self,
        job: JobHandle[Any, Any, Any] | Call,
        *,
        input: Mapping[str, Any] | None = None,
        queue: str | None = None,
        key: str | None = None,
        tenant: str | None = None,
        due: datetime | timedelta | float | None = None,
        count: int,
    ) -> list[JobRow]: ...

    def assert_enqueued(
        self,
        job: JobHandle[Any, Any, Any] | Call,
        *,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the column's name
        queue: str | None = None,
        key: str | None = None,
        tenant: str | None = None,
        due: datetime | timedelta | float | None = None,
        count: int | None = None,
    ) -> JobRow | list[JobRow]:
        """Assert that a live job is queued, and answer its row; the first enqueued when several match.

        Args:
            job: a handle, or `handle.call(...)` for the whole input; options that the call carries are compared too.
            input: some of the input, by parameter.
            queue, key, tenant: of the row.
            due: `run_at` exactly, as an aware datetime, or as the time from the enqueue to it.
            count: exactly so many must match; the answer is the list of them, in the order of their enqueue.

        Raises:
            AssertionError: none matches, or not `count`; the message shows the nearest ones and what differs.
            Invariant: an argument that cannot be.
        """
        __tracebackhide__ = True
        if count is not None:
            check_count(count, "count")
        expected = Expected.of(job, input=input, queue=queue, key=key, tenant=tenant, due=due)
        rows = self._rows()
        found = [row for row in rows if _matches(expected, row)]
        if count is not None and len(found) != count:
            listed = [f"  {describe_row(row)}" for row in found[:10]]
            if len(found) > len(listed):
                listed.append(f"  and {len(found) - len(listed)} more")
            near = [*nearest(expected, rows), *self._environment.uncommitted()] if len(found) < count else []
            told = f"{len(found)} live job{'' if len(found) == 1 else 's'} {expected}, expected {count}"
            raise AssertionError("\n".join([told, *listed, *near]))
        if count is not None:
            return found
        if not found:
            raise AssertionError("\n".join([explain_missing(expected, rows), *self._environment.uncommitted()]))
        return found[0]

    def assert_not_enqueued(
        self,
        job: JobHandle[Any, Any, Any] | Call,
        *,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the column's name
        queue: str | None = None,
        key: str | None = None,
        tenant: str | None = None,
        due: datetime | timedelta | float | None = None,
    ) -> None:
        """Assert that no live job matches; the arguments are those of `assert_enqueued`.

        Raises:
            AssertionError: one does; the message shows it.
        """
        __tracebackhide__ = True
        expected = Expected.of(job, input=input, queue=queue, key=key, tenant=tenant, due=due)
        found = [row for row in self._rows() if _matches(expected, row)]
        if found:
            more = f"\n  and {len(found) - 1} more" if len(found) > 1 else ""
            raise AssertionError(f"a live job {expected} is queued:\n  {describe_row(found[0])}{more}")

    @overload
    def assert_ran(
        self,
        job: JobHandle[Any, Any, Any] | Call,
        *,
        input: Mapping[str, Any] | None = None,
        steps: Sequence[str] | None = None,
        outcome: str = "completed",
        count: None = None,
    ) -> Run: ...

    @overload
    def assert_ran(
        self,
        job: JobHandle[Any, Any, Any] | Call,
        *,
        input: Mapping[str, Any] | None = None,
        steps: Sequence[str] | None = None,
        outcome: str = "completed",
        count: int,
    ) -> list[Run]: ...

    def assert_ran(
        self,
        job: JobHandle[Any, Any, Any] | Call,
        *,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the column's name
        steps: Sequence[str] | None = None,
        outcome: str = "completed",
        count: int | None = None,
    ) -> Run | list[Run]:
        """Assert that the drains of this test ran a job to an outcome, and answer its last run.

        Args:
            job: a handle, or `handle.call(...)` for the whole input.
            input: some of the input, by parameter.
            steps: the names of its steps, in the order in which they were carried out, over all attempts: a step that
                failed or was lost in a crash is there again, one that was replayed is not.
            outcome: of the last run; see `Run.outcome`.
            count: exactly so many jobs must match; the answer is the list of their last runs.

        Raises:
            AssertionError: none matches, or not `count`; the message shows what did run.
            Invariant: an argument that cannot be.
        """
        __tracebackhide__ = True
        if count is not None:
            check_count(count, "count")
        expected = Expected.of(job, input=input)
        histories = run_histories(self._history, {row.id: row for row in self._rows()})
        found = [h for h in histories if not differences_of(h, expected, steps, outcome)]
        explained = partial(explain_runs, histories, expected, steps, outcome)
        if count is not None and len(found) != count:
            told = f"{len(found)} jobs {expected} ran, expected {count}"
            raise AssertionError("\n".join([told, *explained(), *self._environment.uncommitted()]))
        if count is not None:
            return [history.runs[-1] for history in found]
        if not found:
            told = f"no job {expected} ran to the outcome {outcome!r}"
            raise AssertionError("\n".join([told, *explained(), *self._environment.uncommitted()]))
        return found[0].runs[-1]

    def assert_state(self, job: JobRow | Enqueued | Run | UUID | str, state: str) -> JobRow:
        """Assert that a job is in a state, and answer its row as it is now.

        Args:
            job: its id, or what an enqueue, an assertion or a drain answered for it.
            state: ready, delayed, running, suspended, done, failed, dead or cancelled.

        Raises:
            AssertionError: the job is in another state, or there is no such job.
        """
        __tracebackhide__ = True
        if state not in ALL:
            raise Invariant(f"state is {state!r}", f"name one of {', '.join(ALL)}")
        if not isinstance(job, JobRow | Enqueued | Run | UUID | str):
            raise Invariant(
                f"{job!r} is not one job of the queue",
                "give its id, or what an enqueue, an assertion or a drain answered for it",
            )
        job_id = job.job_id if isinstance(job, Run) else job if isinstance(job, UUID | str) else job.id
        row = run_sync(inspect.job(self._driver("blocking"), job_id))
        if row is None:
            told = f"there is no job {job_id}, expected one that is {state}"
            raise AssertionError("\n".join([told, *self._environment.uncommitted()]))
        if row.state != state:
            error = f"\n  last error: {row.last_error}" if row.last_error else ""
            told = (
                f"job is {row.state}, expected {state}: {describe_row(row)}\n"
                f"  attempt {row.attempt} of {row.max_attempts}, due {row.run_at.isoformat()}, now"
                f" {self.clock.now.isoformat()}{error}"
            )
            raise AssertionError("\n".join([told, *self._environment.uncommitted()]))
        return row

    async def _drain(
        self,
        colour: Colour,
        call: Any,
        until: datetime | timedelta | float | None,
        advance: bool,
        errors: Literal["raise", "collect"],
        budget: int | None,
        max_advance: timedelta | float,
    ) -> DrainReport:
        __tracebackhide__ = True
        drain = partial(
            draining.drain,
            until=until,
            advance=advance,
            errors=errors,
            budget=self._environment.drain_budget if budget is None else budget,
            max_advance=max_advance,
        )
        return await self._as_worker(colour, call, drain)

    async def _as_worker(
        self, colour: Colour, call: Any, drain: Callable[[Driver, draining.DrainSetup], Awaitable[R]]
    ) -> R:
        """Run a drain as a worker of its own, after what earlier ones have left running."""
        __tracebackhide__ = True
        driver, setup = self._driver(colour), self._setup(call)
        for worker_id in tuple(self._failed):
            await draining.give_back_claims(driver, setup, worker_id)
            self._failed.discard(worker_id)
        self._under_way.append(setup)
        try:
            return await drain(driver, setup)
        except BaseException:
            self._failed.add(setup.worker_id)
            raise
        finally:
            self._under_way.remove(setup)

    def _setup(self, call: Any) -> draining.DrainSetup:
        return draining.DrainSetup(
            call=call,
            clock=lambda: self.clock.now,
            random=self._environment.random,
            worker_id=_new_worker(),
            queues=self._queues,
            running=[],
            history=self._history,
            bodies=lambda handle: self._driver("async" if handle.is_async and call is on_loop else "blocking"),
            move=self.clock.move_to,
            surround=self._apart.on_loop if call is on_loop else self._apart.in_place,
            succeed=_new_worker,
        )

    def _driver(self, colour: Colour) -> Any:
        return self._environment.source.driver(colour)

    def _renew(self) -> None:
        """Renew the leases of bodies that are running: a live worker's heartbeats would have, as time went by."""
        for setup in tuple(self._under_way):
            if setup.running:
                run_sync(renew(self._driver("blocking"), setup.running, worker_id=setup.worker_id))

    def _next_due(self) -> datetime | None:
        return run_sync(draining.next_due(self._driver("blocking")))

    def _rows(self) -> list[JobRow]:
        """Every row, in the order of the enqueues."""
        return run_sync(inspect.every_job(self._driver("blocking")))


def _new_worker() -> str:
    return f"drain-{next(_workers)}"


def _matches(expected: Expected, row: JobRow) -> bool:
    return row.name == expected.job.name and row.state in LIVE and not expected.differences(row)

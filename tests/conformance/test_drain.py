"""Running what is due until nothing is, one job at a time, through the worker's claim, attempt and settle."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import xjobs
from conformance.fixtures import Drain, Work
from conformance.stores import Tables
from pytest_xjobs.clock import Clock
from xjobs import points
from xjobs.operations import drain as draining
from xjobs.operations.drain import DrainSetup

NO_JITTER = xjobs.Retry(attempts=3, delay=60, jitter=False)


async def _state(queue: xjobs.AsyncQueue, made: xjobs.Enqueued) -> str:
    row = await queue.job(made.id)
    assert row is not None
    return row.state


class TestOrder:
    async def test_jobs_run_in_the_order_of_their_instants_and_ids(
        self, queue: xjobs.AsyncQueue, clock: Clock, drain: Drain
    ) -> None:
        ran: list[int] = []

        @xjobs.job(key="{n}")
        def note(n: int) -> None:
            ran.append(n)

        now = clock.freeze()
        for n, age in enumerate([0, 5, 5, 9]):
            await note.using(run_at=now - timedelta(seconds=age)).aenqueue(n=n)
        report = await drain()
        assert ran == [3, 1, 2, 0]
        assert [run.job for run in report.runs] == [note] * 4
        assert (report.reason, report.waiting, report.jumps, report.buried) == ("idle", (), (), ())

    async def test_a_body_sees_its_siblings_as_ready(self, queue: xjobs.AsyncQueue, drain: Drain) -> None:
        seen: list[list[int]] = []

        @xjobs.job(key="{n}")
        async def look(n: int) -> None:
            (stats,) = await queue.stats()
            seen.append([stats.running, stats.ready])

        await queue.enqueue_many(look.call(n=n) for n in range(3))
        await drain()
        assert seen == [[1, 2], [1, 1], [1, 0]]

    async def test_jobs_that_jobs_enqueue_run_too_and_know_their_parent(
        self, queue: xjobs.AsyncQueue, drain: Drain
    ) -> None:
        @xjobs.job(key="{depth}")
        async def nest(depth: int) -> None:
            if depth:
                await nest.aenqueue(depth=depth - 1)

        root = await nest.aenqueue(depth=3)
        runs = (await drain()).runs
        assert [run.parent for run in runs] == [None, *(run.job_id for run in runs[:-1])]
        assert (len(runs), runs[0].job_id) == (4, root.id)

    async def test_a_def_body_and_an_async_one_run_alike(self, queue: xjobs.AsyncQueue, drain: Drain) -> None:
        ran: list[Any] = []

        @xjobs.job(key="{day}")
        def plain(ctx: xjobs.Context, day: datetime) -> None:
            ran.append((ctx.attempt, ctx.final_attempt, ctx.tenant, ctx.enqueued_by, ctx.traceparent, day))

        @xjobs.job(key="{day}")
        async def awaited(ctx: xjobs.AsyncContext, day: datetime) -> None:
            ran.append((ctx.attempt, ctx.final_attempt, ctx.tenant, ctx.enqueued_by, ctx.traceparent, day))

        day = datetime(2024, 2, 29, 12, tzinfo=UTC)
        for job in (plain, awaited):
            await job.using(tenant="t", enqueued_by="ann", traceparent="00-a").aenqueue(day=day)
        assert [run.outcome for run in (await drain()).runs] == ["completed", "completed"]
        assert ran == [(1, False, "t", "ann", "00-a", day)] * 2

    async def test_queues_that_only_the_table_knows_are_found(
        self, queue: xjobs.AsyncQueue, work: Work, drain: Drain
    ) -> None:
        await work.using(queue="of-no-declaration").aenqueue(n=1)
        await work.aenqueue(n=2)
        assert len((await drain()).runs) == 2

    async def test_a_queue_that_a_body_makes_up_is_found(self, queue: xjobs.AsyncQueue, drain: Drain) -> None:
        @xjobs.job(key="{name}")
        async def hop(name: str) -> None:
            if len(name) < 4:
                await hop.using(queue=name).aenqueue(name=name + "x")

        await hop.aenqueue(name="q")
        assert len((await drain()).runs) == 4

    async def test_run_next_runs_one(
        self, queue: xjobs.AsyncQueue, clock: Clock, work: Work, drain_setup: DrainSetup
    ) -> None:
        clock.freeze()
        made = [await work.using(queue=name).aenqueue(n=n) for n, name in enumerate(["default", "unheard-of"])]
        runs = [await draining.run_next(queue.driver, drain_setup) for _ in range(3)]
        assert [run and run.job_id for run in runs] == [made[0].id, made[1].id, None]

    async def test_run_next_passes_over_what_the_claim_buries(
        self, queue: xjobs.AsyncQueue, clock: Clock, work: Work, drain_setup: DrainSetup
    ) -> None:
        clock.freeze()
        await work.aenqueue(n=1)
        for _ in range(3):
            await queue.claim(queues=["default"], worker_id="dead", lease=1)
            clock.advance(seconds=1)
        fresh = await work.aenqueue(n=2)
        run = await draining.run_next(queue.driver, drain_setup)
        assert run is not None
        assert run.job_id == fresh.id
        assert await draining.run_next(queue.driver, drain_setup) is None


class TestErrors:
    async def test_an_error_is_raised_once_its_attempt_is_settled(
        self, queue: xjobs.AsyncQueue, clock: Clock, drain: Drain
    ) -> None:
        @xjobs.job(key="{who}", retry=NO_JITTER)
        async def fail(who: str) -> None:
            raise LookupError(f"no {who}")

        now = clock.freeze()
        made = await fail.aenqueue(who="Ann")
        with pytest.raises(LookupError) as caught:
            await drain()
        assert caught.value.__notes__ == [f"xjobs: in attempt 1 of 3 of job fail(who='Ann'), id {made.id}"]
        row = await queue.job(made.id)
        assert row is not None
        assert (row.state, row.attempt, row.run_at) == ("ready", 1, now + timedelta(seconds=60))
        assert row.last_error == "LookupError: no Ann"
        assert row.last_error_stack is not None
        assert row.last_error_stack.rstrip().endswith("LookupError: no Ann")

    async def test_errors_can_be_collected_while_the_rest_runs(
        self, queue: xjobs.AsyncQueue, clock: Clock, drain: Drain
    ) -> None:
        @xjobs.job(key="{n}", retry=NO_JITTER)
        async def fail(n: int) -> None:
            if n == 1:
                raise LookupError("1")

        clock.freeze()
        await queue.enqueue_many(fail.call(n=n) for n in range(3))
        report = await drain(errors="collect", until=timedelta(minutes=10))
        assert [(run.outcome, repr(run.error)) for run in report.runs if run.error] == [
            ("retried", "LookupError('1')"),
            ("retried", "LookupError('1')"),
            ("dead-lettered", "LookupError('1')"),
        ]
        assert [run.attempt for run in report.runs] == [1, 1, 1, 2, 3]

    async def test_an_assertion_is_raised_even_when_errors_are_collected(
        self, queue: xjobs.AsyncQueue, drain: Drain
    ) -> None:
        @xjobs.job(key="{n}")
        async def check(n: int) -> None:
            assert n == 0, "not none"

        made = await check.aenqueue(n=1)
        with pytest.raises(AssertionError, match="not none") as caught:
            await drain(errors="collect")
        assert str(made.id) in caught.value.__notes__[0]
        row = await queue.job(made.id)
        assert row is not None
        assert (row.state, row.attempt) == ("ready", 1)

    @pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
    async def test_an_interrupt_gives_the_attempt_back_and_goes_through(
        self, queue: xjobs.AsyncQueue, tables: Tables, drain: Drain, interrupt: type[BaseException]
    ) -> None:
        @xjobs.job(key="{n}")
        async def wait(n: int) -> None:
            raise interrupt

        made = await wait.aenqueue(n=1)
        with pytest.raises(interrupt) as caught:
            await drain(errors="collect")
        assert "wait(n=1)" in caught.value.__notes__[0]
        row = await queue.job(made.id)
        assert row is not None
        assert (row.state, row.attempt, row.claims, row.last_error) == ("ready", 0, 1, interrupt.__name__)
        assert tables.counters() == []

    @pytest.mark.parametrize(
        ("dead_letter", "outcome", "state"), [(True, "dead-lettered", "dead"), (False, "dropped", "failed")]
    )
    async def test_the_final_attempt_ends_the_job(
        self, queue: xjobs.AsyncQueue, drain: Drain, dead_letter: bool, outcome: str, state: str
    ) -> None:
        @xjobs.job(key="{n}", retry=xjobs.Retry(attempts=1, dead_letter=dead_letter))
        async def fail(n: int) -> None:
            raise LookupError

        made = await fail.aenqueue(n=1)
        report = await drain(errors="collect")
        assert [run.outcome for run in report.runs] == [outcome]
        assert await _state(queue, made) == state
        assert report.reason == "idle"

    async def test_input_that_no_longer_fits_fails_as_an_attempt(
        self, queue: xjobs.AsyncQueue, tables: Tables, drain: Drain, work: Work
    ) -> None:
        made = await work.aenqueue(n=1)
        tables.change(made.id, input={"n": "one"})
        (run,) = (await drain(errors="collect")).runs
        assert isinstance(run.error, xjobs.InputInvalid)
        assert (run.outcome, run.error.path) == ("retried", "input.n")
        row = await queue.job(made.id)
        assert row is not None
        assert row.last_error is not None
        assert row.last_error.startswith("InputInvalid [X_INPUT_INVALID]: input.n of job 'work'")

    async def test_an_error_whose_text_fails_is_still_an_attempt(self, queue: xjobs.AsyncQueue, drain: Drain) -> None:
        class Broken(Exception):
            def __str__(self) -> str:
                raise LookupError

        @xjobs.job(key="{n}")
        async def fail(n: int) -> None:
            raise Broken

        made = await fail.aenqueue(n=1)
        assert [run.outcome for run in (await drain(errors="collect")).runs] == ["retried"]
        row = await queue.job(made.id)
        assert row is not None
        assert row.last_error == "Broken: <its text raised LookupError>"

    async def test_an_ack_that_raises_is_no_failed_attempt(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work, drain: Drain
    ) -> None:
        def crash(point: str, facts: dict[str, Any]) -> None:
            if point == "before_settle":
                raise ConnectionError("gone")

        clock.freeze()
        made = await work.aenqueue(n=1)
        with points.listening(crash), pytest.raises(ConnectionError):
            await drain()
        row = await queue.job(made.id)
        assert row is not None
        assert (row.state, row.attempt, row.last_error, tables.counters()) == ("running", 1, None, [])
        report = await drain(advance=True)
        assert [(run.attempt, run.outcome) for run in report.runs] == [(2, "completed")]
        assert clock.now == row.visible_at

    async def test_a_body_whose_claim_is_gone_is_reported_as_unowned(
        self, queue: xjobs.AsyncQueue, tables: Tables, drain: Drain
    ) -> None:
        @xjobs.job(key="{n}")
        async def cancelled(n: int) -> None:
            tables.change(made.id, state="cancelled", visible_at=None, claimed_by=None)

        made = await cancelled.aenqueue(n=1)
        assert [run.outcome for run in (await drain()).runs] == ["unowned"]
        assert await _state(queue, made) == "cancelled"
        assert tables.counters() == []

    async def test_a_job_that_nobody_declares_is_named_and_left(
        self, queue: xjobs.AsyncQueue, tables: Tables, drain: Drain, work: Work
    ) -> None:
        made = await work.aenqueue(n=1)
        tables.change(made.id, name="renamed")
        with pytest.raises(xjobs.JobUnknown, match=r"'renamed'.*declared here: work") as caught:
            await drain()
        assert (caught.value.code, caught.value.id, caught.value.name) == ("X_JOB_UNKNOWN", made.id, "renamed")
        row = await queue.job(made.id)
        assert row is not None
        assert (row.state, row.attempt, row.last_error) == ("ready", 0, None)

    @pytest.mark.parametrize("errors", ["ignore", "", None])
    async def test_another_way_with_errors_is_refused(self, drain: Drain, errors: Any) -> None:
        with pytest.raises(xjobs.Invariant):
            await drain(errors=errors)


class TestBudget:
    async def test_a_loop_is_stopped_and_described(self, queue: xjobs.AsyncQueue, drain: Drain) -> None:
        @xjobs.job(key=xjobs.NO_KEY)
        async def spin(n: int) -> None:
            await spin.aenqueue(n=n + 1)

        later = await spin.using(delay=3_600).aenqueue(n=-1)
        await spin.aenqueue(n=0)
        with pytest.raises(xjobs.DrainStopped) as caught:
            await drain(budget=20)
        error = caught.value
        assert (error.code, len(error.report.runs)) == ("X_DRAIN_STOPPED", 20)
        lines = str(error).splitlines()
        assert lines[:3] == [
            "drain stopped: 20 runs and jobs are still due",
            "  job 'spin' ran 20 times, last as attempt 1 (completed)",
            f"  it was queued by: {' <- '.join(f'spin(n={n})' for n in range(19, 13, -1))} <- ...",
        ]
        assert lines[3].startswith(f"  not due: 'spin' ({later.id}) in ")
        assert lines[-1].endswith("pass a larger budget= or max_advance=")

    async def test_exactly_the_budget_is_enough(self, queue: xjobs.AsyncQueue, work: Work, drain: Drain) -> None:
        await queue.enqueue_many(work.call(n=n) for n in range(5))
        assert len((await drain(budget=5)).runs) == 5

    async def test_a_retry_loop_without_delay_is_stopped(self, queue: xjobs.AsyncQueue, drain: Drain) -> None:
        @xjobs.job(key="{n}", retry=xjobs.Retry(attempts=10**6, delay=0))
        async def fail(n: int) -> None:
            raise LookupError

        await fail.aenqueue(n=1)
        with pytest.raises(xjobs.DrainStopped, match="last as attempt 7 \\(retried\\)"):
            await drain(budget=7, errors="collect")

    @pytest.mark.parametrize("budget", [0, -1, 1.5, None])
    async def test_a_budget_that_is_no_count_is_refused(self, drain: Drain, budget: Any) -> None:
        with pytest.raises(xjobs.Invariant, match="budget"):
            await drain(budget=budget)


class TestTime:
    async def test_without_leave_the_clock_stays(
        self, queue: xjobs.AsyncQueue, clock: Clock, work: Work, drain: Drain
    ) -> None:
        now = clock.freeze()
        made = await work.using(delay=60).aenqueue(n=1)
        report = await drain()
        assert (report.runs, report.jumps, report.reason, clock.now) == ((), (), "not due", now)
        assert [(job.id, job.due_at) for job in report.waiting] == [(made.id, now + timedelta(seconds=60))]

    async def test_advance_jumps_from_due_instant_to_due_instant(
        self, queue: xjobs.AsyncQueue, clock: Clock, drain: Drain
    ) -> None:
        ran: list[tuple[int, datetime]] = []

        @xjobs.job(key="{n}")
        async def note(ctx: xjobs.AsyncContext, n: int) -> None:
            ran.append((n, ctx.now()))

        now = clock.freeze()
        days = [timedelta(days=count) for count in (30, 1, 1)]
        for n, delay in enumerate(days):
            await note.using(delay=delay).aenqueue(n=n)
        report = await drain(advance=True)
        assert ran == [(1, now + days[1]), (2, now + days[2]), (0, now + days[0])]
        assert report.jumps == (xjobs.Jump(now, now + days[1]), xjobs.Jump(now + days[1], now + days[0]))
        assert [run.started_at for run in report.runs] == [instant for _, instant in ran]
        assert (report.reason, clock.now) == ("idle", now + days[0])

    async def test_retries_run_at_their_own_instants(self, queue: xjobs.AsyncQueue, clock: Clock, drain: Drain) -> None:
        @xjobs.job(key="{n}", retry=xjobs.Retry(attempts=4, delay=10, jitter=False))
        async def fail(n: int) -> None:
            raise LookupError

        now = clock.freeze()
        await fail.aenqueue(n=1)
        report = await drain(advance=True, errors="collect")
        assert [(run.started_at - now).total_seconds() for run in report.runs] == [0, 10, 30, 70]

    async def test_jitter_comes_from_the_given_source(
        self, queue: xjobs.AsyncQueue, clock: Clock, drain: Drain
    ) -> None:
        from random import Random

        @xjobs.job(key="{n}", retry=xjobs.Retry(attempts=2, delay=100))
        async def fail(n: int) -> None:
            raise LookupError

        now = clock.freeze()
        await fail.aenqueue(n=1)
        await drain(advance=True, errors="collect")
        assert clock.now - now == timedelta(seconds=50 + 50 * Random(7).random())

    @pytest.mark.parametrize("form", ["instant", "span", "seconds"])
    async def test_until_ends_at_its_instant(
        self, queue: xjobs.AsyncQueue, clock: Clock, work: Work, drain: Drain, form: str
    ) -> None:
        now = clock.freeze()
        for n, seconds in enumerate([10, 60, 61]):
            await work.using(delay=seconds).aenqueue(n=n)
        span = timedelta(seconds=60)
        report = await drain(until={"instant": now + span, "span": span, "seconds": 60}[form])
        assert [(run.started_at - now).total_seconds() for run in report.runs] == [10, 60]
        assert (clock.now, report.reason) == (now + span, "not due")
        assert [job.due_at - now for job in report.waiting] == [timedelta(seconds=61)]

    async def test_until_goes_on_to_its_end_when_nothing_is_due(
        self, queue: xjobs.AsyncQueue, clock: Clock, drain: Drain
    ) -> None:
        now = clock.freeze()
        report = await drain(until=timedelta(hours=1))
        assert report.jumps == (xjobs.Jump(now, now + timedelta(hours=1)),)
        assert (clock.now, report.reason) == (now + timedelta(hours=1), "idle")

    async def test_until_in_the_past_moves_nothing(
        self, queue: xjobs.AsyncQueue, clock: Clock, work: Work, drain: Drain
    ) -> None:
        now = clock.freeze()
        await work.aenqueue(n=1)
        report = await drain(until=now - timedelta(hours=1))
        assert (len(report.runs), report.jumps, clock.now) == (1, (), now)

    async def test_an_endless_chain_ends_with_the_span_of_time(
        self, queue: xjobs.AsyncQueue, clock: Clock, drain: Drain
    ) -> None:
        @xjobs.job(key=xjobs.NO_KEY)
        async def daily() -> None:
            await daily.using(delay=timedelta(days=1)).aenqueue()

        now = clock.freeze()
        await daily.aenqueue()
        with pytest.raises(xjobs.DrainStopped, match=r"moved 7 days.* beyond 7 days") as caught:
            await drain(advance=True, max_advance=timedelta(days=7))
        assert (len(caught.value.report.runs), clock.now) == (8, now + timedelta(days=7))

    async def test_the_lease_of_a_dead_worker_is_waited_for(
        self, queue: xjobs.AsyncQueue, clock: Clock, work: Work, drain: Drain
    ) -> None:
        now = clock.freeze()
        await work.aenqueue(n=1)
        await queue.claim(queues=["default"], worker_id="dead", lease=45)
        waits = await drain()
        assert (waits.reason, [job.state for job in waits.waiting]) == ("not due", ["running"])
        report = await drain(advance=True)
        assert [(run.attempt, run.started_at - now) for run in report.runs] == [(2, timedelta(seconds=45))]

    async def test_a_lease_that_lapsed_on_the_final_attempt_is_buried_and_reported(
        self, queue: xjobs.AsyncQueue, clock: Clock, work: Work, drain: Drain
    ) -> None:
        clock.freeze()
        made = await work.aenqueue(n=1)
        for _ in range(3):
            await queue.claim(queues=["default"], worker_id="dead", lease=1)
            clock.advance(seconds=1)
        report = await drain()
        assert [(job.id, job.state) for job in report.buried] == [(made.id, "dead")]
        assert (report.runs, report.reason) == ((), "idle")

    @pytest.mark.parametrize(
        "until",
        [datetime(2024, 1, 1), "tomorrow", True, -1, timedelta(seconds=-1), timedelta(days=40_000)],  # noqa: DTZ001
    )
    async def test_an_end_that_is_none_is_refused(self, drain: Drain, until: Any) -> None:
        with pytest.raises(xjobs.Invariant, match="until"):
            await drain(until=until)

    @pytest.mark.parametrize("span", [-1, float("nan"), "1d"])
    async def test_a_span_that_is_none_is_refused(self, drain: Drain, span: Any) -> None:
        with pytest.raises(xjobs.Invariant, match="max_advance"):
            await drain(advance=True, max_advance=span)


class TestCounters:
    async def test_runs_are_counted_with_their_duration(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, drain: Drain
    ) -> None:
        @xjobs.job(key="{n}", retry=xjobs.Retry(attempts=2, delay=0))
        async def fail(n: int) -> None:
            if n:
                raise LookupError

        clock.freeze()
        await queue.enqueue_many(fail.call(n=n) for n in (0, 1))
        await drain(errors="collect")
        ((*_, done, retried, failed, dead, duration),) = tables.counters()
        assert (done, retried, failed, dead) == (1, 1, 0, 1)
        assert 0 <= duration < 10_000

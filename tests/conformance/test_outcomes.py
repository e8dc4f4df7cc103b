"""How an attempt ends besides by its body's own end: cancelled, over time, classified by its exception, told of."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta
from random import Random
from typing import Any

import pytest

import xjobs
from conformance.fixtures import Drain
from conformance.stores import Store, Tables
from pytest_xjobs.clock import Clock
from xjobs.operations.drain import DrainSetup
from xjobs.operations.leases import renew

NO_JITTER = xjobs.Retry(attempts=3, delay=60, jitter=False)


async def row_of(queue: xjobs.AsyncQueue, made: xjobs.Enqueued) -> xjobs.JobRow:
    row = await queue.job(made.id)
    assert row is not None
    return row


@pytest.fixture
def heartbeats(clock: Clock, store: Store, drain_setup: DrainSetup) -> Iterator[None]:
    """Renew what the drain runs whenever the clock moves, as a worker's heartbeats do."""
    from xjobs.bridge import run_sync

    def beat(_state: Any) -> None:
        if drain_setup.running:
            run_sync(renew(store.blocking, drain_setup.running, worker_id=drain_setup.worker_id))

    unsubscribe = clock.subscribe(beat)
    yield
    unsubscribe()


@pytest.mark.usefixtures("heartbeats")
class TestCancel:
    async def test_it_reaches_a_def_body_that_asks_at_the_next_heartbeat(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, store: Store
    ) -> None:
        seen: list[bool] = []
        cancelling = xjobs.Queue(xjobs.queue.Drivers(blocking=store.blocking))

        @xjobs.job(key=xjobs.NO_KEY)
        def long(ctx: xjobs.Context) -> None:
            seen.append(ctx.cancelled)
            ctx.raise_if_cancelled()
            cancelling.cancel(ctx.job_id, reason="not wanted")
            seen.append(ctx.cancelled)
            clock.advance(5)
            seen.append(ctx.cancelled)
            with pytest.raises(xjobs.Aborted) as caught:
                ctx.step.run("late", int)
            assert isinstance(caught.value.__cause__, xjobs.JobCancelled)
            ctx.raise_if_cancelled()

        clock.freeze()
        made = await long.aenqueue()
        (run,) = (await drain()).runs
        assert (run.outcome, seen) == ("cancelled", [False, False, True])
        assert isinstance(run.error, xjobs.JobCancelled)
        row = await row_of(queue, made)
        assert (row.state, row.last_error, row.attempt) == ("cancelled", "not wanted", 1)
        assert await queue.steps(made.run_id) == []

    async def test_it_cancels_an_async_body(self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock) -> None:
        cleaned: list[str] = []

        @xjobs.job(key=xjobs.NO_KEY)
        async def long(ctx: xjobs.AsyncContext) -> None:
            await queue.cancel(ctx.job_id)
            clock.advance(5)
            try:
                await asyncio.Event().wait()
            finally:
                cleaned.append("finally")

        clock.freeze()
        made = await long.aenqueue()
        (run,) = (await drain()).runs
        assert (run.outcome, cleaned) == ("cancelled", ["finally"])
        assert (await row_of(queue, made)).state == "cancelled"
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0  # the body was, and not whoever drains

    async def test_a_body_that_goes_on_to_its_end_does_not_undo_it(
        self, queue: xjobs.AsyncQueue, drain: Drain, tables: Tables
    ) -> None:
        @xjobs.job(key=xjobs.NO_KEY)
        async def deaf(ctx: xjobs.AsyncContext) -> None:
            await queue.cancel(ctx.job_id)

        made = await deaf.aenqueue()
        (run,) = (await drain()).runs
        assert run.outcome == "unowned"
        assert (await row_of(queue, made)).state == "cancelled"
        assert tables.counters() == []

    async def test_a_lost_lease_stops_the_body_too(
        self, queue: xjobs.AsyncQueue, drain: Drain, drain_setup: DrainSetup, clock: Clock
    ) -> None:
        @xjobs.job(key=xjobs.NO_KEY, retry=NO_JITTER)
        async def stalled(ctx: xjobs.AsyncContext) -> None:
            with pytest.raises(xjobs.Error):
                await ctx.step.run("before", steal)
            await asyncio.Event().wait()

        async def steal() -> None:
            (running,) = drain_setup.running
            drain_setup.running.clear()  # its heartbeats stop
            clock.advance(60)
            assert (await queue.claim(queues=["default"], worker_id="thief")).jobs
            drain_setup.running.append(running)
            clock.advance(1)

        clock.freeze()
        made = await stalled.aenqueue()
        (run,) = (await drain(errors="collect")).runs
        assert isinstance(run.error, xjobs.LeaseLost)
        assert run.outcome == "unowned"
        row = await row_of(queue, made)
        assert (row.state, row.claimed_by) == ("running", "thief")


class TestDeadline:
    async def test_a_body_that_passes_it_fails_although_it_returns(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock
    ) -> None:
        told: list[bool] = []

        @xjobs.job(key=xjobs.NO_KEY, timeout=timedelta(minutes=5), retry=NO_JITTER)
        def slow(ctx: xjobs.Context) -> None:
            told.append(ctx.cancelled)
            clock.advance(minutes=5)
            told.append(ctx.cancelled)
            with pytest.raises(xjobs.Aborted):
                ctx.step.run("late", int)

        clock.freeze()
        made = await slow.aenqueue()
        with pytest.raises(xjobs.JobTimeout, match=r"0:05:00"):
            await drain()
        assert told == [False, True]
        row = await row_of(queue, made)
        assert (row.state, row.attempt) == ("ready", 1)
        assert (row.last_error or "").startswith("JobTimeout [X_JOB_TIMEOUT]")
        assert await queue.steps(made.run_id) == []

    async def test_an_async_body_is_cancelled_at_it_in_real_time(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock
    ) -> None:
        ended: list[str] = []

        @xjobs.job(key=xjobs.NO_KEY, timeout=0.05, retry=NO_JITTER)
        async def hangs() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        clock.freeze()
        made = await hangs.aenqueue()
        (run,) = (await drain(errors="collect")).runs
        assert ended == ["cancelled"]
        assert isinstance(run.error, xjobs.JobTimeout)
        assert (await row_of(queue, made)).state == "ready"

    async def test_a_step_has_its_own(self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock) -> None:
        cancelled: list[bool] = []

        async def hangs() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(True)

        @xjobs.job(key=xjobs.NO_KEY, step_timeout=0.05, retry=1)
        async def steps(ctx: xjobs.AsyncContext) -> None:
            await ctx.step.run("a", hangs)

        @xjobs.job(key=xjobs.NO_KEY, step_timeout=timedelta(minutes=1), retry=1)
        def plain(ctx: xjobs.Context) -> None:
            ctx.step.run("quick", lambda: clock.advance(59) and None)
            ctx.step.run("slow", lambda: clock.advance(60) and None)

        clock.freeze()
        first = await steps.aenqueue()
        second = await plain.aenqueue()
        runs = (await drain(errors="collect")).runs
        assert [type(run.error) for run in runs] == [xjobs.JobTimeout] * 2
        assert cancelled == [True]
        assert [(r.name, r.status) for r in await queue.steps(first.run_id)] == [("a", "failed")]
        assert [r.status for r in await queue.steps(second.run_id)] == ["completed", "failed"]

    @pytest.mark.parametrize("option", ["timeout", "step_timeout"])
    @pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "5m", True, timedelta(0)])
    def test_what_cannot_be_is_refused_at_the_declaration(self, option: str, value: Any) -> None:
        with pytest.raises(xjobs.DeclarationInvalid, match=option):

            @xjobs.job(key=xjobs.NO_KEY, **{option: value})
            def body() -> None: ...


class TestClassification:
    """What each class of exception does to the row. `stop` is what the report says."""

    @pytest.fixture
    def raising(self) -> Any:
        def declare(error: BaseException, **options: Any) -> Any:
            @xjobs.job(key=xjobs.NO_KEY, **{"retry": NO_JITTER, **options})
            def fails() -> None:
                raise error

            return fails

        return declare

    async def _settled(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, job: Any
    ) -> tuple[xjobs.Run, xjobs.JobRow, timedelta]:
        now = clock.freeze()
        made = await job.aenqueue()
        (run,) = (await drain(errors="collect")).runs
        row = await row_of(queue, made)
        return run, row, row.run_at - now

    async def test_terminal(self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, raising: Any) -> None:
        @xjobs.classify("terminal")
        class Declined(Exception): ...

        class Expired(Declined): ...

        run, row, _ = await self._settled(queue, drain, clock, raising(Expired("card")))
        assert (run.outcome, run.stop_reason, row.state, row.attempt) == ("dead-lettered", "terminal", "dead", 1)
        assert row.last_error == "Expired: card (not retried: Expired is terminal)"
        drops = xjobs.Retry(attempts=3, dead_letter=False)
        run, row, _ = await self._settled(queue, drain, clock, raising(Declined("card"), name="drops", retry=drops))
        assert (run.outcome, row.state) == ("dropped", "failed")

    async def test_retryable_below_terminal_and_unclassified(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, raising: Any
    ) -> None:
        @xjobs.classify("terminal")
        class Broken(Exception): ...

        @xjobs.classify("retryable")
        class ForNow(Broken): ...

        for number, error in enumerate((ForNow("x"), OSError("x"), xjobs.JobTimeout("x", ""))):
            run, row, delay = await self._settled(queue, drain, clock, raising(error, name=f"job{number}"))
            assert (run.outcome, run.stop_reason, row.state) == ("retried", None, "ready")
            assert delay == timedelta(seconds=60)

    async def test_the_last_attempt_says_so(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, raising: Any
    ) -> None:
        run, row, _ = await self._settled(queue, drain, clock, raising(OSError("x"), retry=1))
        assert (run.outcome, run.stop_reason) == ("dead-lettered", "attempts-exhausted")
        assert (row.last_error, row.attempt, row.max_attempts) == ("OSError: x", 1, 1)

    @pytest.mark.parametrize(
        ("stated", "expected"),
        [
            (90, 90),
            (timedelta(minutes=2), 120),
            (7200, 3600),  # as long as max_delay
            (0, 60),
            (-5, 60),
            (None, 60),
            (float("nan"), 60),
            ("soon", 60),
            (object(), 60),
        ],
    )
    async def test_retry_after(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, raising: Any, stated: Any, expected: float
    ) -> None:
        @xjobs.classify("retry-after", wait=lambda error: error.args[0])
        class Busy(Exception): ...

        run, row, delay = await self._settled(queue, drain, clock, raising(Busy(stated)))
        assert (run.outcome, row.attempt, row.state) == ("retried", 1, "ready")
        assert delay == timedelta(seconds=expected)
        run, _, _ = await self._settled(queue, drain, clock, raising(Busy(stated), name="last", retry=1))
        assert run.stop_reason == "attempts-exhausted"  # the count of attempts wins

    @pytest.mark.parametrize(("stated", "expected"), [(7200, 7200), (timedelta(days=2), 172_800), (None, 60), (0, 60)])
    async def test_rate_limited(
        self,
        queue: xjobs.AsyncQueue,
        drain: Drain,
        clock: Clock,
        raising: Any,
        stated: Any,
        expected: float,
        tables: Tables,
    ) -> None:
        error = xjobs.RateLimited("slow down", wait=stated)
        run, row, delay = await self._settled(queue, drain, clock, raising(error, retry=NO_JITTER))
        assert (run.outcome, row.state, row.attempt) == ("rate-limited", "ready", 0)
        assert delay == timedelta(seconds=expected)
        assert tables.counters() == []
        run, row, _ = await self._settled(
            queue, drain, clock, raising(error, name="only", retry=xjobs.Retry(attempts=1, jitter=False))
        )
        assert (run.outcome, row.attempt) == ("rate-limited", 0)  # it was no attempt, so it cannot be the last one

    async def test_a_stated_wait_is_spread_by_up_to_half_of_it(self) -> None:
        from xjobs.classify import verdict

        error = xjobs.RateLimited(wait=100)
        waits = [verdict(error, 1, 3, xjobs.Retry(), Random(seed)).delay.total_seconds() for seed in range(200)]
        assert all(100 <= wait < 150 for wait in waits)
        assert max(waits) - min(waits) > 40

    async def test_a_wait_that_raises_states_nothing(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, raising: Any
    ) -> None:
        @xjobs.classify("retry-after", wait=lambda error: error.missing)
        class Odd(Exception): ...

        _, _, delay = await self._settled(queue, drain, clock, raising(Odd()))
        assert delay == timedelta(seconds=60)

    @pytest.mark.parametrize(
        "use",
        [
            lambda: xjobs.classify("fatal"),  # type: ignore[arg-type]
            lambda: xjobs.classify("terminal", wait=lambda _e: 1),
            lambda: xjobs.classify("terminal")(OSError("an instance")),  # type: ignore[type-var]
            lambda: xjobs.classify("terminal")(int),  # type: ignore[type-var]
        ],
        ids=["kind", "wait", "instance", "no exception"],
    )
    def test_what_cannot_be_is_refused(self, use: Any) -> None:
        with pytest.raises(xjobs.Invariant):
            use()


class TestProgress:
    async def test_the_first_and_the_last_value_are_written(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, store: Store
    ) -> None:
        seen: list[Any] = []

        @xjobs.job(key=xjobs.NO_KEY)
        async def counts(ctx: xjobs.AsyncContext) -> None:
            for done in range(1, 6):
                await ctx.progress(done, 5, f"at {done} " + "x" * 300)
            row = await queue.job(ctx.job_id)
            assert row is not None
            seen.append(row.progress)

        @xjobs.job(key=xjobs.NO_KEY)
        def plain(ctx: xjobs.Context) -> None:
            ctx.progress(0.5)

        now = clock.freeze()
        first, second = await counts.aenqueue(), await plain.aenqueue()
        await drain()
        assert seen[0]["done"] == 1
        progress = (await row_of(queue, first)).progress
        assert progress == {"done": 5, "total": 5, "at": now.isoformat(), "note": ("at 5 " + "x" * 300)[:200]}
        assert (await row_of(queue, second)).progress == {"done": 0.5, "total": None, "at": now.isoformat()}

    async def test_numbers_that_are_not_finite_are_left_out(self, queue: xjobs.AsyncQueue, drain: Drain) -> None:
        @xjobs.job(key=xjobs.NO_KEY)
        async def odd(ctx: xjobs.AsyncContext) -> None:
            await ctx.progress(float("nan"))
            await ctx.progress(1, float("inf"))

        made = await odd.aenqueue()
        await drain()
        assert (await row_of(queue, made)).progress is None

    async def test_it_is_written_before_a_failure_is_settled_and_not_by_a_stale_claim(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock
    ) -> None:
        @xjobs.job(key=xjobs.NO_KEY, retry=NO_JITTER)
        async def fails(ctx: xjobs.AsyncContext) -> None:
            await ctx.progress(1)
            await ctx.progress(2)
            raise OSError

        @xjobs.job(key=xjobs.NO_KEY)
        async def stale(ctx: xjobs.AsyncContext) -> None:
            await queue.cancel(ctx.job_id)
            await ctx.progress(1)

        clock.freeze()
        failed, gone = await fails.aenqueue(), await stale.aenqueue()
        await drain(errors="collect")
        assert (await row_of(queue, failed)).progress["done"] == 2
        assert (await row_of(queue, gone)).progress is None


class TestOnSettled:
    @pytest.fixture(params=["def", "async def"])
    def hook(self, request: pytest.FixtureRequest) -> Any:
        """Put a hook of either colour on a job, that notes what it is told and raises as often as it is said."""
        told: list[xjobs.Ending] = []

        def put(job: Any, failures: int = 0) -> list[xjobs.Ending]:
            def note(ending: xjobs.Ending) -> None:
                told.append(ending)
                if len(told) <= failures:
                    raise OSError(f"hook {len(told)}")

            async def anote(ending: xjobs.Ending) -> None:
                await asyncio.sleep(0)
                note(ending)

            job.on_settled(note if request.param == "def" else anote)
            return told

        return put

    async def test_each_ending_is_told_once_after_the_row_says_so(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, hook: Any
    ) -> None:
        @xjobs.job(key="{n}", retry=xjobs.Retry(attempts=2, delay=60, jitter=False), tenant=lambda n: f"t{n}")
        async def work(n: int) -> Any:
            if n == 2:
                raise OSError("down")
            return {"n", n}  # what is stored nowhere may be anything

        @xjobs.job(key=xjobs.NO_KEY, retry=xjobs.Retry(attempts=1, dead_letter=False))
        async def drops() -> None:
            raise xjobs.StepDuplicate("two", "")

        clock.freeze()
        told = hook(work)
        hook(drops)
        first, second, third = await work.aenqueue(n=1), await work.aenqueue(n=2), await drops.aenqueue()
        await drain(errors="collect")
        assert [ending.outcome for ending in told] == ["completed", "dropped"]
        await drain(advance=True, errors="collect")
        done, dropped, dead = told
        assert done == xjobs.Ending(work, first.id, first.run_id, "completed", 1, "t1", {"n": 1}, {"n", 1}, None, None)
        assert (dead.outcome, dead.job_id, dead.attempt, dead.input) == ("dead-lettered", second.id, 2, {"n": 2})
        assert (dead.result, dead.code) == (None, None)
        assert dead.error == (await row_of(queue, second)).last_error
        assert (dropped.job_id, dropped.code, dropped.input) == (third.id, "X_STEP_DUPLICATE", {})

    async def test_nothing_else_is_an_ending(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, hook: Any
    ) -> None:
        @xjobs.job(key="{what}", retry=NO_JITTER)
        async def work(ctx: xjobs.AsyncContext, what: str) -> None:
            if what == "cancel":
                await queue.cancel(ctx.job_id)
            elif what == "sleep":
                await ctx.step.sleep("s", 60)
            else:
                raise OSError

        clock.freeze()
        told = hook(work)
        made = [await work.aenqueue(what=what) for what in ("cancel", "sleep", "fail")]
        await drain(errors="collect")
        await queue.cancel(made[1].id)
        await queue.remove(made[1].id)
        assert told == []

    async def test_a_burial_is_told(self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, hook: Any) -> None:
        @xjobs.job(key="{n}", retry=1)
        async def work(n: int) -> None: ...

        clock.freeze()
        told = hook(work)
        made = await work.aenqueue(n=1)
        await queue.claim(queues=["default"], worker_id="dies")
        clock.advance(60)
        report = await drain()
        assert [job.id for job in report.buried] == [made.id]
        (ending,) = told
        assert (ending.outcome, ending.input, ending.code) == ("dead-lettered", {"n": 1}, None)
        assert ending.error == (await row_of(queue, made)).last_error

    async def test_input_that_no_longer_fits_is_told_as_none(
        self, queue: xjobs.AsyncQueue, drain: Drain, hook: Any, tables: Tables
    ) -> None:
        @xjobs.job(key="{n}", retry=1)
        async def work(n: int) -> None: ...

        told = hook(work)
        made = await work.aenqueue(n=1)
        tables.change(made.id, input={"n": "no number"})
        await drain(errors="collect")
        assert [(ending.outcome, ending.input, ending.code) for ending in told] == [
            ("dead-lettered", None, "X_INPUT_INVALID")
        ]

    @pytest.mark.parametrize("failures", [2, 3])
    async def test_it_is_tried_three_times_and_changes_nothing(
        self, queue: xjobs.AsyncQueue, drain: Drain, hook: Any, tables: Tables, failures: int
    ) -> None:
        @xjobs.job(key=xjobs.NO_KEY)
        async def work() -> None: ...

        told = hook(work, failures)
        made = await work.aenqueue()
        if failures < 3:
            await drain()
        else:
            with pytest.raises(xjobs.OnSettledFailed, match="hook 3") as caught:
                await drain()
            assert isinstance(caught.value.__cause__, OSError)
        assert len(told) == 3
        row = await row_of(queue, made)
        assert (row.state, row.last_error) == ("done", None)
        assert [counter[3] for counter in tables.counters()] == [1]
        assert (await drain()).runs == ()

    def test_one_hook_of_one_argument(self) -> None:
        @xjobs.job(key=xjobs.NO_KEY)
        def work() -> None: ...

        for wrong in (lambda: None, lambda a, b: None, 7):
            with pytest.raises(xjobs.DeclarationInvalid):
                work.on_settled(wrong)  # type: ignore[type-var]
        work.using(queue="other").on_settled(lambda ending: None)
        with pytest.raises(xjobs.DeclarationInvalid, match="already"):
            work.on_settled(lambda ending: None)


class TestTraceparent:
    async def test_what_a_body_enqueues_carries_its_own(self, queue: xjobs.AsyncQueue, drain: Drain) -> None:
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        seen: list[tuple[str, str | None]] = []

        @xjobs.job(key="{depth}")
        async def outer(ctx: xjobs.AsyncContext, depth: int) -> None:
            seen.append((threading.current_thread().name, ctx.traceparent))
            if depth:
                await outer.aenqueue(depth=depth - 1)

        @xjobs.job(key=xjobs.NO_KEY)
        async def apart(ctx: xjobs.AsyncContext) -> None:
            seen.append(("apart", ctx.traceparent))

        await outer.using(traceparent=parent).aenqueue(depth=2)
        await apart.aenqueue()
        await drain()
        # With OpenTelemetry in the process it is that of the attempt's span, in the same trace.
        traces = [traceparent and traceparent[:35] for _, traceparent in seen]
        assert traces == [parent[:35], None, parent[:35], parent[:35]]

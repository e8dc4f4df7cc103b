"""Faults of durable runs: steps, sleeps, events, deadlines and what stops a run. Each class is a kind of fault."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from conformance.fixtures import Drain, Work
from conformance.stores import Store, Tables

import xjobs
from pytest_xjobs.clock import Clock
from xjobs import sql
from xjobs.operations.events import purge_events
from xjobs.operations.leases import renew
from xjobs.operations.steps import StepLog, Suspended
from xjobs.signals import RunSignal
from xjobs.sql import Statement
from xjobs.steps import Steps


async def answer() -> str:
    return "late"


class TestAStaleWorkerOverwroteAStep:
    """Fenced in its own process only, a stalled worker wrote over the step of the one that had the job by then."""

    @pytest.mark.parametrize("same_worker", [True, False])
    async def test_the_later_claims_record_stands(
        self, store: Store, queue: xjobs.AsyncQueue, work: Work, clock: Clock, same_worker: bool
    ) -> None:
        clock.freeze()
        made = await work.aenqueue(n=1)
        logs = []
        for worker_id in ("first", "first" if same_worker else "second"):
            (job,) = (await queue.claim(queues=["default"], worker_id=worker_id)).jobs
            logs.append(StepLog(store.driver, job, worker_id=worker_id, signal=RunSignal(), clock=lambda: clock.now))
            await logs[-1].run(f"at {len(logs)}", answer)
            clock.advance(60)
        stalled, owner = logs

        async def owned() -> str:
            return "owner"

        assert await owner.run("s", owned) == "owner"
        with pytest.raises(xjobs.LeaseLost):
            await stalled.run("s", answer)
        assert [record.output for record in await queue.steps(made.run_id)] == ["late", "late", "owner"]


class TestACancelNeverReachedARunningBody:
    """Heartbeats told nothing, so a body went on to its end."""

    async def test_the_next_heartbeat_stops_the_run_with_the_reason(
        self, store: Store, queue: xjobs.AsyncQueue, work: Work, clock: Clock
    ) -> None:
        clock.freeze()
        await queue.enqueue_many(work.call(n=n) for n in range(3))
        jobs = (await queue.claim(queues=["default"], worker_id="w", limit=3)).jobs
        runs = [(job, RunSignal()) for job in jobs]
        await queue.cancel(jobs[1].id)
        clock.advance(20)
        await renew(store.driver, runs, worker_id="w")
        assert [type(signal.reason) for _, signal in runs] == [type(None), xjobs.JobCancelled, type(None)]
        rows = {row.id: row for row in await queue.jobs()}
        assert rows[jobs[0].id].visible_at == clock.now + timedelta(seconds=30)


class TestARequeueFromAStepLostOrKeptTheWrongOnes:
    """Steps were deleted before the row moved, or only the named one was, so that later ones replayed stale results."""

    async def test_a_raced_requeue_deletes_nothing(
        self, queue: xjobs.AsyncQueue, second: xjobs.AsyncQueue, drain: Drain, tables: Tables
    ) -> None:
        @xjobs.job(key=xjobs.NO_KEY)
        async def body(ctx: xjobs.AsyncContext) -> None:
            for name in "abc":
                await ctx.step.run(name, answer)

        made = await body.aenqueue()
        await drain()
        await second.requeue(made.id)
        before = tables.steps()
        with pytest.raises(xjobs.JobNotRequeueable):
            await queue.requeue(made.id, from_step="a")
        assert tables.steps() == before

    @pytest.mark.parametrize("frozen", [True, False])
    async def test_every_later_step_runs_again_also_of_one_instant(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, frozen: bool
    ) -> None:
        ran: list[str] = []

        @xjobs.job(key=xjobs.NO_KEY)
        async def body(ctx: xjobs.AsyncContext) -> None:
            for name in "edcba":
                await ctx.step.run(name, ran.append, name)

        if frozen:
            clock.freeze()
        made = await body.aenqueue()
        await drain()
        await queue.requeue(made.id, from_step="c")
        await drain()
        assert "".join(ran) == "edcba" + "cba"


class TestASleepThatNeverEnds:
    """NaN was accepted as a duration, and compares with nothing."""

    @pytest.mark.parametrize("span", [float("nan"), float("inf"), -0.001])
    async def test_it_is_refused_where_it_is_asked_for(
        self, queue: xjobs.AsyncQueue, drain: Drain, span: float
    ) -> None:
        @xjobs.job(key=xjobs.NO_KEY, retry=1)
        async def body(ctx: xjobs.AsyncContext) -> None:
            await ctx.step.sleep("s", span)

        made = await body.aenqueue()
        with pytest.raises(xjobs.Invariant, match="duration is"):
            await drain()
        assert [row.state for row in await queue.jobs()] == ["dead"]
        assert await queue.steps(made.run_id) == []


class TestASleepInALoopWasADuplicate:
    async def test_each_turn_sleeps(self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock) -> None:
        @xjobs.job(key=xjobs.NO_KEY, retry=1)
        async def body(ctx: xjobs.AsyncContext) -> None:
            for _ in range(4):
                await ctx.step.sleep(60)

        clock.freeze()
        await body.aenqueue()
        report = await drain(advance=True)
        assert [run.outcome for run in report.runs] == ["suspended"] * 4 + ["completed"]


class TestReplayCostARoundTripOrASearchForEachStep:
    """One read a step, and a look through all names before it for a duplicate."""

    async def test_a_thousand_steps_replay_from_one_read(
        self, store: Store, queue: xjobs.AsyncQueue, work: Work, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await work.aenqueue(n=1)
        (job,) = (await queue.claim(queues=["default"], worker_id="w")).jobs

        def log() -> StepLog:
            return StepLog(store.driver, job, worker_id="w", signal=RunSignal(), clock=lambda: datetime.now(UTC))

        recording = log()
        for number in range(1_000):
            await recording.run(f"s{number}", answer)
        statements: list[str] = []
        run = store.driver.run

        async def noting(statement: Any, **parameters: Any) -> Any:
            statements.append(statement.name)
            return await run(statement, **parameters)

        monkeypatch.setattr(store.driver, "run", noting)
        replaying = log()
        await replaying.run("s0", answer)
        for number in range(1, 1_000):
            await replaying.run(f"s{number}", answer)
        assert statements == ["SQL_STEPS"]
        assert replaying.ran == []


class TestEventsWereNeverPurged:
    async def test_a_backlog_goes_batch_by_batch(self, queue: xjobs.AsyncQueue, clock: Clock, tables: Tables) -> None:
        clock.freeze()
        for _ in range(25):
            await queue.publish("paid", ttl=60)
        kept = await queue.publish("paid", ttl=61)
        clock.advance(60)
        assert await purge_events(queue.driver, batch=10) == 25
        assert [row[0] for row in tables.events()] == [kept.id]


class TestAnswersWereMissedBetweenTwoClocks:
    """A wait was stamped by the worker's clock and events by the database's; late commits were never seen."""

    async def test_a_clock_that_runs_ahead_neither_misses_an_event_nor_gives_up_early(
        self, store: Store, queue: xjobs.AsyncQueue, work: Work, clock: Clock
    ) -> None:
        clock.freeze()
        await work.aenqueue(n=1)
        (job,) = (await queue.claim(queues=["default"], worker_id="w")).jobs

        def log(skew: timedelta) -> StepLog:
            return StepLog(store.driver, job, worker_id="w", signal=RunSignal(), clock=lambda: clock.now + skew)

        for skew in (timedelta(days=1), timedelta(days=-1)):
            with pytest.raises(BaseException, match="waits for") as caught:
                await log(skew).wait("w", "paid", timeout=60)
            assert caught.value.remaining == timedelta(seconds=60)
        event = await queue.publish("paid")
        assert await log(timedelta(days=1)).wait("w", "paid", timeout=60) == event

    async def test_an_event_of_a_transaction_older_than_the_run(
        self, store: Store, queue: xjobs.AsyncQueue, drain: Drain
    ) -> None:
        got: list[Any] = []

        @xjobs.job(key=xjobs.NO_KEY)
        async def body(ctx: xjobs.AsyncContext) -> None:
            got.append(await ctx.step.wait_for_event("w", "paid"))

        other = await store.begin()
        await other.queue.jobs()  # a transaction begins with its first statement
        await body.aenqueue()
        event = await other.queue.publish("paid")
        await drain()
        await other.commit()
        await drain()
        assert got == [event]


class TestATerminalErrorBurnedThePolicy:
    async def test_it_stops_at_the_first_attempt(self, queue: xjobs.AsyncQueue, drain: Drain) -> None:
        @xjobs.classify("terminal")
        class Never(Exception): ...

        @xjobs.job(key=xjobs.NO_KEY, retry=20)
        async def body() -> None:
            raise Never

        await body.aenqueue()
        report = await drain(advance=True, errors="collect")
        assert len(report.runs) == 1


class TestATimedOutBodyRanBesideItsReplacement:
    """The attempt failed, and its body went on: the deadline has to cancel first."""

    async def test_the_body_has_ended_before_the_attempt_is_settled(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock
    ) -> None:
        alive = 0
        most = 0

        @xjobs.job(key=xjobs.NO_KEY, timeout=0.02, retry=xjobs.Retry(attempts=3, delay=0))
        async def body(ctx: xjobs.AsyncContext) -> None:
            nonlocal alive, most
            alive += 1
            most = max(most, alive)
            try:
                await asyncio.Event().wait()
            finally:
                with pytest.raises(xjobs.Aborted):
                    await ctx.step.run("cleanup", answer)
                alive -= 1

        clock.freeze()
        made = await body.aenqueue()
        report = await drain(errors="collect")
        assert (len(report.runs), alive, most) == (3, 0, 1)
        assert await queue.steps(made.run_id) == []


async def test_waits_in_threads_of_one_body_take_turns(store: Store, queue: xjobs.AsyncQueue, work: Work) -> None:
    """Two at once both saw an event that neither had taken yet, and both took it."""
    await work.aenqueue(n=1)
    (job,) = (await queue.claim(queues=["default"], worker_id="w")).jobs
    meeting = threading.Barrier(2)
    met: list[bool] = []

    class Meeting:
        """A driver that sees whether two waits are under way."""

        backend = store.blocking.backend
        run_script, aclose = store.blocking.run_script, store.blocking.aclose

        async def run(self, statement: Statement, **parameters: Any) -> list[Any]:
            if statement is sql.SQL_STEP_WAIT:
                try:
                    meeting.wait(0.2)
                    met.append(True)
                except threading.BrokenBarrierError:
                    met.append(False)
            return await store.blocking.run(statement, **parameters)

    log = StepLog(Meeting(), job, worker_id="w", signal=RunSignal(), clock=lambda: datetime.now(UTC))
    steps = Steps(log)

    def wait(name: str) -> None:
        with suppress(Suspended):
            steps.wait_for_event(name, "paid")

    threads = [threading.Thread(target=wait, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert met
    assert True not in met

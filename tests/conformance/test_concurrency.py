"""Fleet-wide limits as drains meet them, and what a job that may not run is told."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import xjobs
from conformance.fixtures import Drain
from pytest_xjobs.clock import Clock
from xjobs import NO_KEY, Limit, job
from xjobs.operations.slots import Request, acquire, holders

TTL = timedelta(seconds=30)


async def _hold(queue: xjobs.AsyncQueue, key: str, holder: str = "other:job", limit: int = 1) -> None:
    (slot,) = await acquire(queue.driver, [Request(key, limit, holder)], ttl=TTL)
    assert slot is not None


async def _running(queue: xjobs.AsyncQueue) -> list[xjobs.ClaimedJob]:
    """Two jobs that another worker runs."""

    @job(key=NO_KEY, name="another")
    async def another() -> None: ...

    await queue.enqueue_many([another.call(), another.call()])
    return (await queue.claim(queues=["default"], worker_id="other", limit=2)).jobs


async def test_a_run_holds_a_slot_while_its_body_runs_and_gives_it_back(queue: xjobs.AsyncQueue, drain: Drain) -> None:
    seen: list[Any] = []

    @job(key=NO_KEY, concurrency_limit=2)
    async def work(fails: bool) -> None:
        seen.append([slot.number for slot in await holders(queue.driver, ["job:work"])])
        if fails:
            raise ValueError

    await queue.enqueue_many([work.call(fails=False), work.call(fails=True)])
    await drain(errors="collect")
    assert seen == [[0], [0]]
    assert await holders(queue.driver, ["job:work"]) == []


async def test_a_busy_job_waits_as_it_was_until_a_slot_is_free(
    queue: xjobs.AsyncQueue, drain: Drain, clock: Clock
) -> None:
    clock.freeze()

    @job(key="{n}", concurrency_limit=1)
    async def work(n: int) -> None: ...

    made = await work.aenqueue(n=1)
    await _hold(queue, "job:work")
    report = await drain()
    assert (report.runs, report.reason) == ((), "not due")
    row = await queue.job(made.id)
    assert row is not None
    assert (row.state, row.attempt, row.claims, row.last_error) == ("ready", 0, 1, None)
    report = await drain(until=60)
    assert [(run.outcome, run.attempt) for run in report.runs] == [("completed", 1)]
    assert clock.now - row.updated_at >= TTL, "the slot was free only when it had lapsed"


async def test_waiting_for_a_slot_uses_up_the_budget(queue: xjobs.AsyncQueue, drain: Drain, clock: Clock) -> None:
    @job(key="{n}", concurrency_limit=1)
    async def work(n: int) -> None: ...

    clock.freeze()
    await work.aenqueue(n=1)
    await _hold(queue, "job:work")
    with pytest.raises(xjobs.DrainStopped):
        await drain(until=TTL + timedelta(seconds=1), budget=3)


async def test_keys_have_limits_of_their_own_and_names_cannot_be_mistaken_for_them(
    queue: xjobs.AsyncQueue, drain: Drain
) -> None:
    held: list[Any] = []

    @job(name="a:b/c", key="{who}", concurrency_limit=Limit(1, key=lambda who: f"k {who}"))
    async def work(who: str) -> None:
        held.append(await holders(queue.driver, [f"job-key:a%3Ab%2Fc:k {who}"]))

    await _hold(queue, "job-key:a%3Ab%2Fc:k ann")
    await work.aenqueue(who="ann")
    await work.aenqueue(who="bob")
    report = await drain()
    assert [run.outcome for run in report.runs] == ["completed"]
    assert [slot.number for (slot,) in held] == [0]


async def test_a_busy_key_that_says_fail_is_refused_without_an_attempt(queue: xjobs.AsyncQueue, drain: Drain) -> None:
    ran: list[str] = []

    @job(key="{who}", concurrency_limit=Limit(2, key="{who}", when_busy="fail"))
    async def work(who: str) -> None:
        ran.append(who)

    running = await _running(queue)
    made = await work.aenqueue(who="ann")
    for one in running:
        await _hold(queue, "job-key:work:ann", f"other:{one.id}", limit=2)
    report = await drain()
    assert [(run.outcome, type(run.error)) for run in report.runs] == [("refused", xjobs.KeyBusy)]
    row = await queue.job(made.id)
    assert row is not None
    assert (row.state, row.attempt, ran) == ("failed", 0, [])
    assert row.last_error is not None
    assert row.last_error.startswith("KeyBusy [X_JOB_KEY_BUSY]: job 'work' was due while 2 of 2 runs")
    assert "ann" not in row.last_error


@pytest.mark.parametrize("over", ["settled", "cancelled", "removed"])
async def test_a_run_is_never_refused_for_the_slot_of_a_job_that_is_over(
    queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, over: str
) -> None:
    """A slot is given back after the settle: whoever saw the job done and enqueued the next one had that one fail."""
    clock.freeze()

    @job(key="{who}", concurrency_limit=Limit(2, key="{who}", when_busy="fail"))
    async def work(who: str) -> None: ...

    going_on, ending = await _running(queue)
    made = await work.aenqueue(who="ann")
    for one in (going_on, ending):
        await _hold(queue, "job-key:work:ann", f"other:{one.id}", limit=2)
    if over == "cancelled":
        await queue.cancel(ending.id)
    else:
        assert await queue.ack([xjobs.Ack(ending)], worker_id="other") == {ending.id}
    if over == "removed":
        await queue.remove(ending.id)
    assert (await drain()).runs == ()
    report = await drain(until=60)
    assert [(run.job_id, run.outcome) for run in report.runs if run.job is work] == [(made.id, "completed")]


async def test_a_run_is_never_refused_for_a_slot_that_it_left_behind(
    queue: xjobs.AsyncQueue, drain: Drain, clock: Clock
) -> None:
    clock.freeze()

    @job(key="{who}", concurrency_limit=Limit(1, key="{who}", when_busy="fail"))
    async def work(who: str) -> None: ...

    made = await work.aenqueue(who="ann")
    await _hold(queue, "job-key:work:ann", f"dead-worker:{made.id}")
    assert (await drain()).runs == ()
    report = await drain(until=60)
    assert [run.outcome for run in report.runs] == ["completed"]


@pytest.mark.parametrize("key", ["", "x" * 201, "a\0b", 7, None])
async def test_an_input_without_a_usable_key_is_refused_by_the_enqueue_and_fails_the_attempt(
    queue: xjobs.AsyncQueue, drain: Drain, key: Any
) -> None:
    now: Any = "good"
    ran: list[int] = []

    @job(key="{n}", retry=1, concurrency_limit=Limit(1, key=lambda n: now))
    async def work(n: int) -> None:
        ran.append(n)

    await work.aenqueue(n=1)
    now = key
    with pytest.raises(xjobs.DeclarationInvalid, match="the key of its concurrency_limit is a"):
        await work.aenqueue(n=2)
    report = await drain(errors="collect")
    assert [(run.outcome, type(run.error)) for run in report.runs] == [("dead-lettered", xjobs.DeclarationInvalid)]
    assert ran == []

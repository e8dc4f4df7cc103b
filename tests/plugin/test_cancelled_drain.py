"""A drain that is cancelled, or fails, in the middle of a statement: the next one finds its jobs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import xjobs
from pytest_xjobs import XjobsFaults, XjobsQueue
from xjobs.sql import Statement


def lose_an_answer(driver: Any, monkeypatch: pytest.MonkeyPatch, name: str, error: BaseException) -> None:
    """Have the first answer to a statement of that name lost to an error: the store has done it."""
    run, errors = driver.run, [error]

    async def losing(statement: Statement, **parameters: Any) -> Any:
        answer = await run(statement, **parameters)
        if statement.name == name and errors:
            raise errors.pop()
        return answer

    monkeypatch.setattr(driver, "run", losing)


@pytest.fixture
def ran() -> list[int]:
    return []


@pytest.fixture
def work(ran: list[int]) -> xjobs.JobHandle[Any, Any, Any]:
    @xjobs.job(key="{n}", queue="mail")
    async def work(n: int) -> None:
        ran.append(n)

    return work


async def test_a_cancelled_claim_is_given_back(
    xjobs_queue: XjobsQueue, work: xjobs.JobHandle[Any, Any, Any], ran: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [await work.aenqueue(n=n) for n in range(3)]
    lose_an_answer(xjobs_queue.source.driver("async"), monkeypatch, "SQL_CLAIM", asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await xjobs_queue.adrain()
    assert len(xjobs_queue.jobs(state="running")) == 1
    report = await xjobs_queue.adrain()
    assert [run.attempt for run in report.runs] == [1, 1, 1]
    assert (report.reason, ran) == ("idle", [0, 1, 2])
    for one in made:
        xjobs_queue.assert_state(one, "done")


async def test_many_cancellations_at_any_place(xjobs_queue: XjobsQueue, work: xjobs.JobHandle[Any, Any, Any]) -> None:
    for n in range(20):
        await work.aenqueue(n=n)
    for steps in range(60):
        task = asyncio.create_task(xjobs_queue.adrain())
        for _ in range(steps % 20):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    assert (await xjobs_queue.adrain()).reason == "idle"


def test_a_blocking_drain_that_fails(
    xjobs_queue: XjobsQueue, work: xjobs.JobHandle[Any, Any, Any], ran: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    work.enqueue(n=1)
    lose_an_answer(xjobs_queue.driver, monkeypatch, "SQL_CLAIM", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        xjobs_queue.run_next()
    assert xjobs_queue.run_next() is not None
    assert ran == [1]


@pytest.mark.parametrize("point", ["claimed", "before_settle"])
def test_what_a_crash_has_left_stays_leased(xjobs_queue: XjobsQueue, xjobs_faults: XjobsFaults, point: str) -> None:
    @xjobs.job(key="{n}")
    def work(n: int) -> None:
        if n:
            raise ValueError

    xjobs_faults.crash_at(point)
    crashed = work.enqueue(n=0)
    work.enqueue(n=1)
    with pytest.raises(ValueError):
        xjobs_queue.drain()
    xjobs_queue.drain()
    xjobs_queue.assert_state(crashed, "running")
    report = xjobs_queue.drain(advance=True, errors="collect")
    assert [run.attempt for run in report.runs if run.job_id == crashed.id] == [2]

"""A claim that is gone changes nothing: not by its worker's name, not by a late settle, not by a failed one."""

from __future__ import annotations

from typing import Any

import pytest
from conformance.fixtures import Drain, Work
from conformance.stores import Tables

import xjobs
from pytest_xjobs.clock import Clock
from xjobs import points

SETTLES = ("ack", "retry", "park", "fail", "dead letter")


async def _settle(queue: xjobs.AsyncQueue, how: str, job: xjobs.ClaimedJob) -> set[Any]:
    if how == "ack":
        return await queue.ack([xjobs.Ack(job)], worker_id="w")
    flags: dict[str, dict[str, bool]] = {
        "retry": {},
        "park": {"park": True, "counted": False},
        "fail": {"fail": True},
        "dead letter": {"dead_letter": True},
    }
    return await queue.nack([xjobs.Nack(job, error="late", stack="late", **flags[how])], worker_id="w")  # type: ignore[arg-type]


@pytest.mark.parametrize("how", SETTLES)
async def test_a_cancel_is_not_undone_by_the_workers_settle(
    queue: xjobs.AsyncQueue, tables: Tables, work: Work, how: str
) -> None:
    """Fault 2: settles were not fenced on the state."""
    await work.aenqueue(n=1)
    (job,) = (await queue.claim(queues=["default"], worker_id="w")).jobs
    # As a cancel that left the claim's columns would: only the state says that it is over.
    tables.change(job.id, state="cancelled")
    before = tables.jobs()
    assert await _settle(queue, how, job) == set()
    assert (tables.jobs(), tables.counters()) == (before, [])


@pytest.mark.parametrize("how", SETTLES)
async def test_an_earlier_body_of_the_same_worker_does_not_settle_the_later_claim(
    queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work, how: str
) -> None:
    """Fault 3: fenced on the worker's name only; the claim ordinal tells its claims apart."""
    clock.freeze()
    await work.aenqueue(n=1)
    (first,) = (await queue.claim(queues=["default"], worker_id="w", lease=1)).jobs
    clock.advance(seconds=1)
    (second,) = (await queue.claim(queues=["default"], worker_id="w", lease=1)).jobs
    before = tables.jobs()
    assert await _settle(queue, how, first) == set()
    assert await queue.heartbeat([first], worker_id="w") == set()
    assert (tables.jobs(), tables.counters()) == (before, [])
    assert await _settle(queue, how, second) == {second.id}


@pytest.mark.parametrize("loss", ["cancelled", "claimed again", "settled", "deleted under another id"])
async def test_a_heartbeat_tells_that_the_claim_is_gone(
    queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work, loss: str
) -> None:
    """Fault 5: a heartbeat answered nothing, so that no cancel from outside reached a running body."""
    clock.freeze()
    await work.aenqueue(n=1)
    (job,) = (await queue.claim(queues=["default"], worker_id="w", lease=1)).jobs
    assert await queue.heartbeat([job], worker_id="w", lease=1) == {job.id}
    if loss == "cancelled":
        tables.change(job.id, state="cancelled")
    elif loss == "claimed again":
        clock.advance(seconds=1)
        await queue.claim(queues=["default"], worker_id="w")
    elif loss == "settled":
        await queue.ack([xjobs.Ack(job)], worker_id="w")
    else:
        job = job._replace(id=job.run_id)
    assert await queue.heartbeat([job], worker_id="w") == set()


@pytest.mark.parametrize("point", ["before_settle", "after_settle"])
async def test_a_settle_that_fails_does_not_queue_finished_work_again(
    queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work, drain: Drain, point: str
) -> None:
    """Fault 13: an ack that raised was taken for a failed attempt, and the finished job was retried."""

    def crash(reached: str, facts: dict[str, Any]) -> None:
        if reached == point:
            raise ConnectionError("the server is gone")

    clock.freeze()
    made = await work.aenqueue(n=1)
    with points.listening(crash), pytest.raises(ConnectionError):
        await drain(errors="collect")
    row = await queue.job(made.id)
    assert row is not None
    assert (row.attempt, row.last_error, row.last_error_stack) == (1, None, None)
    assert row.state == ("running" if point == "before_settle" else "done")
    assert [counter[4:7] for counter in tables.counters()] in ([], [(0, 0, 0)])

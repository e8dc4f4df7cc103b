"""What a claim takes, in which order, and what becomes of lapsed leases."""

from __future__ import annotations

from datetime import timedelta

import pytest

import xjobs
from pytest_xjobs.clock import Clock


async def test_due_jobs_come_in_the_order_of_their_instants(queue: xjobs.AsyncQueue, clock: Clock) -> None:
    @xjobs.job(key="{n}")
    def work(n: int) -> None: ...

    now = clock.freeze()
    for n, minutes in enumerate([3, 1, 2]):
        await work.using(run_at=now + timedelta(minutes=minutes)).aenqueue(n=n)
    clock.advance(minutes=2)
    claimed = await queue.claim(queues=["default"], worker_id="w", limit=10)
    assert [job.input["n"] for job in claimed.jobs] == [1, 2]


async def test_a_lapsed_lease_is_delivered_again_as_a_new_attempt(queue: xjobs.AsyncQueue, clock: Clock) -> None:
    @xjobs.job(key="{n}")
    def work(n: int) -> None: ...

    clock.freeze()
    await work.aenqueue(n=1)
    (first,) = (await queue.claim(queues=["default"], worker_id="w", lease=30)).jobs
    clock.advance(seconds=29.999999)
    assert (await queue.claim(queues=["default"], worker_id="w")).jobs == []
    clock.advance(seconds=0.000001)
    (again,) = (await queue.claim(queues=["default"], worker_id="w")).jobs
    assert (again.id, again.attempt, again.claims) == (first.id, 2, 2)
    assert await queue.ack([xjobs.Ack(first)], worker_id="w") == set()
    assert await queue.ack([xjobs.Ack(again)], worker_id="w") == {again.id}


@pytest.mark.parametrize("limit", [-1, 1.5, float("nan"), True])
async def test_a_limit_that_is_not_a_count_is_refused(queue: xjobs.AsyncQueue, limit: object) -> None:
    with pytest.raises(xjobs.Invariant):
        await queue.claim(queues=["default"], worker_id="w", limit=limit)  # type: ignore[arg-type]


async def test_a_claim_without_queues_is_refused(queue: xjobs.AsyncQueue) -> None:
    with pytest.raises(xjobs.ClaimQueuesEmpty):
        await queue.claim(queues=[], worker_id="w")

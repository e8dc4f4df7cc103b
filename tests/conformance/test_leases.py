"""Renewing leases: what a heartbeat extends and what it refuses."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import xjobs
from conformance.fixtures import Work
from conformance.stores import Tables
from pytest_xjobs.clock import Clock
from xjobs.operations import claim as claiming, slots
from xjobs.operations.leases import renew_all


async def _claimed(queue: xjobs.AsyncQueue, work: Work, count: int = 1, lease: float = 30) -> list[xjobs.ClaimedJob]:
    await queue.enqueue_many(work.call(n=n) for n in range(count))
    return (await queue.claim(queues=["default"], worker_id="w", limit=count, lease=lease)).jobs


async def test_a_heartbeat_gives_a_full_term_from_now_and_nothing_else(
    queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work
) -> None:
    clock.freeze()
    (job,) = await _claimed(queue, work)
    before = await queue.job(job.id)
    assert before is not None
    now = clock.advance(seconds=20)
    assert await queue.heartbeat([job], worker_id="w", lease=timedelta(seconds=45)) == {job.id}
    assert await queue.job(job.id) == before._replace(visible_at=now + timedelta(seconds=45), updated_at=now)
    assert tables.counters() == []


async def test_a_renewed_lease_is_not_delivered_at_its_old_end(
    queue: xjobs.AsyncQueue, clock: Clock, work: Work
) -> None:
    clock.freeze()
    (job,) = await _claimed(queue, work)
    clock.advance(seconds=20)
    await queue.heartbeat([job], worker_id="w")
    clock.advance(seconds=29)
    assert (await queue.claim(queues=["default"], worker_id="v")).jobs == []
    clock.advance(seconds=1)
    assert len((await queue.claim(queues=["default"], worker_id="v")).jobs) == 1


async def test_a_lease_may_be_made_shorter(queue: xjobs.AsyncQueue, clock: Clock, work: Work) -> None:
    clock.freeze()
    (job,) = await _claimed(queue, work)
    await queue.heartbeat([job], worker_id="w", lease=1)
    clock.advance(seconds=1)
    assert len((await queue.claim(queues=["default"], worker_id="v")).jobs) == 1


async def test_a_lease_that_is_renewed_in_the_instant_of_its_claim_is_delivered_once(
    queue: xjobs.AsyncQueue, clock: Clock, work: Work
) -> None:
    clock.freeze()
    jobs = await _claimed(queue, work, count=2)
    for _ in range(2):
        await queue.heartbeat(jobs, worker_id="w")
    clock.advance(seconds=30)
    again = (await queue.claim(queues=["default"], worker_id="v", limit=9)).jobs
    assert [(job.input["n"], job.attempt) for job in again] == [(0, 2), (1, 2)]


async def test_a_lapsed_lease_that_nobody_took_may_be_renewed(
    queue: xjobs.AsyncQueue, clock: Clock, work: Work
) -> None:
    clock.freeze()
    (job,) = await _claimed(queue, work)
    clock.advance(minutes=5)
    assert await queue.heartbeat([job], worker_id="w") == {job.id}
    assert (await queue.claim(queues=["default"], worker_id="v")).jobs == []


async def test_only_the_claims_that_still_stand_are_renewed(
    queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work
) -> None:
    clock.freeze()
    jobs = await _claimed(queue, work, count=4)
    await queue.ack([xjobs.Ack(jobs[0])], worker_id="w")
    await queue.nack([xjobs.Nack(jobs[1])], worker_id="w")
    tables.change(jobs[2].id, state="cancelled", visible_at=None, claimed_by=None)
    assert await queue.heartbeat(jobs, worker_id="w") == {jobs[3].id}


async def test_another_worker_and_another_claim_renew_nothing(
    queue: xjobs.AsyncQueue, tables: Tables, work: Work
) -> None:
    (job,) = await _claimed(queue, work)
    before = tables.jobs()
    assert await queue.heartbeat([job], worker_id="v") == set()
    assert await queue.heartbeat([job._replace(claims=2)], worker_id="w") == set()
    assert tables.jobs() == before


async def test_a_stale_claim_beside_the_standing_one_does_no_harm(
    queue: xjobs.AsyncQueue, clock: Clock, work: Work
) -> None:
    clock.freeze()
    (stale,) = await _claimed(queue, work, lease=1)
    clock.advance(seconds=1)
    (held,) = (await queue.claim(queues=["default"], worker_id="w")).jobs
    assert await queue.heartbeat([stale, held], worker_id="w") == {held.id}


async def test_no_claims_is_nothing_to_renew(queue: xjobs.AsyncQueue) -> None:
    assert await queue.heartbeat([], worker_id="w") == set()


async def test_a_renewal_says_of_each_lease_whether_it_is_held_cancelled_or_lost(
    queue: xjobs.AsyncQueue, clock: Clock, work: Work
) -> None:
    clock.freeze()
    held, cancelled, settled = jobs = await _claimed(queue, work, count=3)
    await queue.cancel(cancelled.id)
    await queue.ack([xjobs.Ack(settled)], worker_id="w")
    given = [*reversed(jobs), held._replace(claims=9), cancelled._replace(claims=9), held._replace(id=UUID(int=1))]
    now = clock.advance(seconds=20)
    renewed = await renew_all(queue.driver, given, [], worker_id="w", lease=timedelta(seconds=45))
    assert renewed == (["lost", "cancelled", "held", "lost", "lost", "lost"], [])
    row = await queue.job(held.id)
    assert row is not None
    assert row.visible_at == now + timedelta(seconds=45)
    assert (await renew_all(queue.driver, [held], [], worker_id="v", lease=timedelta(seconds=45))).leases == ["lost"]


async def test_leases_and_slots_are_renewed_in_one_step(queue: xjobs.AsyncQueue, clock: Clock, work: Work) -> None:
    clock.freeze()
    jobs = await _claimed(queue, work, count=2)
    requests = [slots.Request(key, 1, "w") for key in ("b", "a")]
    taken = [slot for slot in await slots.acquire(queue.driver, requests, ttl=claiming.LEASE) if slot is not None]
    clock.advance(seconds=20)
    given = [*taken, slots.Slot("a", 1, "w")]
    assert await renew_all(queue.driver, jobs, given, worker_id="w", lease=claiming.LEASE) == (
        ["held", "held"],
        ["held", "held", "lost"],
    )
    clock.advance(seconds=29)
    assert (await queue.claim(queues=["default"], worker_id="v", limit=9)).jobs == []
    assert [slot.key for slot in await slots.holders(queue.driver, ["a", "b"])] == ["a", "b"]


async def test_nothing_held_is_nothing_to_renew(queue: xjobs.AsyncQueue) -> None:
    assert await renew_all(queue.driver, [], [], worker_id="w", lease=claiming.LEASE) == ([], [])

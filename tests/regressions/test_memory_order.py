"""Memory's order of due rows is kept in heaps that hold outdated entries: no row may be lost or found twice."""

from __future__ import annotations

from uuid import UUID

import pytest
from conformance.fixtures import Work
from conformance.stores import Store

import xjobs
from pytest_xjobs.clock import Clock


@pytest.mark.parametrize("renewals", [1, 2, 5])
async def test_a_lease_renewed_in_its_own_instant_lapses_once(
    queue: xjobs.AsyncQueue, clock: Clock, work: Work, renewals: int
) -> None:
    """Under a frozen clock the renewed lease ends when the old one did: the row was claimed twice in one pass."""
    clock.freeze()
    await queue.enqueue_many(work.call(n=n) for n in range(3))
    jobs = (await queue.claim(queues=["default"], worker_id="w", limit=3)).jobs
    for _ in range(renewals):
        await queue.heartbeat(jobs, worker_id="w")
    clock.advance(seconds=30)
    again = (await queue.claim(queues=["default"], worker_id="w", limit=9)).jobs
    assert [(job.input["n"], job.attempt, job.claims) for job in again] == [(0, 2, 2), (1, 2, 2), (2, 2, 2)]


async def test_a_job_put_back_to_its_own_instant_is_found_once(
    queue: xjobs.AsyncQueue, clock: Clock, work: Work
) -> None:
    """The same for rows that wait: handed back at once, again and again, in one instant."""
    clock.freeze()
    await work.aenqueue(n=1)
    for claims in range(1, 6):
        jobs = (await queue.claim(queues=["default"], worker_id="w", limit=9)).jobs
        assert [(job.attempt, job.claims) for job in jobs] == [(1, claims)]
        await queue.nack([xjobs.Nack(jobs[0], counted=False)], worker_id="w")


async def test_the_clock_going_back_and_forth_finds_each_job_once(
    queue: xjobs.AsyncQueue, clock: Clock, work: Work
) -> None:
    """Entries come due, go undue and come due again."""
    start = clock.freeze()
    await queue.enqueue_many(work.using(delay=n % 3).call(n=n) for n in range(9))
    seen: list[int] = []
    for seconds in (1, -5, 2, 0, 2, 600):
        clock.move_to(start)
        clock.advance(seconds=seconds) if seconds > 0 else clock.move_to(start.replace(year=2000))
        jobs = (await queue.claim(queues=["default"], worker_id="w", limit=2, lease=3_600)).jobs
        seen += [job.input["n"] for job in jobs]
    assert len(seen) == len(set(seen))
    clock.advance(minutes=1)
    rest = (await queue.claim(queues=["default"], worker_id="w", limit=99, lease=3_600)).jobs
    assert sorted([*seen, *(job.input["n"] for job in rest)]) == list(range(9))


async def test_two_rows_that_had_one_id_one_after_the_other_can_be_ordered(
    store: Store, queue: xjobs.AsyncQueue, clock: Clock, work: Work
) -> None:
    """Equal instants and ids compared the rows themselves: TypeError from inside an enqueue."""
    clock.freeze()
    given = work.using(id=UUID(int=5))
    await work.using(id=UUID(int=4)).aenqueue(n=0)
    for _ in range(3):
        other = await store.begin()
        await other.queue.enqueue(given.call(n=1))
        await other.rollback()
    await given.aenqueue(n=1)
    jobs = (await queue.claim(queues=["default"], worker_id="w", limit=9)).jobs
    assert [job.id.int for job in jobs] == [4, 5]


@pytest.mark.parametrize("limit", [1, 2, 9])
async def test_lapsed_and_waiting_jobs_of_one_queue_are_answered_in_one_order(
    queue: xjobs.AsyncQueue, clock: Clock, work: Work, limit: int
) -> None:
    """With one queue and room for all, memory answered the waiting ones first and the lapsed ones behind them."""
    now = clock.freeze()
    for n in (0, 2, 4):
        await work.using(run_at=now.replace(microsecond=n)).aenqueue(n=n)
    clock.advance(seconds=1)
    await queue.claim(queues=["default"], worker_id="w", limit=9, lease=1)
    for n in (1, 3):
        await work.using(run_at=now.replace(microsecond=n)).aenqueue(n=n)
    clock.advance(seconds=1)
    taken = []
    while jobs := (await queue.claim(queues=["default"], worker_id="w", limit=limit)).jobs:
        taken += [job.input["n"] for job in jobs]
    assert taken == [0, 1, 2, 3, 4]

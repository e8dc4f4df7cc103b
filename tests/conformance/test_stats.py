"""How jobs are counted by queue: each in one bucket, queues in the order of their code units."""

from __future__ import annotations

from datetime import timedelta

import pytest

import xjobs
from conformance.fixtures import Work
from conformance.stores import Store, Tables
from pytest_xjobs.clock import Clock
from xjobs.states import ALL

BUCKETS = {
    ("ready", -1): "ready",
    ("delayed", -1): "ready",
    ("ready", 1): "delayed",
    ("delayed", 1): "delayed",
    **{(state, due): state for state in ("running", "suspended", "failed", "dead") for due in (-1, 1)},
}


@pytest.mark.parametrize(("state", "due"), BUCKETS)
async def test_each_job_is_in_one_bucket(
    queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work, state: str, due: int
) -> None:
    now = clock.freeze()
    made = await work.aenqueue(n=1)
    tables.change(made.id, state=state, run_at=now + timedelta(seconds=due), visible_at=now - timedelta(hours=1))
    (stats,) = await queue.stats()
    bucket = BUCKETS[state, due]
    assert {name: count for name, count in stats._asdict().items() if name in ALL and count} == {bucket: 1}
    assert stats.oldest_ready == timedelta(seconds=1 if bucket == "ready" else 0)


@pytest.mark.parametrize("state", ["done", "cancelled"])
async def test_a_queue_with_finished_jobs_alone_is_not_listed(
    queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work, state: str
) -> None:
    clock.freeze()
    tables.change((await work.aenqueue(n=1)).id, state=state)
    assert await queue.stats() == []
    await work.aenqueue(n=2)
    assert await queue.stats() == [xjobs.QueueStats("default", 1, 0, 0, 0, 0, 0, timedelta(0))]


async def test_an_empty_store_has_no_queues(queue: xjobs.AsyncQueue) -> None:
    assert await queue.stats() == []


async def test_queues_come_in_the_order_of_their_code_units(queue: xjobs.AsyncQueue, work: Work) -> None:
    names = ["a", "B", "ä", "aa", "a-b", "_", "Z", "ß", "é", "e", "10", "9", "￿", "\U0001f642", "a b", "constructor"]
    await queue.enqueue_many(work.using(queue=name).call(n=n) for n, name in enumerate(names))
    assert [stats.queue for stats in await queue.stats()] == sorted(names)


async def test_a_job_is_counted_as_its_time_comes(queue: xjobs.AsyncQueue, clock: Clock, work: Work) -> None:
    clock.freeze()
    await work.using(delay=60).aenqueue(n=1)
    for seconds, ready, oldest in [(59.999999, 0, 0), (0.000001, 1, 0), (90, 1, 90)]:
        clock.advance(seconds=seconds)
        (stats,) = await queue.stats()
        assert (stats.ready, stats.delayed, stats.oldest_ready) == (ready, 1 - ready, timedelta(seconds=oldest))


async def test_the_oldest_is_of_the_ready_jobs_of_its_queue(
    queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work
) -> None:
    now = clock.freeze()
    for n, (name, state, age) in enumerate(
        [("a", "ready", 5), ("a", "delayed", 400 * 86_400), ("a", "dead", 10**9), ("b", "suspended", 60)]
    ):
        made = await work.using(queue=name).aenqueue(n=n)
        tables.change(made.id, state=state, run_at=now - timedelta(seconds=age))
    assert [(stats.queue, stats.oldest_ready) for stats in await queue.stats()] == [
        ("a", timedelta(days=400)),
        ("b", timedelta(0)),
    ]


async def test_the_life_of_a_job_moves_it_through_the_buckets(
    queue: xjobs.AsyncQueue, clock: Clock, work: Work
) -> None:
    clock.freeze()

    async def bucket() -> str:
        (stats,) = await queue.stats()
        (name,) = [name for name, count in stats._asdict().items() if name in ALL and count]
        return name

    await work.aenqueue(n=1)
    seen = [await bucket()]
    for nack in ({"delay": 5}, {"park": True, "delay": 5}, {"dead_letter": True}):
        (job,) = (await queue.claim(queues=["default"], worker_id="w")).jobs
        seen.append(await bucket())
        await queue.nack([xjobs.Nack(job, **nack)], worker_id="w")  # type: ignore[arg-type]
        seen.append(await bucket())
        clock.advance(seconds=5)
    assert seen == ["ready", "running", "delayed", "running", "suspended", "running", "dead"]


async def test_what_is_not_committed_is_not_counted(store: Store, queue: xjobs.AsyncQueue, work: Work) -> None:
    other = await store.begin()
    await other.queue.enqueue(work.call(n=1))
    assert await queue.stats() == []
    assert [stats.ready for stats in await other.queue.stats()] == [1]
    await other.rollback()

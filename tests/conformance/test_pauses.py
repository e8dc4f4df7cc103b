"""What a paused queue still does: jobs land in it and running ones go on, and none is claimed or buried."""

from __future__ import annotations

from datetime import timedelta

import xjobs
from conformance.fixtures import Drain, Work
from conformance.stores import Tables
from pytest_xjobs.clock import Clock


async def test_a_paused_queue_is_neither_claimed_nor_buried_and_resumes_with_both(
    queue: xjobs.AsyncQueue, tables: Tables, clock: Clock
) -> None:
    @xjobs.job(key="{n}", retry=1)
    def once(n: int) -> None: ...

    clock.freeze()
    poison = await once.aenqueue(n=1)
    await queue.claim(queues=["default"], worker_id="dead", lease=1)
    clock.advance(seconds=1)
    tables.pause("default")
    fresh = await once.aenqueue(n=2)
    before = tables.jobs()
    assert await queue.claim(queues=["default"], worker_id="w", limit=9) == ([], [])
    assert (tables.jobs(), tables.counters()) == (before, [])
    tables.resume("default")
    jobs, buried = await queue.claim(queues=["default"], worker_id="w", limit=9)
    assert ([job.id for job in jobs], [job.id for job in buried]) == ([fresh.id], [poison.id])


async def test_other_queues_go_on(queue: xjobs.AsyncQueue, tables: Tables, work: Work) -> None:
    tables.pause("mail")
    for n, name in enumerate(["mail", "default"]):
        await work.using(queue=name).aenqueue(n=n)
    claimed = await queue.claim(queues=["mail", "default"], worker_id="w", limit=9)
    assert [job.queue for job in claimed.jobs] == ["default"]


async def test_a_paused_schedule_of_the_same_name_is_another_thing(
    queue: xjobs.AsyncQueue, tables: Tables, work: Work
) -> None:
    tables.pause("default", kind="task")
    await work.aenqueue(n=1)
    assert len((await queue.claim(queues=["default"], worker_id="w")).jobs) == 1


async def test_running_jobs_renew_and_settle(queue: xjobs.AsyncQueue, tables: Tables, work: Work) -> None:
    await queue.enqueue_many(work.call(n=n) for n in range(3))
    one, two, three = (await queue.claim(queues=["default"], worker_id="w", limit=3)).jobs
    tables.pause("default")
    assert await queue.heartbeat([one], worker_id="w") == {one.id}
    assert await queue.ack([xjobs.Ack(two)], worker_id="w") == {two.id}
    assert await queue.nack([xjobs.Nack(three)], worker_id="w") == {three.id}


async def test_its_jobs_count_as_ready_and_hold_their_keys(queue: xjobs.AsyncQueue, tables: Tables, work: Work) -> None:
    tables.pause("default")
    await work.aenqueue(n=1)
    assert (await work.aenqueue(n=1)).deduped is True
    assert [stats.ready for stats in await queue.stats()] == [1]


async def test_a_drain_leaves_it_alone_and_says_so(
    queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work, drain: Drain
) -> None:
    now = clock.freeze()
    await work.aenqueue(n=1)
    tables.pause("default")
    report = await drain(advance=True)
    assert (report.reason, report.runs, report.jumps) == ("paused", (), ())
    assert [(job.due, job.paused) for job in report.waiting] == [(True, True)]
    assert clock.now == now


async def test_a_drain_looks_past_any_number_of_paused_jobs(
    queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work, drain: Drain
) -> None:
    """More of them than a look at what waits shows, all due before the others."""
    now = clock.freeze()
    tables.pause("paused")
    early = work.using(queue="paused", run_at=now - timedelta(days=1))
    await queue.enqueue_many(early.call(n=n) for n in range(150))
    await work.using(queue="unheard-of").aenqueue(n=1_000)
    await work.using(delay=timedelta(hours=1)).aenqueue(n=1_001)
    report = await drain(advance=True)
    assert [run.outcome for run in report.runs] == ["completed", "completed"]
    assert len(report.jumps) == 1
    assert report.reason == "paused"

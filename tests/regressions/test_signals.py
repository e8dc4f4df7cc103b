"""What stats, rows and listings say: each job once, at its true time, in one order on every driver."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from conformance.fixtures import Work
from conformance.stores import Tables

import xjobs
from pytest_xjobs.clock import Clock
from xjobs.operations import inspect
from xjobs.states import ALL, COUNTED


async def test_every_job_is_in_one_bucket_whatever_its_time(
    queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work
) -> None:
    """Faults 24 and 26: a future row of any state counted as delayed too, and a due delayed row never as ready."""
    now = clock.freeze()
    for n, (state, hours) in enumerate([(state, hours) for state in ALL for hours in (-1, 0, 1)]):
        made = await work.aenqueue(n=n)
        tables.change(made.id, state=state, run_at=now + timedelta(hours=hours))
    (stats,) = await queue.stats()
    counts = {name: count for name, count in stats._asdict().items() if name in ALL}
    assert counts == {"ready": 4, "delayed": 2, "running": 3, "suspended": 3, "failed": 3, "dead": 3}
    assert sum(counts.values()) == 3 * len(COUNTED)
    assert stats.oldest_ready == timedelta(hours=1)


async def test_a_shed_stays_ready_without_an_error_and_keeps_its_age(
    queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work
) -> None:
    """Fault 25: work that was put back under load was suspended with an error, and the gauges fell silent."""
    clock.freeze()
    await work.aenqueue(n=1)
    (job,) = (await queue.claim(queues=["default"], worker_id="w")).jobs
    await queue.nack([xjobs.Nack(job, counted=False)], worker_id="w")
    row = await queue.job(job.id)
    assert row is not None
    assert (row.state, row.attempt, row.last_error, tables.counters()) == ("ready", 0, None, [])
    clock.advance(seconds=90)
    assert [(stats.ready, stats.oldest_ready.total_seconds()) for stats in await queue.stats()] == [(1, 90)]


@pytest.mark.parametrize("stack", [None, "new stack"])
async def test_an_error_never_keeps_the_stack_of_an_older_one(
    queue: xjobs.AsyncQueue, work: Work, stack: str | None
) -> None:
    """Fault 27: the old stack stood beside the new error."""
    await work.aenqueue(n=1)
    for error, given in (("old", "old stack"), ("new", stack)):
        (job,) = (await queue.claim(queues=["default"], worker_id="w")).jobs
        await queue.nack([xjobs.Nack(job, error=error, stack=given)], worker_id="w")
    row = await queue.job(job.id)
    assert row is not None
    assert (row.last_error, row.last_error_stack) == ("new", stack)


async def test_every_instant_of_every_answer_is_a_time_in_utc(
    queue: xjobs.AsyncQueue, clock: Clock, work: Work
) -> None:
    """Fault 29: reads of whole rows decoded their timestamps as no number."""
    instant = datetime(2024, 3, 31, 1, 30, 0, 123_456, tzinfo=UTC)
    clock.freeze(instant)
    made = await work.aenqueue(n=1)
    (job,) = (await queue.claim(queues=["default"], worker_id="w")).jobs
    row = await queue.job(made.id)
    answers = [job, row, *await queue.jobs(), *await inspect.waiting(queue.driver)]
    times = [value for answer in answers for value in (answer or ()) if isinstance(value, datetime)]
    assert len(times) == 3 + 4 + 4 + 1
    assert {time.utcoffset() for time in times} == {timedelta(0)}
    assert set(times) == {instant, instant + timedelta(seconds=30)}


async def test_listings_have_one_order_on_every_driver(queue: xjobs.AsyncQueue, clock: Clock, work: Work) -> None:
    """Fault 30: ascending here and descending there, and names in the order of a locale."""
    start = clock.freeze()
    names = ["b", "B", "ä", "a", "Z", "_", "é", "aa"]
    for n, name in enumerate(names):
        clock.move_to(start + timedelta(seconds=n // 2))
        await work.using(queue=name).aenqueue(n=n)
    assert [row.queue for row in await queue.jobs()] == names[::-1]
    assert [stats.queue for stats in await queue.stats()] == sorted(names, key=lambda name: name.encode())
    claimed = (await queue.claim(queues=sorted(names), worker_id="w", limit=99)).jobs
    assert [job.queue for job in claimed] == names


async def test_jobs_of_paused_queues_do_not_hide_the_others(
    queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work
) -> None:
    """A look at what waits is bounded; due jobs of a paused queue, however many, took all of its places."""
    now = clock.freeze()
    tables.pause("paused")
    old = work.using(queue="paused", run_at=now - timedelta(days=1))
    await queue.enqueue_many(old.call(n=n) for n in range(120))
    await work.using(delay=60).aenqueue(n=999)
    first, *rest = await inspect.waiting(queue.driver)
    assert (first.queue, first.paused, first.total) == ("default", False, 121)
    assert all(job.paused for job in rest)

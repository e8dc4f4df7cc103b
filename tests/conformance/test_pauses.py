"""Pausing and resuming queues, and what a paused one still does: jobs land and running ones go on, none is claimed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import xjobs
from conformance.fixtures import Drain, Work
from conformance.stores import BLOCKED, Store, Tables
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


class TestVerbs:
    async def test_a_pause_keeps_its_first_instant(self, queue: xjobs.AsyncQueue, clock: Clock) -> None:
        first = clock.freeze()
        assert await queue.pause_queue("default") == [xjobs.Pause("default", first)]
        clock.advance(hours=1)
        assert await queue.pause_queue("default") == [xjobs.Pause("default", first)]
        assert await queue.paused_queues() == [xjobs.Pause("default", first)]
        assert await queue.resume_queue("default") == []
        then = clock.advance(hours=1)
        assert await queue.pause_queue("default") == [xjobs.Pause("default", then)]

    async def test_paused_queues_are_ordered_by_name_as_bytes(self, queue: xjobs.AsyncQueue) -> None:
        names = ["é", "b", "B", "a-b", "aB", "ä", "Z", "z", "a b", "😀", "\uffee"]
        for name in names:
            answer = await queue.pause_queue(name)
        assert [pause.name for pause in answer] == sorted(names, key=str.encode)
        assert await queue.paused_queues() == answer

    async def test_resuming_what_is_not_paused_changes_nothing(self, queue: xjobs.AsyncQueue, tables: Tables) -> None:
        await queue.pause_queue("mail")
        before = tables.pauses()
        assert [pause.name for pause in await queue.resume_queue("Mail")] == ["mail"]
        assert tables.pauses() == before

    async def test_a_schedule_of_that_name_is_neither_listed_nor_resumed(
        self, queue: xjobs.AsyncQueue, tables: Tables
    ) -> None:
        tables.pause("mail", kind="task")
        before = tables.pauses()
        assert await queue.paused_queues() == await queue.resume_queue("mail") == []
        assert tables.pauses() == before
        assert [pause.name for pause in await queue.pause_queue("mail")] == ["mail"]

    async def test_it_takes_effect_at_the_next_claim(self, queue: xjobs.AsyncQueue, work: Work) -> None:
        for n in range(2):
            await work.aenqueue(n=n)
        (running,) = (await queue.claim(queues=["default"], worker_id="w")).jobs
        await queue.pause_queue("default")
        landed = await work.aenqueue(n=2)
        assert landed.deduped is False
        assert await queue.claim(queues=["default"], worker_id="w", limit=9) == ([], [])
        assert await queue.heartbeat([running], worker_id="w") == {running.id}
        assert [(stats.ready, stats.running) for stats in await queue.stats()] == [(2, 1)]
        await queue.resume_queue("default")
        jobs = (await queue.claim(queues=["default"], worker_id="w", limit=9)).jobs
        assert [job.input["n"] for job in jobs] == [1, 2]

    @pytest.mark.parametrize("wrong", ["", "a\0", "\ud800", "x" * 256, 3, None])
    async def test_what_is_no_queue_name_is_refused(self, queue: xjobs.AsyncQueue, tables: Tables, wrong: Any) -> None:
        for verb in (queue.pause_queue, queue.resume_queue):
            with pytest.raises(xjobs.Invariant, match="queue") as caught:
                await verb(wrong)
            assert caught.value.code == "X_INVARIANT"
        assert tables.pauses() == []

    async def test_a_pause_that_is_not_committed_is_not_in_effect_and_not_doubled(
        self, store: Store, queue: xjobs.AsyncQueue, tables: Tables, work: Work
    ) -> None:
        await work.aenqueue(n=1)
        other, asking = await store.begin(), await store.begin()
        await other.queue.pause_queue("default")
        assert await queue.paused_queues() == []
        with pytest.raises(BLOCKED):
            await asking.queue.pause_queue("default")
        await asking.rollback()
        assert len((await queue.claim(queues=["default"], worker_id="w")).jobs) == 1
        await other.rollback()
        assert tables.pauses() == []

    async def test_a_resume_that_is_not_committed_leaves_it_paused(
        self, store: Store, queue: xjobs.AsyncQueue, tables: Tables, work: Work
    ) -> None:
        await work.aenqueue(n=1)
        paused = await queue.pause_queue("default")
        other = await store.begin()
        assert await other.queue.resume_queue("default") == []
        assert len(await other.queue.pause_queue("default")) == 1
        assert await other.queue.resume_queue("default") == []
        assert await queue.claim(queues=["default"], worker_id="w") == ([], [])
        assert await queue.paused_queues() == paused
        await other.rollback()
        assert await queue.paused_queues() == paused

"""What ack and nack write, which claims they refuse, and what they count."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import xjobs
from conformance.fixtures import Work
from conformance.stores import Tables
from pytest_xjobs.clock import Clock
from xjobs.states import ALL

NOON = datetime(2024, 5, 17, 12, 0, tzinfo=UTC)
MS = timedelta(milliseconds=1)


async def _claimed(queue: xjobs.AsyncQueue, work: Work, count: int = 1) -> list[xjobs.ClaimedJob]:
    await queue.enqueue_many(work.call(n=n) for n in range(count))
    return (await queue.claim(queues=["default"], worker_id="w", limit=count)).jobs


async def _row(queue: xjobs.AsyncQueue, job: xjobs.ClaimedJob) -> xjobs.JobRow:
    row = await queue.job(job.id)
    assert row is not None
    return row


class TestAck:
    async def test_the_job_is_done_and_the_claim_is_released(
        self, queue: xjobs.AsyncQueue, clock: Clock, work: Work
    ) -> None:
        clock.freeze()
        (job,) = await _claimed(queue, work)
        before = await _row(queue, job)
        now = clock.advance(seconds=3)
        assert await queue.ack([xjobs.Ack(job)], worker_id="w") == {job.id}
        assert await _row(queue, job) == before._replace(state="done", visible_at=None, claimed_by=None, updated_at=now)

    async def test_a_second_ack_does_not_land(self, queue: xjobs.AsyncQueue, tables: Tables, work: Work) -> None:
        (job,) = await _claimed(queue, work)
        assert await queue.ack([xjobs.Ack(job)], worker_id="w") == {job.id}
        before = tables.jobs(), tables.counters()
        assert await queue.ack([xjobs.Ack(job)], worker_id="w") == set()
        assert (tables.jobs(), tables.counters()) == before

    async def test_a_lapsed_claim_that_nobody_took_still_settles(
        self, queue: xjobs.AsyncQueue, clock: Clock, work: Work
    ) -> None:
        clock.freeze()
        (job,) = await _claimed(queue, work)
        clock.advance(hours=1)
        assert await queue.ack([xjobs.Ack(job)], worker_id="w") == {job.id}

    async def test_a_batch_lands_as_far_as_its_claims_stand(
        self, queue: xjobs.AsyncQueue, tables: Tables, work: Work
    ) -> None:
        jobs = await _claimed(queue, work, count=4)
        tables.change(jobs[1].id, state="cancelled")
        given = [jobs[3], jobs[1], jobs[0], jobs[2]._replace(claims=9)]
        assert await queue.ack([xjobs.Ack(job) for job in given], worker_id="w") == {jobs[3].id, jobs[0].id}
        assert [(await _row(queue, job)).state for job in jobs] == ["done", "cancelled", "running", "done"]

    async def test_nothing_to_settle_is_nothing(self, queue: xjobs.AsyncQueue) -> None:
        assert await queue.ack([], worker_id="w") == set()
        assert await queue.nack([], worker_id="w") == set()


NACKS = [
    ({}, "ready"),
    ({"park": True}, "suspended"),
    ({"fail": True}, "failed"),
    ({"fail": True, "park": True}, "failed"),
    ({"dead_letter": True}, "dead"),
    ({"dead_letter": True, "fail": True, "park": True}, "dead"),
]


class TestNack:
    @pytest.mark.parametrize(("flags", "state"), NACKS)
    @pytest.mark.parametrize("counted", [True, False])
    async def test_the_flags_say_the_state(
        self, queue: xjobs.AsyncQueue, clock: Clock, work: Work, flags: dict[str, bool], state: str, counted: bool
    ) -> None:
        clock.freeze()
        (job,) = await _claimed(queue, work)
        before = await _row(queue, job)
        now = clock.advance(seconds=3)
        assert await queue.nack([xjobs.Nack(job, delay=60, counted=counted, **flags)], worker_id="w") == {job.id}
        assert await _row(queue, job) == before._replace(
            state=state,
            visible_at=None,
            claimed_by=None,
            run_at=now + timedelta(seconds=60),
            updated_at=now,
            attempt=1 if counted else 0,
        )

    @pytest.mark.parametrize("delay", [0, -90, 0.25, timedelta(days=3, microseconds=7), timedelta(days=-3)])
    async def test_the_delay_counts_from_now(
        self, queue: xjobs.AsyncQueue, clock: Clock, work: Work, delay: timedelta | float
    ) -> None:
        clock.freeze()
        (job,) = await _claimed(queue, work)
        await queue.nack([xjobs.Nack(job, delay=delay)], worker_id="w")
        span = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)
        assert (await _row(queue, job)).run_at == clock.now + span

    @pytest.mark.parametrize("delay", [float("nan"), float("inf"), "1s", None, True, timedelta(days=36_526), 1e300])
    async def test_a_delay_that_is_no_span_of_time_is_refused(
        self, queue: xjobs.AsyncQueue, tables: Tables, work: Work, delay: Any
    ) -> None:
        (job,) = await _claimed(queue, work)
        before = tables.jobs()
        with pytest.raises(xjobs.Invariant, match="delay"):
            await queue.nack([xjobs.Nack(job, delay=delay)], worker_id="w")
        assert tables.jobs() == before

    async def test_an_attempt_that_does_not_count_is_given_back_and_never_below_none(
        self, queue: xjobs.AsyncQueue, tables: Tables, work: Work
    ) -> None:
        jobs = await _claimed(queue, work, count=2)
        tables.change(jobs[0].id, attempt=0)
        tables.change(jobs[1].id, attempt=5)
        await queue.nack([xjobs.Nack(job, counted=False) for job in jobs], worker_id="w")
        assert [(await _row(queue, job)).attempt for job in jobs] == [0, 4]

    async def test_the_claim_ordinal_only_grows(self, queue: xjobs.AsyncQueue, work: Work) -> None:
        (job,) = await _claimed(queue, work)
        await queue.nack([xjobs.Nack(job, counted=False)], worker_id="w")
        (again,) = (await queue.claim(queues=["default"], worker_id="w")).jobs
        assert (again.attempt, again.claims) == (1, 2)

    @pytest.mark.parametrize(
        ("given", "kept"),
        [
            ((None, None), ("old", "old stack")),
            ((None, "a stack without its error"), ("old", "old stack")),
            (("new", None), ("new", None)),
            (("new", "new stack"), ("new", "new stack")),
            (("", ""), ("", "")),
        ],
    )
    async def test_a_new_error_replaces_error_and_stack_together(
        self,
        queue: xjobs.AsyncQueue,
        work: Work,
        given: tuple[str | None, str | None],
        kept: tuple[str | None, str | None],
    ) -> None:
        (job,) = await _claimed(queue, work)
        await queue.nack([xjobs.Nack(job, error="old", stack="old stack")], worker_id="w")
        (job,) = (await queue.claim(queues=["default"], worker_id="w")).jobs
        assert job.last_error == "old"
        await queue.nack([xjobs.Nack(job, error=given[0], stack=given[1])], worker_id="w")
        row = await _row(queue, job)
        assert (row.last_error, row.last_error_stack) == kept

    async def test_an_ack_keeps_the_last_error(self, queue: xjobs.AsyncQueue, work: Work) -> None:
        (job,) = await _claimed(queue, work)
        await queue.nack([xjobs.Nack(job, error="old", stack="old stack")], worker_id="w")
        (job,) = (await queue.claim(queues=["default"], worker_id="w")).jobs
        await queue.ack([xjobs.Ack(job)], worker_id="w")
        row = await _row(queue, job)
        assert (row.state, row.last_error, row.last_error_stack) == ("done", "old", "old stack")

    async def test_what_a_column_cannot_hold_is_spelled_out(self, queue: xjobs.AsyncQueue, work: Work) -> None:
        (job,) = await _claimed(queue, work)
        await queue.nack([xjobs.Nack(job, error="a\0b \ud800 ä 🙂", stack="\0" + "é\udfff")], worker_id="w")
        row = await _row(queue, job)
        assert row.last_error == "a\\x00b \\ud800 ä 🙂"
        assert row.last_error_stack == "\\x00é\\udfff"

    async def test_of_a_long_stack_the_end_is_kept(self, queue: xjobs.AsyncQueue, work: Work) -> None:
        (job,) = await _claimed(queue, work)
        await queue.nack([xjobs.Nack(job, error="e", stack="x" * 9_000 + "the end")], worker_id="w")
        stack = (await _row(queue, job)).last_error_stack
        assert stack == "x" * 7_993 + "the end"

    async def test_a_batch_gives_each_job_its_own_outcome(
        self, queue: xjobs.AsyncQueue, clock: Clock, work: Work
    ) -> None:
        clock.freeze()
        jobs = await _claimed(queue, work, count=4)
        nacks = [
            xjobs.Nack(jobs[2], delay=5, error="c", stack="cs"),
            xjobs.Nack(jobs[0], dead_letter=True, error="a"),
            xjobs.Nack(jobs[3], park=True, counted=False, delay=-1),
            xjobs.Nack(jobs[1]._replace(claims=7), fail=True),
        ]
        assert await queue.nack(nacks, worker_id="w") == {jobs[0].id, jobs[2].id, jobs[3].id}
        rows = [await _row(queue, job) for job in jobs]
        assert [(row.state, row.attempt, row.last_error, row.run_at - clock.now) for row in rows] == [
            ("dead", 1, "a", timedelta(0)),
            ("running", 1, None, timedelta(0)),
            ("ready", 1, "c", timedelta(seconds=5)),
            ("suspended", 0, None, timedelta(seconds=-1)),
        ]


class TestFence:
    @pytest.mark.parametrize("state", [state for state in ALL if state != "running"])
    async def test_a_job_that_is_not_running_is_not_settled(
        self, queue: xjobs.AsyncQueue, tables: Tables, work: Work, state: str
    ) -> None:
        (job,) = await _claimed(queue, work)
        tables.change(job.id, state=state)
        before = tables.jobs()
        assert await queue.ack([xjobs.Ack(job)], worker_id="w") == set()
        assert await queue.nack([xjobs.Nack(job, error="e")], worker_id="w") == set()
        assert (tables.jobs(), tables.counters()) == (before, [])

    async def test_another_worker_settles_nothing(self, queue: xjobs.AsyncQueue, tables: Tables, work: Work) -> None:
        (job,) = await _claimed(queue, work)
        before = tables.jobs()
        assert await queue.ack([xjobs.Ack(job)], worker_id="v") == set()
        assert await queue.nack([xjobs.Nack(job)], worker_id="v") == set()
        assert (tables.jobs(), tables.counters()) == (before, [])

    async def test_an_unknown_job_settles_as_nothing(self, queue: xjobs.AsyncQueue, tables: Tables, work: Work) -> None:
        (job,) = await _claimed(queue, work)
        gone = job._replace(id=job.run_id)
        assert await queue.ack([xjobs.Ack(gone)], worker_id="w") == set()
        assert await queue.nack([xjobs.Nack(gone)], worker_id="w") == set()
        assert tables.counters() == []

    async def test_a_settled_job_is_settled_once_by_many_sessions(
        self, store: Any, queue: xjobs.AsyncQueue, tables: Tables, work: Work
    ) -> None:
        (job,) = await _claimed(queue, work)
        landed = await store.at_once(4, lambda session: session.ack([xjobs.Ack(job)], worker_id="w"))
        assert sorted(map(len, landed)) == [0, 0, 0, 1]
        assert [counter[3] for counter in tables.counters()] == [1]

    @pytest.mark.parametrize("settle", ["ack", "nack"])
    async def test_a_claim_named_twice_in_a_batch_is_settled_and_counted_once(
        self, queue: xjobs.AsyncQueue, tables: Tables, work: Work, settle: str
    ) -> None:
        (job,) = await _claimed(queue, work)
        if settle == "ack":
            landed = await queue.ack([xjobs.Ack(job, 2 * MS), xjobs.Ack(job, 2 * MS)], worker_id="w")
        else:
            landed = await queue.nack([xjobs.Nack(job, duration=2 * MS)] * 2, worker_id="w")
        assert landed == {job.id}
        ((_, _, _, done, retried, _, _, duration),) = tables.counters()
        assert (done, retried, duration) == (int(settle == "ack"), int(settle == "nack"), 2)


class TestCounters:
    async def test_an_ack_is_done_with_its_duration(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work
    ) -> None:
        clock.freeze(NOON)
        jobs = await _claimed(queue, work, count=3)
        durations = [timedelta(seconds=2), timedelta(microseconds=1_999), timedelta(seconds=-5)]
        await queue.ack([xjobs.Ack(*given) for given in zip(jobs, durations, strict=True)], worker_id="w")
        assert tables.counters() == [("work", 60_000, NOON, 3, 0, 0, 0, 2_001)]

    @pytest.mark.parametrize(
        ("flags", "column"),
        [
            ({}, 4),
            ({"fail": True}, 5),
            ({"fail": True, "counted": False}, 5),
            ({"dead_letter": True}, 6),
            ({"dead_letter": True, "counted": False}, 6),
        ],
    )
    async def test_a_nack_counts_by_its_outcome(
        self, queue: xjobs.AsyncQueue, tables: Tables, work: Work, flags: dict[str, bool], column: int
    ) -> None:
        (job,) = await _claimed(queue, work)
        await queue.nack([xjobs.Nack(job, duration=7 * MS, **flags)], worker_id="w")
        (counter,) = tables.counters()
        assert counter[3:] == (*(int(place == column) for place in range(3, 7)), 7)

    @pytest.mark.parametrize("flags", [{"counted": False}, {"park": True}, {"park": True, "counted": False}])
    async def test_a_shed_and_a_suspension_are_not_history(
        self, queue: xjobs.AsyncQueue, tables: Tables, work: Work, flags: dict[str, bool]
    ) -> None:
        (job,) = await _claimed(queue, work)
        assert await queue.nack([xjobs.Nack(job, duration=7 * MS, **flags)], worker_id="w") == {job.id}
        assert tables.counters() == []

    async def test_an_ack_that_does_not_count_adds_nothing(
        self, queue: xjobs.AsyncQueue, tables: Tables, work: Work
    ) -> None:
        (job,) = await _claimed(queue, work)
        assert await queue.ack([xjobs.Ack(job, MS)], worker_id="w", counted=False) == {job.id}
        assert tables.counters() == []

    async def test_what_does_not_land_is_not_counted(self, queue: xjobs.AsyncQueue, tables: Tables, work: Work) -> None:
        jobs = await _claimed(queue, work, count=2)
        await queue.ack([xjobs.Ack(jobs[0], MS), xjobs.Ack(jobs[1]._replace(claims=5), MS)], worker_id="w")
        assert [counter[3:] for counter in tables.counters()] == [(1, 0, 0, 0, 1)]

    async def test_each_job_name_and_minute_has_its_own(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work
    ) -> None:
        @xjobs.job(key="{n}", name="Another")
        def another(n: int) -> None: ...

        clock.freeze(NOON - timedelta(microseconds=1))
        jobs = await _claimed(queue, work, count=2)
        await another.aenqueue(n=9)
        jobs += (await queue.claim(queues=["default"], worker_id="w")).jobs
        await queue.ack([xjobs.Ack(jobs[0], MS)], worker_id="w")
        clock.freeze(NOON)
        await queue.ack([xjobs.Ack(jobs[1], MS), xjobs.Ack(jobs[2], 3 * MS)], worker_id="w")
        assert tables.counters() == [
            ("Another", 60_000, NOON, 1, 0, 0, 0, 3),
            ("work", 60_000, NOON - timedelta(minutes=1), 1, 0, 0, 0, 1),
            ("work", 60_000, NOON, 1, 0, 0, 0, 1),
        ]

    async def test_outcomes_of_one_minute_add_up(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work
    ) -> None:
        clock.freeze(NOON)
        jobs = await _claimed(queue, work, count=6)
        await queue.ack([xjobs.Ack(jobs[0], MS)], worker_id="w")
        await queue.ack([xjobs.Ack(jobs[1], MS)], worker_id="w")
        flags: list[dict[str, Any]] = [{}, {"fail": True}, {"dead_letter": True}, {"park": True}]
        await queue.nack(
            [xjobs.Nack(job, duration=MS, **each) for job, each in zip(jobs[2:], flags, strict=True)], worker_id="w"
        )
        assert tables.counters() == [("work", 60_000, NOON, 2, 1, 1, 1, 5)]

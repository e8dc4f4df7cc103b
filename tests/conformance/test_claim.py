"""What a claim takes, in which order, and what becomes of lapsed leases."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

import xjobs
from conformance.fixtures import Work
from conformance.stores import Store, Tables
from pytest_xjobs.clock import Clock
from xjobs import registry
from xjobs.operations.claim import give_back
from xjobs.states import FINISHED, WAITING


async def _numbers(queue: xjobs.AsyncQueue, limit: int = 10, queues: tuple[str, ...] = ("default",)) -> list[int]:
    return [job.input["n"] for job in (await queue.claim(queues=queues, worker_id="w", limit=limit)).jobs]


async def _poison(queue: xjobs.AsyncQueue, clock: Clock, job: Any, n: int, attempts: int = 3) -> xjobs.ClaimedJob:
    """A job whose lease has lapsed on its final attempt; nothing else may be due."""
    await job.aenqueue(n=n)
    for _ in range(attempts):
        (claimed,) = (await queue.claim(queues=[job.queue], worker_id="stalled", lease=1)).jobs
        clock.advance(seconds=1)
    return claimed


class TestOrder:
    async def test_due_jobs_come_in_the_order_of_their_instants(
        self, queue: xjobs.AsyncQueue, clock: Clock, work: Work
    ) -> None:
        now = clock.freeze()
        for n, minutes in enumerate([3, 1, 2]):
            await work.using(run_at=now + timedelta(minutes=minutes)).aenqueue(n=n)
        clock.advance(minutes=2)
        assert await _numbers(queue) == [1, 2]

    async def test_equal_instants_come_in_the_order_of_their_ids(
        self, queue: xjobs.AsyncQueue, clock: Clock, work: Work
    ) -> None:
        clock.freeze()
        for n, last in enumerate([0xF0, 0x0F, 0x80]):
            await work.using(id=UUID(int=last << 96)).aenqueue(n=n)
        assert await _numbers(queue, limit=2) == [1, 2]
        assert await _numbers(queue) == [0]

    async def test_queues_are_served_as_one(self, queue: xjobs.AsyncQueue, clock: Clock, work: Work) -> None:
        now = clock.freeze()
        for n, name in enumerate("abcabc"):
            await work.using(queue=name, run_at=now - timedelta(seconds=n)).aenqueue(n=n)
        assert await _numbers(queue, limit=3, queues=("a", "b")) == [4, 3, 1]
        assert await _numbers(queue, queues=("c", "b", "a")) == [5, 2, 0]

    async def test_lapsed_leases_take_their_place_among_waiting_jobs(
        self, queue: xjobs.AsyncQueue, clock: Clock, work: Work
    ) -> None:
        now = clock.freeze()
        for n in (2, 4):
            await work.using(run_at=now - timedelta(minutes=10 - n)).aenqueue(n=n)
        assert await _numbers(queue) == [2, 4]
        clock.advance(minutes=1)
        for n in (1, 3, 5):
            await work.using(run_at=now - timedelta(minutes=10 - n)).aenqueue(n=n)
        assert await _numbers(queue) == [1, 2, 3, 4, 5]

    async def test_a_lapsed_lease_waits_its_turn_when_the_limit_is_short(
        self, queue: xjobs.AsyncQueue, clock: Clock, work: Work
    ) -> None:
        now = clock.freeze()
        await work.using(run_at=now).aenqueue(n=2)
        assert await _numbers(queue) == [2]
        clock.advance(minutes=1)
        await work.using(run_at=now - timedelta(minutes=1)).aenqueue(n=1)
        await work.aenqueue(n=3)
        assert [await _numbers(queue, limit=1) for _ in range(4)] == [[1], [2], [3], []]

    async def test_a_retry_goes_behind_what_is_due_before_it(
        self, queue: xjobs.AsyncQueue, clock: Clock, work: Work
    ) -> None:
        clock.freeze()
        await work.aenqueue(n=1)
        (first,) = (await queue.claim(queues=["default"], worker_id="w")).jobs
        await queue.nack([xjobs.Nack(first, delay=2)], worker_id="w")
        clock.advance(seconds=1)
        await work.aenqueue(n=2)
        clock.advance(seconds=1)
        assert await _numbers(queue) == [2, 1]


class TestWhatIsTaken:
    async def test_the_row_and_the_answer_say_the_claim(
        self, queue: xjobs.AsyncQueue, clock: Clock, work: Work
    ) -> None:
        made = await work.using(tenant="t", enqueued_by="ann", traceparent="00-a").aenqueue(n=1)
        created = await queue.job(made.id)
        assert created is not None
        now = clock.move_to(clock.now + timedelta(minutes=5))
        (job,) = (await queue.claim(queues=["default"], worker_id="w7", lease=timedelta(seconds=90))).jobs
        row = await queue.job(made.id)
        assert row == created._replace(
            state="running",
            attempt=1,
            claims=1,
            claimed_by="w7",
            visible_at=now + timedelta(seconds=90),
            updated_at=now,
        )
        assert row is not None
        assert job == xjobs.ClaimedJob(**{field: getattr(row, field) for field in job._fields})

    async def test_a_claim_lasts_thirty_seconds_when_nothing_is_said(
        self, queue: xjobs.AsyncQueue, clock: Clock, work: Work
    ) -> None:
        now = clock.freeze()
        await work.aenqueue(n=1)
        (job,) = (await queue.claim(queues=["default"], worker_id="w")).jobs
        assert job.visible_at == now + timedelta(seconds=30)

    @pytest.mark.parametrize("state", WAITING)
    async def test_every_waiting_state_is_taken_once_due(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work, state: str
    ) -> None:
        now = clock.freeze()
        made = await work.aenqueue(n=1)
        tables.change(made.id, state=state, run_at=now + timedelta(seconds=1))
        assert await _numbers(queue) == []
        clock.advance(seconds=1)
        assert await _numbers(queue) == [1]

    @pytest.mark.parametrize("state", FINISHED)
    async def test_a_finished_job_is_never_taken(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work, state: str
    ) -> None:
        clock.freeze()
        made = await work.aenqueue(n=1)
        tables.change(made.id, state=state)
        before = tables.jobs()
        clock.advance(days=400)
        assert await queue.claim(queues=["default"], worker_id="w", limit=9) == ([], [])
        assert tables.jobs() == before

    async def test_a_running_job_that_was_cancelled_is_never_taken_again(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work
    ) -> None:
        clock.freeze()
        made = await work.aenqueue(n=1)
        assert await _numbers(queue) == [1]
        tables.change(made.id, state="cancelled", visible_at=None, claimed_by=None)
        clock.advance(days=1)
        assert await _numbers(queue) == []

    async def test_other_queues_are_left_alone(self, queue: xjobs.AsyncQueue, work: Work) -> None:
        await work.using(queue="Default").aenqueue(n=1)
        await work.using(queue="default2").aenqueue(n=2)
        assert await _numbers(queue, queues=("default", "nobody", "%")) == []

    async def test_a_queue_named_twice_is_asked_once(self, queue: xjobs.AsyncQueue, work: Work) -> None:
        for n in range(2):
            await work.aenqueue(n=n)
        assert await _numbers(queue, queues=("default", "default")) == [0, 1]

    @pytest.mark.parametrize("limit", [1, 3, 7, 2**31 - 1])
    async def test_no_more_than_the_limit_is_taken(self, queue: xjobs.AsyncQueue, work: Work, limit: int) -> None:
        await queue.enqueue_many(work.call(n=n) for n in range(5))
        assert await _numbers(queue, limit) == list(range(5))[:limit]

    async def test_a_limit_of_zero_takes_and_buries_nothing(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work
    ) -> None:
        clock.freeze()
        await _poison(queue, clock, work, n=0)
        await work.aenqueue(n=1)
        before = tables.jobs()
        assert await queue.claim(queues=["default"], worker_id="w", limit=0) == ([], [])
        assert tables.jobs() == before


class TestSessions:
    async def test_claims_of_many_sessions_are_disjoint_and_complete(
        self, store: Store, queue: xjobs.AsyncQueue, work: Work
    ) -> None:
        await queue.enqueue_many(work.call(n=n) for n in range(120))

        async def take_all(session: xjobs.AsyncQueue) -> list[int]:
            taken: list[int] = []
            while found := await _numbers(session, limit=7):
                taken += found
            return taken

        taken = await store.at_once(4, take_all)
        assert sorted(n for numbers in taken for n in numbers) == list(range(120))

    async def test_rows_of_an_open_transaction_are_passed_over_and_not_waited_for(
        self, store: Store, queue: xjobs.AsyncQueue, second: xjobs.AsyncQueue, clock: Clock, work: Work
    ) -> None:
        clock.freeze()
        await queue.enqueue_many(work.call(n=n) for n in range(4))
        other = await store.begin()
        assert await _numbers(other.queue, limit=2) == [0, 1]
        assert await _numbers(second, limit=9) == [2, 3]
        await other.rollback()
        (first, second_row) = (await queue.claim(queues=["default"], worker_id="w", limit=9)).jobs
        assert [(job.input["n"], job.attempt, job.claims) for job in (first, second_row)] == [(0, 1, 1), (1, 1, 1)]

    async def test_a_lapsed_lease_is_taken_by_one_of_many_sessions(
        self, store: Store, queue: xjobs.AsyncQueue, clock: Clock, work: Work
    ) -> None:
        clock.freeze()
        await work.aenqueue(n=1)
        await queue.claim(queues=["default"], worker_id="dead")
        clock.advance(minutes=1)
        taken = await store.at_once(4, lambda session: session.claim(queues=["default"], worker_id="w", limit=3))
        assert sorted(job.claims for claimed in taken for job in claimed.jobs) == [2]


class TestLapsedLeases:
    async def test_a_lapsed_lease_is_delivered_again_as_a_new_attempt(
        self, queue: xjobs.AsyncQueue, clock: Clock, work: Work
    ) -> None:
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

    async def test_it_is_buried_when_it_was_the_final_attempt(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work
    ) -> None:
        clock.freeze()
        stalled = await _poison(queue, clock, work, n=1)
        tables.change(stalled.id, last_error="Old: error", last_error_stack="old stack")
        before = await queue.job(stalled.id)
        assert before is not None
        jobs, (buried,) = await queue.claim(queues=["default"], worker_id="w", limit=5)
        row = await queue.job(stalled.id)
        assert jobs == []
        assert row == before._replace(
            state="dead",
            visible_at=None,
            claimed_by=None,
            last_error="LeaseLapsed: the lease lapsed during the final attempt, its worker is gone or stalled",
            last_error_stack=None,
            updated_at=clock.now,
        )
        assert buried == xjobs.ClaimedJob(**{field: getattr(row, field) for field in buried._fields})

    async def test_a_burial_is_reported_and_counted_once(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work
    ) -> None:
        clock.freeze()
        stalled = await _poison(queue, clock, work, n=1)
        passes = [await queue.claim(queues=["default"], worker_id="w", limit=5) for _ in range(3)]
        assert [[job.id for job in one.buried] for one in passes] == [[stalled.id], [], []]
        minute = clock.now.replace(second=0, microsecond=0)
        assert tables.counters() == [("work", 60_000, minute, 0, 0, 0, 1, 0)]
        assert await queue.ack([xjobs.Ack(stalled)], worker_id="stalled") == set()
        assert await queue.nack([xjobs.Nack(stalled)], worker_id="stalled") == set()
        assert await queue.heartbeat([stalled], worker_id="stalled") == set()

    async def test_a_burial_frees_the_key(self, queue: xjobs.AsyncQueue, clock: Clock, work: Work) -> None:
        clock.freeze()
        await _poison(queue, clock, work, n=1)
        assert (await work.aenqueue(n=1)).deduped is True
        await queue.claim(queues=["default"], worker_id="w")
        assert (await work.aenqueue(n=1)).deduped is False

    async def test_one_pass_buries_and_claims(self, queue: xjobs.AsyncQueue, clock: Clock, work: Work) -> None:
        clock.freeze()
        stalled = await _poison(queue, clock, work, n=1)
        fresh = await work.aenqueue(n=2)
        jobs, buried = await queue.claim(queues=["default"], worker_id="w", limit=2)
        assert ([job.id for job in jobs], [job.id for job in buried]) == ([fresh.id], [stalled.id])

    async def test_a_burial_takes_a_place_of_the_limit(self, queue: xjobs.AsyncQueue, clock: Clock, work: Work) -> None:
        clock.freeze()
        stalled = await _poison(queue, clock, work, n=1)
        fresh = await work.aenqueue(n=2)
        passes = [await queue.claim(queues=["default"], worker_id="w", limit=1) for _ in range(2)]
        assert [[job.id for job in one.buried] for one in passes] == [[stalled.id], []]
        assert [[job.id for job in one.jobs] for one in passes] == [[], [fresh.id]]

    async def test_a_job_without_dead_letters_is_buried_as_failed(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work
    ) -> None:
        @xjobs.job(key="{n}", retry=xjobs.Retry(attempts=3, dead_letter=False))
        def dropping(n: int) -> None: ...

        clock.freeze()
        await dropping.aenqueue(n=1)
        await work.aenqueue(n=2)
        for _ in range(3):
            await queue.claim(queues=["default"], worker_id="stalled", lease=1, limit=2)
            clock.advance(seconds=1)
        jobs, buried = await queue.claim(queues=["default"], worker_id="w", limit=5)
        minute = clock.now.replace(second=0, microsecond=0)
        assert (jobs, [(job.name, job.state) for job in buried]) == ([], [("dropping", "failed"), ("work", "dead")])
        assert tables.counters() == [
            ("dropping", 60_000, minute, 0, 0, 1, 0, 0),
            ("work", 60_000, minute, 0, 0, 0, 1, 0),
        ]

    async def test_a_job_that_nobody_declares_here_is_buried_as_dead(
        self, queue: xjobs.AsyncQueue, clock: Clock
    ) -> None:
        clock.freeze()
        with registry.scope():

            @xjobs.job(key="{n}", retry=xjobs.Retry(attempts=1, dead_letter=False))
            def gone(n: int) -> None: ...

            await _poison(queue, clock, gone, n=1, attempts=1)
        _, (buried,) = await queue.claim(queues=["default"], worker_id="w")
        assert buried.state == "dead"

    async def test_many_of_one_name_are_counted_together(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock
    ) -> None:
        @xjobs.job(key="{n}", retry=1)
        def once(n: int) -> None: ...

        clock.freeze()
        await queue.enqueue_many(once.call(n=n) for n in range(5))
        await queue.claim(queues=["default"], worker_id="stalled", lease=1, limit=5)
        clock.advance(seconds=1)
        _, buried = await queue.claim(queues=["default"], worker_id="w", limit=3)
        assert [job.input["n"] for job in buried] == [0, 1, 2]
        _, buried = await queue.claim(queues=["default"], worker_id="w", limit=3)
        assert [job.input["n"] for job in buried] == [3, 4]
        assert [counter[6] for counter in tables.counters()] == [5]

    async def test_a_worker_that_claims_its_own_job_again_has_lost_the_first_claim(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work
    ) -> None:
        clock.freeze()
        await work.aenqueue(n=1)
        (stale,) = (await queue.claim(queues=["default"], worker_id="w", lease=1)).jobs
        clock.advance(seconds=1)
        (held,) = (await queue.claim(queues=["default"], worker_id="w", lease=1)).jobs
        before = tables.jobs()
        assert await queue.heartbeat([stale], worker_id="w") == set()
        assert await queue.nack([xjobs.Nack(stale, error="late")], worker_id="w") == set()
        assert await queue.ack([xjobs.Ack(stale)], worker_id="w") == set()
        assert (tables.jobs(), tables.counters()) == (before, [])
        assert await queue.ack([xjobs.Ack(held)], worker_id="w") == {held.id}


class TestRefusals:
    @pytest.mark.parametrize("limit", [-1, 1.5, float("nan"), float("inf"), True, "3", None, 2**31])
    async def test_a_limit_that_is_not_a_count_is_refused(self, queue: xjobs.AsyncQueue, limit: Any) -> None:
        with pytest.raises(xjobs.Invariant) as caught:
            await queue.claim(queues=["default"], worker_id="w", limit=limit)
        assert caught.value.code == "X_INVARIANT"

    @pytest.mark.parametrize("lease", [0, -1, float("nan"), float("inf"), timedelta(0), "30s", None, True, 10**12])
    async def test_a_lease_that_is_not_a_span_of_time_is_refused(
        self, queue: xjobs.AsyncQueue, work: Work, lease: Any
    ) -> None:
        await work.aenqueue(n=1)
        with pytest.raises(xjobs.Invariant):
            await queue.claim(queues=["default"], worker_id="w", lease=lease)
        (job,) = (await queue.claim(queues=["default"], worker_id="w")).jobs
        with pytest.raises(xjobs.Invariant):
            await queue.heartbeat([job], worker_id="w", lease=lease)

    @pytest.mark.parametrize("queues", [[], (), {}, iter(())])
    async def test_a_claim_without_queues_is_refused(self, queue: xjobs.AsyncQueue, queues: Any) -> None:
        with pytest.raises(xjobs.ClaimQueuesEmpty) as caught:
            await queue.claim(queues=queues, worker_id="w")
        assert caught.value.code == "X_JOB_CLAIM_QUEUES_EMPTY"

    async def test_the_refusal_comes_when_the_claim_is_awaited(self, queue: xjobs.AsyncQueue) -> None:
        claim = queue.claim(queues=[], worker_id="w")
        with pytest.raises(xjobs.ClaimQueuesEmpty):
            await claim

    @pytest.mark.parametrize("queues", ["default", [""], [None], ["a\0b"], ["\ud800"], ["q" * 256], ["ä" * 128]])
    async def test_what_is_not_a_queue_name_is_refused(self, queue: xjobs.AsyncQueue, queues: Any) -> None:
        with pytest.raises(xjobs.Invariant):
            await queue.claim(queues=queues, worker_id="w")

    @pytest.mark.parametrize("worker_id", ["", None, "a\0b", "\udfff", 7])
    async def test_what_is_not_a_worker_id_is_refused(self, queue: xjobs.AsyncQueue, worker_id: Any) -> None:
        with pytest.raises(xjobs.Invariant):
            await queue.claim(queues=["default"], worker_id=worker_id)


async def test_claims_whose_answer_was_lost_are_given_back_and_no_others(
    queue: xjobs.AsyncQueue, tables: Tables, work: Work
) -> None:
    await queue.enqueue_many(work.using(queue=name).call(n=n) for n, name in enumerate("aaaab"))
    known, stray, settled, theirs = [
        (await queue.claim(queues=["a"], worker_id=worker)).jobs[0] for worker in ("w", "w", "w", "v")
    ]
    (elsewhere,) = (await queue.claim(queues=["b"], worker_id="w")).jobs
    await queue.ack([xjobs.Ack(settled)], worker_id="w")
    before = {row["id"]: row for row in tables.jobs()}
    stale = stray._replace(claims=7)
    assert await give_back(queue.driver, [known, stale], queues=["a"], worker_id="w") == 1
    after = {row["id"]: row for row in tables.jobs()}
    changed = after.pop(stray.id)
    assert (changed["state"], changed["attempt"], changed["claims"]) == ("ready", 0, 1)
    assert (changed["claimed_by"], changed["visible_at"], changed["run_at"]) == (None, None, before[stray.id]["run_at"])
    assert after == {job_id: row for job_id, row in before.items() if job_id != stray.id}
    assert {theirs.id, elsewhere.id} <= after.keys()
    assert await give_back(queue.driver, [known], queues=["a"], worker_id="w") == 0
    assert [job.id for job in (await queue.claim(queues=["a"], worker_id="w")).jobs] == [stray.id]

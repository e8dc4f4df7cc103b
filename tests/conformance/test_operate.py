"""What operators do to jobs, one by its id and many by a filter: what moves, and that a refusal changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

import xjobs
from conformance.fixtures import Work
from conformance.stores import BLOCKED, PostgresStore, Store, Tables, queue_on
from pytest_xjobs.clock import Clock
from xjobs.states import ALL, FINISHED, LIVE

HOUR = timedelta(hours=1)
FULL: dict[str, Any] = {
    "attempt": 2,
    "claims": 3,
    "last_error": "ValueError: before",
    "last_error_stack": "the stack",
    "progress": {"done": 1},
}
"""Columns that an operator's verb has to leave alone, or to set on purpose."""
Verb = Callable[..., Awaitable[xjobs.Bulk]]
VERBS = ("cancel_many", "requeue_many", "promote_many", "remove_many")
MOVABLE = {"cancel_many": "ready", "requeue_many": "dead", "promote_many": "delayed", "remove_many": "done"}


async def _row(queue: xjobs.AsyncQueue, job_id: UUID) -> xjobs.JobRow:
    row = await queue.job(job_id)
    assert row is not None
    return row


def _claim_columns(clock: Clock, state: str) -> dict[str, Any]:
    return {"claimed_by": "w", "visible_at": clock.now + HOUR} if state == "running" else {}


async def _in_state(tables: Tables, clock: Clock, work: Work, state: str, n: int = 1, **columns: Any) -> UUID:
    """A job in a state, made a while ago."""
    made = await work.aenqueue(n=n)
    tables.change(made.id, state=state, **FULL, **_claim_columns(clock, state), **columns)
    return made.id


@pytest.fixture(autouse=True)
def now(clock: Clock) -> None:
    clock.freeze()


class TestCancel:
    @pytest.mark.parametrize("reason", [None, "asked by ann"])
    @pytest.mark.parametrize("state", LIVE)
    async def test_a_live_job_is_cancelled(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work, state: str, reason: str | None
    ) -> None:
        job_id = await _in_state(tables, clock, work, state)
        before = await _row(queue, job_id)
        then = clock.advance(minutes=1)
        answer = await queue.cancel(job_id, reason=reason)
        assert answer == before._replace(
            state="cancelled",
            visible_at=None,
            claimed_by=None,
            updated_at=then,
            last_error="ValueError: before" if reason is None else reason,
        )
        assert await _row(queue, job_id) == answer

    @pytest.mark.parametrize("state", FINISHED)
    async def test_a_finished_job_is_refused_and_no_column_changes(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work, state: str
    ) -> None:
        job_id = await _in_state(tables, clock, work, state)
        before = tables.jobs()
        clock.advance(minutes=1)
        with pytest.raises(xjobs.JobNotCancellable) as caught:
            await queue.cancel(job_id, reason="late")
        assert (caught.value.code, caught.value.id, caught.value.state) == ("X_JOB_NOT_CANCELLABLE", job_id, state)
        assert tables.jobs() == before

    async def test_an_unknown_job_is_refused(self, queue: xjobs.AsyncQueue) -> None:
        unknown = uuid4()
        with pytest.raises(xjobs.JobNotCancellable, match=str(unknown)) as caught:
            await queue.cancel(unknown)
        assert caught.value.code == "X_JOB_NOT_CANCELLABLE"

    async def test_its_key_is_free_and_it_is_never_claimed(self, queue: xjobs.AsyncQueue, work: Work) -> None:
        made = await work.aenqueue(n=1)
        await queue.cancel(made.id)
        again = await work.aenqueue(n=1)
        assert again.deduped is False
        assert [job.id for job in (await queue.claim(queues=["default"], worker_id="w", limit=9)).jobs] == [again.id]

    @pytest.mark.parametrize("outcome", ["ack", "retry", "dead_letter", "park"])
    async def test_a_running_job_stays_cancelled_whatever_its_worker_says(
        self, queue: xjobs.AsyncQueue, tables: Tables, work: Work, outcome: str
    ) -> None:
        await work.aenqueue(n=1)
        (job,) = (await queue.claim(queues=["default"], worker_id="w")).jobs
        await queue.cancel(job.id, reason="stop")
        before = tables.jobs()
        assert await queue.heartbeat([job], worker_id="w") == set()
        if outcome == "ack":
            assert await queue.ack([xjobs.Ack(job)], worker_id="w") == set()
        else:
            flags = {} if outcome == "retry" else {outcome: True}
            assert await queue.nack([xjobs.Nack(job, error="late", **flags)], worker_id="w") == set()
        assert (tables.jobs(), tables.counters()) == (before, [])

    @pytest.mark.parametrize("reason", ["", "a\0", 7])
    async def test_a_reason_that_is_no_text_is_refused(
        self, queue: xjobs.AsyncQueue, tables: Tables, work: Work, reason: Any
    ) -> None:
        made = await work.aenqueue(n=1)
        before = tables.jobs()
        with pytest.raises(xjobs.Invariant, match="reason"):
            await queue.cancel(made.id, reason=reason)
        with pytest.raises(xjobs.Invariant, match="reason"):
            await queue.cancel_many(state="ready", reason=reason)
        assert tables.jobs() == before


class TestRequeue:
    @pytest.mark.parametrize("state", FINISHED)
    async def test_a_finished_job_is_ready_and_due_now_with_all_its_attempts_in_the_same_run(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work, state: str
    ) -> None:
        job_id = await _in_state(tables, clock, work, state, run_at=clock.now + HOUR)
        before = await _row(queue, job_id)
        then = clock.advance(minutes=1)
        answer = await queue.requeue(job_id)
        assert answer == before._replace(
            state="ready", attempt=0, run_at=then, visible_at=None, claimed_by=None, updated_at=then
        )
        assert await _row(queue, job_id) == answer
        (job,) = (await queue.claim(queues=["default"], worker_id="w", limit=9)).jobs
        assert (job.id, job.run_id, job.attempt, job.claims) == (job_id, before.run_id, 1, 4)

    @pytest.mark.parametrize("state", LIVE)
    async def test_a_live_job_is_refused_and_no_column_changes(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work, state: str
    ) -> None:
        job_id = await _in_state(tables, clock, work, state)
        before = tables.jobs()
        clock.advance(minutes=1)
        with pytest.raises(xjobs.JobNotRequeueable) as caught:
            await queue.requeue(job_id)
        assert (caught.value.code, caught.value.id, caught.value.state) == ("X_JOB_NOT_REQUEUEABLE", job_id, state)
        assert tables.jobs() == before

    async def test_an_unknown_job_has_the_same_code_everywhere(self, queue: xjobs.AsyncQueue) -> None:
        unknown = uuid4()
        with pytest.raises(xjobs.JobNotFound) as caught:
            await queue.requeue(unknown)
        assert (caught.value.code, caught.value.id) == ("X_JOB_NOT_FOUND", unknown)

    @pytest.mark.parametrize("state", LIVE)
    async def test_a_key_that_a_live_job_holds_is_refused_by_that_job(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work, state: str
    ) -> None:
        dead = await _in_state(tables, clock, work, "dead")
        holder = await _in_state(tables, clock, work, state)
        before = tables.jobs()
        clock.advance(minutes=1)
        with pytest.raises(xjobs.JobDuplicate) as caught:
            await queue.requeue(dead)
        assert (caught.value.code, caught.value.id) == ("X_JOB_DUPLICATE", holder)
        assert tables.jobs() == before

    async def test_a_key_is_held_by_jobs_of_its_name_and_tenant_alone(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work
    ) -> None:
        @xjobs.job(key="{n}")
        def other(n: int) -> None: ...

        dead = await _in_state(tables, clock, work, "dead")
        for job in (other, work.using(tenant="t"), work.using(key="2")):
            await job.aenqueue(n=1)
        assert (await queue.requeue(dead)).state == "ready"

    async def test_of_two_that_had_one_key_one_comes_back(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work
    ) -> None:
        first, second = [await _in_state(tables, clock, work, "dead") for _ in range(2)]
        await queue.requeue(second)
        with pytest.raises(xjobs.JobDuplicate) as caught:
            await queue.requeue(first)
        assert caught.value.id == second
        await queue.cancel(second)
        assert (await queue.requeue(first)).id == first

    async def test_it_holds_its_key_again(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work
    ) -> None:
        dead = await _in_state(tables, clock, work, "dead")
        await queue.requeue(dead)
        answer = await work.aenqueue(n=1)
        assert (answer.id, answer.deduped) == (dead, True)


class TestPromote:
    @pytest.mark.parametrize("state", ["ready", "delayed"])
    async def test_a_job_that_waits_is_due_now(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work, state: str
    ) -> None:
        job_id = await _in_state(tables, clock, work, state, run_at=clock.now + HOUR)
        before = await _row(queue, job_id)
        then = clock.advance(minutes=1)
        answer = await queue.promote(job_id)
        assert answer == before._replace(state="ready", run_at=then, updated_at=then)
        assert await _row(queue, job_id) == answer
        assert [job.id for job in (await queue.claim(queues=["default"], worker_id="w")).jobs] == [job_id]

    @pytest.mark.parametrize(
        ("state", "due"),
        [
            ("ready", 0),
            ("delayed", 0),
            ("delayed", -1),
            *((state, 1) for state in ALL if state not in ("ready", "delayed")),
        ],
    )
    async def test_any_other_is_refused_and_no_column_changes(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work, state: str, due: int
    ) -> None:
        """A suspended job among them: its wake is its step's."""
        clock_then = clock.now + timedelta(minutes=1)
        job_id = await _in_state(tables, clock, work, state, run_at=clock_then + due * HOUR)
        before = tables.jobs()
        clock.advance(minutes=1)
        with pytest.raises(xjobs.JobNotPromotable) as caught:
            await queue.promote(job_id)
        assert (caught.value.code, caught.value.id, caught.value.state) == ("X_JOB_NOT_PROMOTABLE", job_id, state)
        assert tables.jobs() == before

    async def test_an_unknown_job_is_refused(self, queue: xjobs.AsyncQueue) -> None:
        with pytest.raises(xjobs.JobNotFound) as caught:
            await queue.promote(uuid4())
        assert caught.value.code == "X_JOB_NOT_FOUND"


class TestRemove:
    @pytest.mark.parametrize("state", [state for state in ALL if state != "running"])
    async def test_it_is_gone_and_was_what_is_answered(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work, state: str
    ) -> None:
        job_id = await _in_state(tables, clock, work, state)
        kept = await work.aenqueue(n=2)
        before = await _row(queue, job_id)
        clock.advance(minutes=1)
        assert await queue.remove(job_id) == before
        assert [row["id"] for row in tables.jobs()] == [kept.id]
        assert [job.id for job in (await queue.claim(queues=["default"], worker_id="w", limit=9)).jobs] == [kept.id]
        assert (await work.aenqueue(n=1)).deduped is False

    async def test_a_running_job_is_refused_and_no_column_changes(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work
    ) -> None:
        job_id = await _in_state(tables, clock, work, "running")
        before = tables.jobs()
        with pytest.raises(xjobs.JobNotRemovable) as caught:
            await queue.remove(job_id)
        assert (caught.value.code, caught.value.id, caught.value.state) == ("X_JOB_NOT_REMOVABLE", job_id, "running")
        assert tables.jobs() == before

    async def test_an_unknown_job_is_refused(self, queue: xjobs.AsyncQueue, work: Work) -> None:
        made = await work.aenqueue(n=1)
        await queue.remove(made.id)
        with pytest.raises(xjobs.JobNotFound) as caught:
            await queue.remove(made.id)
        assert (caught.value.code, caught.value.id) == ("X_JOB_NOT_FOUND", made.id)

    async def test_its_id_may_be_given_again(self, queue: xjobs.AsyncQueue, work: Work) -> None:
        given = work.using(id=UUID(int=7))
        await given.aenqueue(n=1)
        await queue.remove(UUID(int=7))
        assert await given.aenqueue(n=2) == (UUID(int=7), (await _row(queue, UUID(int=7))).run_id, False)
        (job,) = (await queue.claim(queues=["default"], worker_id="w", limit=9)).jobs
        assert (job.input, job.claims) == ({"n": 2}, 1)


@pytest.mark.parametrize("verb", ["cancel", "requeue", "promote", "remove"])
@pytest.mark.parametrize("wrong", ["", "x", str(UUID(int=0xA << 100)).upper(), 4, None])
async def test_what_is_no_id_is_refused(queue: xjobs.AsyncQueue, verb: str, wrong: Any) -> None:
    with pytest.raises(xjobs.IdInvalid) as caught:
        await getattr(queue, verb)(wrong)
    assert caught.value.code == "X_ID_INVALID"


@pytest.mark.parametrize("verb", ["cancel", "requeue", "promote"])
async def test_a_job_of_a_state_that_this_version_does_not_know_is_left_as_it_is(
    queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work, verb: str
) -> None:
    job_id = await _in_state(tables, clock, work, "archived", run_at=clock.now + HOUR)
    before = tables.jobs()
    with pytest.raises((xjobs.JobNotCancellable, xjobs.JobNotRequeueable, xjobs.JobNotPromotable)) as caught:
        await getattr(queue, verb)(job_id)
    assert caught.value.state == "archived"
    assert tables.jobs() == before


async def _made(queue: xjobs.AsyncQueue, tables: Tables, work: Work, verb: str, count: int) -> list[UUID]:
    """Jobs that a verb moves, by one call of each column change."""
    later = work.using(delay=HOUR) if verb == "promote_many" else work
    answers = await queue.enqueue_many(later.call(n=n) for n in range(count))
    ids = [answer.id for answer in answers]
    if verb in ("requeue_many", "remove_many"):
        jobs = (await queue.claim(queues=["default"], worker_id="w", limit=count)).jobs
        if verb == "remove_many":
            await queue.ack([xjobs.Ack(job) for job in jobs], worker_id="w")
        else:
            await queue.nack([xjobs.Nack(job, dead_letter=True) for job in jobs], worker_id="w")
    return ids


def _left(tables: Tables, verb: str) -> list[UUID]:
    """The jobs that a verb has not moved yet, by id."""
    return [row["id"] for row in tables.jobs() if row["state"] == MOVABLE[verb]]


class TestMany:
    @pytest.mark.parametrize("verb", VERBS)
    async def test_a_call_moves_a_thousand_and_calling_until_nothing_remains_ends(
        self, queue: xjobs.AsyncQueue, tables: Tables, work: Work, verb: str
    ) -> None:
        ids = await _made(queue, tables, work, verb, 1_003)
        act: Verb = getattr(queue, verb)
        assert await act(state=MOVABLE[verb]) == (1_000, 3)
        assert _left(tables, verb) == ids[1_000:]
        assert await act(state=MOVABLE[verb]) == (3, 0)
        assert await act(state=MOVABLE[verb]) == (0, 0)
        assert _left(tables, verb) == []

    @pytest.mark.parametrize("verb", VERBS)
    async def test_the_oldest_go_first_and_equal_instants_by_id(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work, verb: str
    ) -> None:
        ids = await _made(queue, tables, work, verb, 4)
        # The last one enqueued is the oldest now, and the second the youngest.
        for at, minutes in [(3, -2), (1, 2)]:
            tables.change(ids[at], created_at=clock.now + timedelta(minutes=minutes))
        act: Verb = getattr(queue, verb)
        for left in ([0, 1, 2], [1, 2], [1], []):
            assert await act(state=MOVABLE[verb], limit=1) == (1, len(left))
            assert _left(tables, verb) == [ids[at] for at in left]

    @pytest.mark.parametrize("verb", VERBS)
    async def test_filters_narrow_one_another(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work, verb: str
    ) -> None:
        @xjobs.job(key="{n}", queue="mail")
        def other(n: int) -> None: ...

        state, act = MOVABLE[verb], getattr(queue, verb)
        columns = {"run_at": clock.now + HOUR} if verb == "promote_many" else {}
        made = {
            "w": await work.aenqueue(n=1),
            "wm": await work.using(queue="mail").aenqueue(n=2),
            "wt": await work.using(tenant="t").aenqueue(n=3),
            "o": await other.aenqueue(n=4),
            "ot": await other.using(tenant="t").aenqueue(n=5),
            "off": await work.aenqueue(n=6),
        }
        for name, answer in made.items():
            tables.change(answer.id, state="suspended" if name == "off" else state, **columns)

        def left() -> set[str]:
            ids = _left(tables, verb)
            return {name for name, answer in made.items() if answer.id in ids}

        for nothing in (
            {"queue": "Mail"},
            {"job": "nobody"},
            {"tenant": "T"},
            {"job": work, "queue": "mail", "tenant": "t"},
        ):
            assert await act(state=state, **nothing) == (0, 0)
        assert left() == {"w", "wm", "wt", "o", "ot"}
        assert await act(state=state, job=other, tenant="t") == (1, 0)
        assert left() == {"w", "wm", "wt", "o"}
        assert await act(state=state, queue="mail", limit=1) == (1, 1)
        assert left() == {"w", "wt", "o"}
        assert await act(state=state, job="work", tenant="t") == (1, 0)
        assert await act(state=state, job=work.using(queue="anything")) == (1, 0)
        assert left() == {"o"}
        assert await act(state=state) == (1, 0)
        assert (await _row(queue, made["off"].id)).state == "suspended"

    @pytest.mark.parametrize("verb", VERBS)
    async def test_a_limit_of_zero_tells_how_many_there_are(
        self, queue: xjobs.AsyncQueue, tables: Tables, work: Work, verb: str
    ) -> None:
        await _made(queue, tables, work, verb, 2)
        before = tables.jobs()
        assert await getattr(queue, verb)(state=MOVABLE[verb], limit=0) == (0, 2)
        assert tables.jobs() == before

    @pytest.mark.parametrize(
        ("verb", "state"),
        [
            *(("cancel_many", state) for state in (*FINISHED, "", "Ready")),
            *(("requeue_many", state) for state in (*LIVE, "archived")),
            *(("promote_many", state) for state in ALL if state not in ("ready", "delayed")),
            ("remove_many", "archived"),
        ],
    )
    async def test_a_state_that_the_verb_cannot_move_is_refused(
        self, queue: xjobs.AsyncQueue, tables: Tables, work: Work, verb: str, state: str
    ) -> None:
        await work.aenqueue(n=1)
        before = tables.jobs()
        with pytest.raises(xjobs.Invariant) as caught:
            await getattr(queue, verb)(state=state)
        assert caught.value.code == "X_INVARIANT"
        assert tables.jobs() == before

    async def test_running_jobs_are_not_removed(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work
    ) -> None:
        await _in_state(tables, clock, work, "running")
        before = tables.jobs()
        with pytest.raises(xjobs.JobNotRemovable) as caught:
            await queue.remove_many(state="running")
        assert (caught.value.code, caught.value.state) == ("X_JOB_NOT_REMOVABLE", "running")
        assert tables.jobs() == before

    @pytest.mark.parametrize("verb", VERBS)
    async def test_a_state_has_to_be_named(self, queue: xjobs.AsyncQueue, verb: str) -> None:
        with pytest.raises(TypeError, match="state"):
            await getattr(queue, verb)()

    @pytest.mark.parametrize("verb", VERBS)
    @pytest.mark.parametrize(
        "wrong", [{"limit": 1_001}, {"limit": -1}, {"limit": 1.0}, {"queue": ""}, {"job": "a\0"}, {"tenant": 3}]
    )
    async def test_another_argument_that_cannot_be_is_refused(
        self, queue: xjobs.AsyncQueue, tables: Tables, work: Work, verb: str, wrong: dict[str, Any]
    ) -> None:
        await _made(queue, tables, work, verb, 1)
        before = tables.jobs()
        with pytest.raises(xjobs.Invariant):
            await getattr(queue, verb)(state=MOVABLE[verb], **wrong)
        assert tables.jobs() == before

    @pytest.mark.parametrize("state", LIVE)
    async def test_every_live_state_is_cancelled_as_one_by_one(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work, state: str
    ) -> None:
        ids = [await _in_state(tables, clock, work, state, n=n) for n in range(3)]
        before = [await _row(queue, job_id) for job_id in ids]
        then = clock.advance(minutes=1)
        assert await queue.cancel_many(state=state, reason="all of them", limit=2) == (2, 1)
        moved = {
            "state": "cancelled",
            "visible_at": None,
            "claimed_by": None,
            "updated_at": then,
            "last_error": "all of them",
        }
        assert [await _row(queue, job_id) for job_id in ids] == [
            *(row._replace(**moved) for row in before[:2]),
            before[2],
        ]
        assert await queue.cancel_many(state=state) == (1, 0)
        assert (await _row(queue, ids[2])).last_error == "ValueError: before"

    @pytest.mark.parametrize("state", FINISHED)
    async def test_every_finished_state_is_requeued_as_one_by_one(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work, state: str
    ) -> None:
        job_id = await _in_state(tables, clock, work, state, run_at=clock.now + HOUR)
        before = await _row(queue, job_id)
        then = clock.advance(minutes=1)
        assert await queue.requeue_many(state=state) == (1, 0)
        assert await _row(queue, job_id) == before._replace(state="ready", attempt=0, run_at=then, updated_at=then)

    @pytest.mark.parametrize("state", ["ready", "delayed"])
    async def test_waiting_jobs_are_promoted_as_one_by_one(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work, state: str
    ) -> None:
        job_id = await _in_state(tables, clock, work, state, run_at=clock.now + HOUR)
        before = await _row(queue, job_id)
        then = clock.advance(minutes=1)
        assert await queue.promote_many(state=state) == (1, 0)
        assert await _row(queue, job_id) == before._replace(state="ready", run_at=then, updated_at=then)

    @pytest.mark.parametrize("state", [state for state in ALL if state != "running"])
    async def test_every_state_but_running_is_removed(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work, state: str
    ) -> None:
        await _in_state(tables, clock, work, state)
        running = await _in_state(tables, clock, work, "running", n=2)
        assert await queue.remove_many(state=state) == (1, 0)
        assert [row["id"] for row in tables.jobs()] == [running]
        assert (await work.aenqueue(n=1)).deduped is False

    async def test_of_several_with_one_key_the_oldest_is_requeued_and_then_no_more(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work
    ) -> None:
        ids = [await _in_state(tables, clock, work, "dead") for _ in range(3)]
        tables.change(ids[1], created_at=clock.now - HOUR)
        assert await queue.requeue_many(state="dead") == (1, 0)
        assert [row["id"] for row in tables.jobs() if row["state"] == "ready"] == [ids[1]]
        assert await queue.requeue_many(state="dead") == (0, 0)

    async def test_siblings_of_a_key_are_told_apart_by_job_and_tenant(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work
    ) -> None:
        @xjobs.job(key="{n}")
        def other(n: int) -> None: ...

        for job in (work, other, work.using(tenant="t"), work.using(tenant="u"), work.using(key="2")):
            await _in_state(tables, clock, job, "failed")
        assert await queue.requeue_many(state="failed") == (5, 0)

    async def test_an_empty_tenant_and_none_are_one_namespace(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work
    ) -> None:
        ids = [await _in_state(tables, clock, work, "dead") for _ in range(2)]
        tables.change(ids[1], tenant_id="")
        assert await queue.requeue_many(state="dead") == (1, 0)
        with pytest.raises(xjobs.JobDuplicate) as caught:
            await queue.requeue(ids[1])
        assert caught.value.id == ids[0]

    async def test_held_jobs_in_front_of_a_free_one_use_up_no_bound(
        self, queue: xjobs.AsyncQueue, tables: Tables, work: Work
    ) -> None:
        ids = await _made(queue, tables, work, "requeue_many", 1_001)
        await queue.enqueue_many(work.call(n=n) for n in range(1_000))
        assert await queue.requeue_many(state="dead") == (1, 0)
        assert _left(tables, "requeue_many") == ids[:1_000]
        assert await queue.requeue_many(state="dead") == (0, 0)

    @pytest.mark.parametrize("state", ["ready", "delayed"])
    async def test_due_jobs_in_front_of_a_waiting_one_use_up_no_bound(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work, state: str
    ) -> None:
        await queue.enqueue_many(work.using(delay=1).call(n=n) for n in range(1_000))
        clock.advance(seconds=1)
        due = await work.aenqueue(n=1_000)
        waiting = await work.using(delay=HOUR).aenqueue(n=1_001)
        for made in (due, waiting):
            tables.change(made.id, state=state)
        then = clock.advance(minutes=1)
        assert await queue.promote_many(state=state) == (1, 0)
        row = await _row(queue, waiting.id)
        assert (row.state, row.run_at, row.updated_at) == ("ready", then, then)
        assert [row["id"] for row in tables.jobs() if row["updated_at"] == then] == [waiting.id]

    async def test_suspended_jobs_are_not_promoted(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work
    ) -> None:
        await _in_state(tables, clock, work, "suspended", run_at=clock.now + HOUR)
        before = tables.jobs()
        for state in ("ready", "delayed"):
            assert await queue.promote_many(state=state) == (0, 0)
        assert tables.jobs() == before


class TestOtherTransactions:
    async def test_remove_many_passes_over_a_row_that_another_one_holds(
        self, store: Store, queue: xjobs.AsyncQueue, tables: Tables, work: Work
    ) -> None:
        ids = await _made(queue, tables, work, "remove_many", 3)
        other, asking = await store.begin(), await store.begin()
        await other.queue.requeue(ids[0])
        assert await asking.queue.remove_many(state="done") == (2, 1)
        await asking.commit()
        await other.rollback()
        assert [row["id"] for row in tables.jobs()] == ids[:1]
        assert await queue.remove_many(state="done") == (1, 0)

    @pytest.mark.parametrize("verb", ["cancel_many", "requeue_many", "promote_many"])
    async def test_the_other_bulk_verbs_wait_for_it_and_change_nothing(
        self, store: Store, queue: xjobs.AsyncQueue, tables: Tables, work: Work, verb: str
    ) -> None:
        ids = await _made(queue, tables, work, verb, 3)
        before = tables.jobs()
        other, asking = await store.begin(), await store.begin()
        await other.queue.remove(ids[1])
        with pytest.raises(BLOCKED):
            await getattr(asking.queue, verb)(state=MOVABLE[verb])
        await asking.rollback()
        assert tables.jobs() == before
        await other.commit()
        assert await getattr(queue, verb)(state=MOVABLE[verb]) == (2, 0)

    @pytest.mark.parametrize("many", [False, True])
    async def test_a_requeue_waits_for_a_key_that_is_not_committed(
        self, store: Store, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work, many: bool
    ) -> None:
        dead = await _in_state(tables, clock, work, "dead")
        before = tables.jobs()
        other, asking = await store.begin(), await store.begin()
        await other.queue.enqueue(work.call(n=1))
        with pytest.raises(BLOCKED):
            await (asking.queue.requeue_many(state="dead") if many else asking.queue.requeue(dead))
        await asking.rollback()
        await other.rollback()
        assert tables.jobs() == before
        assert (await queue.requeue(dead)).state == "ready"

    @pytest.mark.parametrize("verb", ["cancel", "requeue", "promote", "remove"])
    async def test_what_was_rolled_back_never_was(
        self, store: Store, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work, verb: str
    ) -> None:
        state = {"requeue": "dead", "promote": "delayed"}.get(verb, "ready")
        job_id = await _in_state(tables, clock, work, state, run_at=clock.now + HOUR)
        before = tables.jobs()
        for _ in range(2):
            other = await store.begin()
            await getattr(other.queue, verb)(job_id)
            assert tables.jobs() == before
            await other.rollback()
            assert tables.jobs() == before
        await getattr(queue, verb)(job_id)
        assert tables.jobs() != before


class TestSteps:
    """Only Postgres has them yet."""

    @pytest.fixture
    def queue(self, postgres: PostgresStore) -> xjobs.AsyncQueue:
        return queue_on(postgres.driver)

    @pytest.fixture
    def job(self) -> Work:
        @xjobs.job(key="{n}")
        def job(n: int) -> None: ...

        return job

    def _steps(self, postgres: PostgresStore) -> list[tuple[UUID, str]]:
        return postgres.control.execute("select run_id, name from x_job_steps order by 1, 2").fetchall()

    def _add(self, postgres: PostgresStore, run_id: UUID, *names: str) -> None:
        for name in names:
            postgres.control.execute(
                "insert into x_job_steps (run_id, name, status) values (%s, %s, 'completed')", (run_id, name)
            )

    @pytest.mark.parametrize("many", [False, True])
    async def test_the_steps_of_a_run_go_with_its_last_row(
        self, postgres: PostgresStore, queue: xjobs.AsyncQueue, job: Work, many: bool
    ) -> None:
        first = await queue.enqueue(job.using(queue="a").call(n=1))
        second = await queue.enqueue(job.using(queue="b", run_id=first.run_id).call(n=2))
        stranger = await queue.enqueue(job.using(queue="c").call(n=3))
        self._add(postgres, first.run_id, "one", "two")
        self._add(postgres, stranger.run_id, "one")

        async def remove(made: xjobs.Enqueued, queue_name: str) -> None:
            if many:
                assert await queue.remove_many(state="ready", queue=queue_name) == (1, 0)
            else:
                await queue.remove(made.id)

        of_stranger = [(stranger.run_id, "one")]
        await remove(first, "a")
        assert self._steps(postgres) == sorted([(first.run_id, "one"), (first.run_id, "two"), *of_stranger])
        await remove(second, "b")
        assert self._steps(postgres) == of_stranger

    async def test_two_rows_of_one_run_that_go_together_take_its_steps(
        self, postgres: PostgresStore, queue: xjobs.AsyncQueue, job: Work
    ) -> None:
        first = await queue.enqueue(job.call(n=1))
        await queue.enqueue(job.using(run_id=first.run_id).call(n=2))
        self._add(postgres, first.run_id, "one")
        assert await queue.remove_many(state="ready") == (2, 0)
        assert self._steps(postgres) == []

    @pytest.mark.parametrize("verb", ["requeue", "remove"])
    async def test_a_refusal_keeps_them(
        self, postgres: PostgresStore, queue: xjobs.AsyncQueue, job: Work, verb: str
    ) -> None:
        made = await queue.enqueue(job.call(n=1))
        await queue.claim(queues=["default"], worker_id="w")
        self._add(postgres, made.run_id, "one")
        with pytest.raises((xjobs.JobNotRequeueable, xjobs.JobNotRemovable)):
            await getattr(queue, verb)(made.id)
        assert self._steps(postgres) == [(made.run_id, "one")]

    async def test_a_requeue_keeps_them(self, postgres: PostgresStore, queue: xjobs.AsyncQueue, job: Work) -> None:
        made = await queue.enqueue(job.call(n=1))
        self._add(postgres, made.run_id, "one")
        await queue.cancel(made.id)
        assert (await queue.requeue(made.id)).run_id == made.run_id
        assert self._steps(postgres) == [(made.run_id, "one")]

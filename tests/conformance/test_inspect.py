"""Reading jobs: one by its id, and pages of the newest."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

import xjobs
from conformance.fixtures import Work
from conformance.stores import Tables
from pytest_xjobs.clock import Clock
from xjobs.operations import inspect


class TestOne:
    async def test_an_id_may_be_given_as_text(self, queue: xjobs.AsyncQueue, work: Work) -> None:
        made = await work.aenqueue(n=1)
        row = await queue.job(made.id)
        assert row is not None
        assert await queue.job(str(made.id)) == row
        assert row.id == made.id

    async def test_an_unknown_id_is_none(self, queue: xjobs.AsyncQueue) -> None:
        assert await queue.job(uuid4()) is None

    @pytest.mark.parametrize("wrong", ["", "x", str(UUID(int=0xA << 100)).upper(), 4, None])
    async def test_what_is_no_id_is_refused(self, queue: xjobs.AsyncQueue, wrong: Any) -> None:
        with pytest.raises(xjobs.IdInvalid):
            await queue.job(wrong)

    async def test_a_state_of_another_version_is_reported(
        self, queue: xjobs.AsyncQueue, tables: Tables, work: Work
    ) -> None:
        made, other = [await work.aenqueue(n=n) for n in (1, 2)]
        tables.change(made.id, state="archived")
        with pytest.raises(xjobs.RowStateUnknown, match="archived") as caught:
            await queue.job(made.id)
        assert (caught.value.code, caught.value.state) == ("X_JOB_ROW_STATUS_UNKNOWN", "archived")
        assert await queue.job(other.id) is not None
        assert [job.id for job in (await queue.claim(queues=["default"], worker_id="w", limit=9)).jobs] == [other.id]

    async def test_progress_is_read_as_json_values(self, queue: xjobs.AsyncQueue, tables: Tables, work: Work) -> None:
        made = await work.aenqueue(n=1)
        progress = {"done": 1, "total": 4, "note": "ä"}
        tables.change(made.id, progress=progress)
        row = await queue.job(made.id)
        assert row is not None
        assert row.progress == progress


class TestMany:
    async def test_the_newest_come_first_and_equal_instants_by_id(
        self, queue: xjobs.AsyncQueue, clock: Clock, work: Work
    ) -> None:
        start = clock.freeze()
        await work.aenqueue(n=1)
        clock.move_to(start - timedelta(days=1))
        await queue.enqueue_many(work.call(n=n) for n in (2, 3))
        clock.move_to(start + timedelta(days=1))
        await work.aenqueue(n=4)
        assert [row.input["n"] for row in await queue.jobs()] == [4, 1, 3, 2]

    async def test_filters_narrow_one_another(self, queue: xjobs.AsyncQueue, tables: Tables, work: Work) -> None:
        @xjobs.job(key="{n}", queue="mail")
        def other(n: int) -> None: ...

        made = {
            "w": await work.aenqueue(n=1),
            "wm": await work.using(queue="mail").aenqueue(n=2),
            "o": await other.aenqueue(n=3),
            "od": await other.aenqueue(n=4),
        }
        tables.change(made["od"].id, state="done")

        async def found(*args: Any, **filters: Any) -> set[str]:
            ids = {row.id for row in await queue.jobs(*args, **filters)}
            return {name for name, answer in made.items() if answer.id in ids}

        assert await found() == {"w", "wm", "o", "od"}
        assert await found(work) == await found("work") == {"w", "wm"}
        assert await found(work.using(queue="x")) == {"w", "wm"}
        assert await found(queue="mail") == {"wm", "o", "od"}
        assert await found(state="done") == {"od"}
        assert await found(other, queue="mail", state="ready") == {"o"}
        assert await found("nobody") == await found(queue="Mail") == await found(state="cancelled") == set()

    @pytest.mark.parametrize(("limit", "count"), [(0, 0), (1, 1), (200, 200), (None, 100)])
    async def test_a_page_is_bounded(self, queue: xjobs.AsyncQueue, work: Work, limit: int | None, count: int) -> None:
        await queue.enqueue_many(work.call(n=n) for n in range(210))
        rows = await queue.jobs() if limit is None else await queue.jobs(limit=limit)
        assert [row.input["n"] for row in rows] == list(range(209, 209 - count, -1))

    async def test_a_page_over_the_bound_is_refused(self, queue: xjobs.AsyncQueue) -> None:
        with pytest.raises(xjobs.PageInvalid) as caught:
            await queue.jobs(limit=201)
        assert caught.value.code == "X_JOB_PAGE_INVALID"

    @pytest.mark.parametrize(
        "filters",
        [
            *({"limit": limit} for limit in (-1, 1.0, True)),
            *({"state": state} for state in ("Ready", "")),
            *({"queue": queue} for queue in ("", "a\0")),
            *({"job": job} for job in ("", "\ud800")),
        ],
    )
    async def test_a_filter_that_cannot_be_is_refused(self, queue: xjobs.AsyncQueue, filters: dict[str, Any]) -> None:
        with pytest.raises(xjobs.Invariant):
            await queue.jobs(**filters)


class TestWaiting:
    async def test_live_jobs_come_by_the_instant_at_which_a_claim_could_take_them(
        self, queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, work: Work
    ) -> None:
        now = clock.freeze()
        await work.using(run_at=now - timedelta(hours=1)).aenqueue(n=0)
        await queue.claim(queues=["default"], worker_id="w", lease=20)
        for n, delay in [(1, 30), (2, 10), (3, 10)]:
            await work.using(delay=delay).aenqueue(n=n)
        done = await work.aenqueue(n=4)
        tables.change(done.id, state="done")
        tables.pause("mail")
        await work.using(queue="mail", delay=-5).aenqueue(n=5)
        waiting = await inspect.waiting(queue.driver)
        assert [(job.state, (job.due_at - now).total_seconds(), job.due, job.paused, job.total) for job in waiting] == [
            ("delayed", 10, False, False, 5),
            ("delayed", 10, False, False, 5),
            ("running", 20, False, False, 5),
            ("delayed", 30, False, False, 5),
            ("ready", -5, True, True, 5),
        ]
        assert waiting[0].id < waiting[1].id
        clock.advance(seconds=20)
        assert [job.due for job in await inspect.waiting(queue.driver)] == [True, True, True, False, True]
        assert await inspect.waiting(queue.driver, 2) == (await inspect.waiting(queue.driver))[:2]

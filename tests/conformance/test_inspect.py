"""Reading jobs: one by its id, and pages of the newest."""

from __future__ import annotations

from datetime import datetime, timedelta
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
            *({"tenant": tenant} for tenant in ("", 3)),
            *({"id_prefix": prefix} for prefix in ("", "a\0", 3)),
            *({bound: datetime(2024, 1, 1)} for bound in ("created_from", "created_to")),  # noqa: DTZ001
            *({"job": job} for job in ("", "\ud800")),
        ],
    )
    async def test_a_filter_that_cannot_be_is_refused(self, queue: xjobs.AsyncQueue, filters: dict[str, Any]) -> None:
        with pytest.raises(xjobs.Invariant):
            await queue.jobs(**filters)


class TestFilters:
    async def test_of_one_tenant(self, queue: xjobs.AsyncQueue, work: Work) -> None:
        for n, tenant in enumerate(["a", "b", None]):
            await work.using(tenant=tenant).aenqueue(n=n)
        assert [row.input["n"] for row in await queue.jobs(tenant="b")] == [1]
        assert await queue.jobs(tenant="B") == []

    async def test_by_the_beginning_of_the_id_as_text_and_never_as_a_pattern(
        self, queue: xjobs.AsyncQueue, work: Work
    ) -> None:
        ids = [UUID(f"{start}-0000-7000-8000-000000000000") for start in ("abc00000", "abcd0000", "1bc00000")]
        for n, job_id in enumerate(ids):
            await work.using(id=job_id).aenqueue(n=n)

        async def found(prefix: str) -> set[int]:
            return {row.input["n"] for row in await queue.jobs(id_prefix=prefix)}

        assert await found("abc") == await found("ABC") == {0, 1}
        assert await found("abcd0000-") == await found(str(ids[1])) == {1}
        for pattern in ("%", "_", "_bc", "abc%", "%bc", ".", "abc.", "[a]", "^a", "\\", "bc0"):
            assert await found(pattern) == set(), pattern

    async def test_by_the_instant_of_the_enqueue_from_the_first_and_before_the_last(
        self, queue: xjobs.AsyncQueue, clock: Clock, work: Work
    ) -> None:
        start = clock.freeze()
        for n in range(4):
            clock.move_to(start + timedelta(microseconds=n))
            await work.aenqueue(n=n)

        async def found(**bounds: int) -> list[int]:
            instants = {name: start + timedelta(microseconds=at) for name, at in bounds.items()}
            return [row.input["n"] for row in await queue.jobs(**instants)]  # type: ignore[arg-type]

        assert await found(created_from=1) == [3, 2, 1]
        assert await found(created_to=2) == [1, 0]
        assert await found(created_from=1, created_to=3) == [2, 1]
        assert await found(created_from=2, created_to=2) == []


class TestPages:
    """A walk over many rows by keyset, in which nothing is skipped or repeated."""

    @pytest.fixture
    async def rows(self, queue: xjobs.AsyncQueue, clock: Clock, work: Work) -> list[xjobs.JobRow]:
        """1,000 rows, newest first, in runs of equal instants that pages cut in two."""
        start = clock.freeze()
        for at in range(10):
            clock.move_to(start + timedelta(microseconds=at))
            await queue.enqueue_many(work.call(n=at * 100 + n) for n in range(100))
        clock.advance(seconds=1)
        rows = await queue.jobs(limit=200)
        while len(rows) < 1_000:
            rows += await queue.jobs(after=rows[-1], limit=200)
        return rows

    async def test_the_rows_are_all_there_newest_first(self, rows: list[xjobs.JobRow]) -> None:
        assert [row.input["n"] for row in rows] == list(range(999, -1, -1))
        assert len({row.created_at for row in rows}) == 10

    @pytest.mark.parametrize("size", [7, 50, 200])
    async def test_a_walk_to_older_rows_sees_each_once_while_jobs_are_enqueued(
        self, queue: xjobs.AsyncQueue, work: Work, rows: list[xjobs.JobRow], size: int
    ) -> None:
        seen, page, new = [], await queue.jobs(limit=size), 1_000
        while True:
            seen += page
            await queue.enqueue_many(work.call(n=new + n) for n in range(3))
            new += 3
            if len(page) < size:
                break
            page = await queue.jobs(after=page[-1].cursor, limit=size)
        assert seen == rows

    @pytest.mark.parametrize("size", [7, 50, 200])
    async def test_a_walk_to_newer_rows_sees_each_once_and_then_what_was_enqueued(
        self, queue: xjobs.AsyncQueue, work: Work, rows: list[xjobs.JobRow], size: int
    ) -> None:
        seen, page = [rows[-1]], rows[-1:]
        (new,) = await queue.enqueue_many([work.call(n=1_000)])
        while page := await queue.jobs(before=page[0].cursor, limit=size):
            assert page == sorted(page, key=lambda row: (row.created_at, row.id), reverse=True)
            seen = [*page, *seen]
        assert seen[1:] == rows
        assert seen[0].id == new.id

    async def test_the_rows_nearest_to_the_cursor_are_answered(
        self, queue: xjobs.AsyncQueue, rows: list[xjobs.JobRow]
    ) -> None:
        assert await queue.jobs(before=rows[150], limit=3) == rows[147:150]
        assert await queue.jobs(after=rows[150], limit=3) == rows[151:154]
        assert await queue.jobs(before=rows[0]) == await queue.jobs(after=rows[-1]) == []
        assert await queue.jobs(before=rows[150], limit=0) == await queue.jobs(after=rows[150], limit=0) == []

    async def test_a_row_that_is_gone_still_marks_its_place(
        self, queue: xjobs.AsyncQueue, rows: list[xjobs.JobRow]
    ) -> None:
        """In the midst of a run of equal instants."""
        await queue.remove(rows[150].id)
        assert await queue.jobs(after=rows[150].cursor, limit=3) == rows[151:154]
        assert await queue.jobs(before=rows[150].cursor, limit=3) == rows[147:150]

    async def test_filters_hold_on_every_page(
        self, queue: xjobs.AsyncQueue, tables: Tables, rows: list[xjobs.JobRow]
    ) -> None:
        for row in rows[::10]:
            tables.change(row.id, state="done")
        seen, page = [], await queue.jobs(state="done", limit=7)
        while page:
            seen += page
            page = await queue.jobs(state="done", after=page[-1], limit=7)
        assert [row.id for row in seen] == [row.id for row in rows[::10]]
        assert [row.id for row in await queue.jobs(state="done", before=rows[35], limit=2)] == [
            rows[20].id,
            rows[30].id,
        ]

    async def test_a_cursor_is_its_row_and_takes_an_id_in_capitals(
        self, queue: xjobs.AsyncQueue, rows: list[xjobs.JobRow]
    ) -> None:
        cursor = rows[150].cursor
        assert cursor.endswith(f":{rows[150].id}")
        assert cursor.upper() != cursor
        assert await queue.jobs(after=cursor.upper(), limit=3) == await queue.jobs(after=rows[150], limit=3)
        assert await queue.jobs(before=cursor.upper(), limit=3) == await queue.jobs(before=rows[150], limit=3)

    async def test_a_cursor_that_names_no_row_is_a_place_like_any_other(
        self, queue: xjobs.AsyncQueue, rows: list[xjobs.JobRow]
    ) -> None:
        instant = rows[0].cursor.split(":")[0]
        last, first = f"{instant}:{UUID(int=0)}", f"{instant}:{UUID(int=2**128 - 1)}"
        assert await queue.jobs(after=first, limit=200) == rows[:200]
        assert await queue.jobs(after=last, limit=200) == rows[100:300]
        assert await queue.jobs(before=last, limit=200) == rows[:100]
        assert await queue.jobs(before=f"-1:{UUID(int=0)}", limit=200) == rows[800:]

    @pytest.mark.parametrize("side", ["after", "before"])
    @pytest.mark.parametrize(
        "cursor",
        [
            "",
            "secret",
            "secret:01890a5d-ac96-774b-bcce-b302099a8057",
            "1:secret",
            "1:01890a5dac96774bbcceb302099a8057",
            "1:{01890a5d-ac96-774b-bcce-b302099a8057}",
            "1.5:01890a5d-ac96-774b-bcce-b302099a8057",
            " 1:01890a5d-ac96-774b-bcce-b302099a8057",
            "1:01890a5d-ac96-774b-bcce-b302099a8057\n",
            "1:01890a5d-ac96-774b-bcce-b302099a805g",
            "999999999999999999:01890a5d-ac96-774b-bcce-b302099a8057",
            "-999999999999999999:01890a5d-ac96-774b-bcce-b302099a8057",
            "9999999999999999999:01890a5d-ac96-774b-bcce-b302099a8057",
            7,
            UUID(int=7),
            (1, UUID(int=7)),
        ],
    )
    async def test_what_is_no_cursor_is_refused_by_its_side_and_not_repeated(
        self, queue: xjobs.AsyncQueue, side: str, cursor: Any
    ) -> None:
        with pytest.raises(xjobs.PageInvalid) as caught:
            await queue.jobs(**{side: cursor})
        told = str(caught.value)
        assert caught.value.code == "X_JOB_PAGE_INVALID"
        assert f"{side}=" in told
        assert not [part for part in ("secret", "01890a5d", "99999", str(cursor) or "''") if part in told]

    async def test_both_cursors_are_refused(self, queue: xjobs.AsyncQueue, work: Work) -> None:
        made = await work.aenqueue(n=1)
        row = await queue.job(made.id)
        assert row is not None
        with pytest.raises(xjobs.Invariant) as caught:
            await queue.jobs(after=row, before=row)
        assert caught.value.code == "X_INVARIANT"


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

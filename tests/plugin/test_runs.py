"""Durable runs under test: crashes at points, what ran, jumping to what is due, long spans of time in one test."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from inner_run import Inner

import xjobs
from pytest_xjobs import XjobsClock, XjobsFaults, XjobsQueue
from xjobs import NO_KEY, AsyncContext, Context, job

START = datetime(2031, 1, 1, 12, tzinfo=UTC)
NAMES = ["a", "b", "c", "d", "e"]


@pytest.fixture(params=["def", "async def"])
def five(request: pytest.FixtureRequest, xjobs_queue: XjobsQueue) -> tuple[Any, list[str]]:
    """A job of five steps and what they did."""
    did: list[str] = []

    @job(key=NO_KEY, name="five", retry=9)
    def plain(ctx: Context) -> None:
        for name in NAMES:
            ctx.step.run(name, did.append, name)

    def record(name: str) -> None:
        did.append(name)

    if request.param == "def":
        return plain, did

    @job(key=NO_KEY, name="five async", retry=9)
    async def awaited(ctx: AsyncContext) -> None:
        for name in NAMES:
            await ctx.step.run(name, record, name)

    return awaited, did


class TestCrash:
    def test_after_every_step_in_turn(
        self, xjobs_queue: XjobsQueue, xjobs_faults: XjobsFaults, five: tuple[Any, list[str]]
    ) -> None:
        work, did = five
        for name in NAMES:
            xjobs_faults.crash_at("after_step", job=work, step=name)
        made = work.enqueue()
        report = xjobs_queue.drain(advance=True)
        assert [run.outcome for run in report.runs] == ["crashed"] * 5 + ["completed"]
        assert did == NAMES
        xjobs_queue.assert_state(made, "done")
        assert [record.status for record in xjobs_queue.steps(made.run_id)] == ["completed"] * 5

    def test_between_the_effect_of_a_step_and_its_record(
        self, xjobs_queue: XjobsQueue, xjobs_faults: XjobsFaults, five: tuple[Any, list[str]]
    ) -> None:
        work, did = five
        for name in NAMES:
            xjobs_faults.crash_at("before_record", job=work, step=name)
        work.enqueue()
        xjobs_queue.drain(advance=True)
        assert did == [name for name in NAMES for _ in range(2)]

    @pytest.mark.parametrize("point", ["claimed", "before_body", "after_body", "before_settle", "after_settle"])
    def test_at_each_other_point(
        self, xjobs_queue: XjobsQueue, xjobs_faults: XjobsFaults, five: tuple[Any, list[str]], point: str
    ) -> None:
        work, did = five
        xjobs_faults.crash_at(point, job=work)
        made = work.enqueue()
        report = xjobs_queue.drain()
        assert did == (NAMES if point.startswith("after") or point == "before_settle" else [])
        if point == "after_settle":
            xjobs_queue.assert_state(made, "done")
            return
        (left,) = report.waiting
        assert (left.state, left.due) == ("running", False)
        xjobs_queue.drain(advance=True)
        assert did == NAMES
        assert xjobs_queue.assert_state(made, "done").attempt == 2

    def test_the_last_attempt_crashed_is_buried(self, xjobs_queue: XjobsQueue, xjobs_faults: XjobsFaults) -> None:
        @job(key=NO_KEY, retry=2)
        def poison() -> None: ...

        xjobs_faults.crash_at("before_body", job="poison", times=2)
        made = poison.enqueue()
        report = xjobs_queue.drain(advance=True)
        assert [buried.id for buried in report.buried] == [made.id]
        xjobs_queue.assert_state(made, "dead")

    @pytest.mark.parametrize(
        ("point", "options"),
        [
            ("enqueued", {}),
            ("nowhere", {}),
            ("before_body", {"step": "a"}),
            ("after_step", {"times": 0}),
            ("after_step", {"job": ""}),
        ],
    )
    def test_what_cannot_be_is_refused(self, xjobs_faults: XjobsFaults, point: str, options: dict[str, Any]) -> None:
        with pytest.raises(xjobs.Invariant):
            xjobs_faults.crash_at(point, **options)


def test_a_crash_that_never_came_fails_the_test(inner: Inner) -> None:
    inner.file(
        """
        import xjobs

        def test_it(xjobs_queue, xjobs_faults):
            @xjobs.job(key=xjobs.NO_KEY)
            def work(ctx: xjobs.Context):
                ctx.step.run("charge", int)

            xjobs_faults.crash_at("after_step", job=work, step="chrage")
            work.enqueue()
            xjobs_queue.drain()
        """
    )
    result = inner.run()
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        ["*no job came to where it was to crash: crash_at('after_step', job='work', step='chrage')*"]
    )


class TestLongSpans:
    def test_a_month_a_week_and_six_days_in_one_test(
        self, xjobs_queue: XjobsQueue, xjobs_clock: XjobsClock, capsys: pytest.CaptureFixture[str]
    ) -> None:
        got: list[Any] = []

        @job(key=NO_KEY, retry=1)
        async def months(ctx: AsyncContext) -> None:
            await ctx.step.sleep("month", timedelta(days=30))
            got.append(await ctx.step.wait_for_event("never", "nothing", timeout=timedelta(days=7)))
            got.append(await ctx.step.wait_for_event("answer", "paid", match="7", timeout=timedelta(days=7)))

        began = time.perf_counter()
        xjobs_clock.freeze(START)
        months.enqueue()
        xjobs_queue.drain(until=timedelta(days=37))
        assert got == [None]
        xjobs_clock.advance(days=6)
        event = xjobs_queue.publish("paid", {"cents": 900}, correlation_key="7")
        report = xjobs_queue.drain(advance=True)
        took = time.perf_counter() - began
        assert (got[0], got[-1], report.reason) == (None, event, "idle")
        assert xjobs_clock.now == START + timedelta(days=43)
        run = xjobs_queue.assert_ran(months, steps=["month", "never", "answer"])
        assert run.attempt == 1
        with capsys.disabled():
            print(f"\n43 days on {xjobs_queue.backend} took {took * 1000:.0f} ms")

    def test_advancing_to_what_is_due_next(self, xjobs_queue: XjobsQueue, xjobs_clock: XjobsClock) -> None:
        @job(key="{n}", retry=xjobs.Retry(attempts=2, delay=3600, jitter=False))
        def work(ctx: Context, n: int) -> None:
            if n == 1 and ctx.attempt == 1:
                raise OSError
            if n == 2:
                ctx.step.sleep("s", timedelta(days=1))
            if n == 3:
                ctx.step.wait_for_event("w", "paid", timeout=timedelta(days=7))

        xjobs_clock.freeze(START)
        assert xjobs_clock.advance_to_next_due() is None
        work.using(delay=60).enqueue(n=1)
        work.enqueue(n=2)
        work.enqueue(n=3)
        assert xjobs_clock.advance_to_next_due() == START  # due already
        instants = []
        while (due := xjobs_clock.advance_to_next_due()) is not None:
            xjobs_queue.drain(errors="collect")
            instants.append(due - START)
        minute = timedelta(minutes=1)
        assert instants == [
            timedelta(0),
            minute,
            minute + timedelta(hours=1),
            timedelta(days=1),
            timedelta(days=7),
        ]

    def test_an_event_makes_its_run_due(self, xjobs_queue: XjobsQueue, xjobs_clock: XjobsClock) -> None:
        @job(key=NO_KEY)
        def waits(ctx: Context) -> None:
            ctx.step.wait_for_event("w", "paid", timeout=timedelta(days=7))

        xjobs_clock.freeze(START)
        waits.enqueue()
        xjobs_queue.drain()
        xjobs.publish("paid")
        assert xjobs_clock.advance_to_next_due() == START


class TestAssertRan:
    @pytest.fixture
    def work(self, xjobs_queue: XjobsQueue) -> Any:
        @job(key="{n}", retry=xjobs.Retry(attempts=2, delay=0))
        def work(ctx: Context, n: int) -> None:
            ctx.step.run("first", int)
            ctx.step.run("second", lambda: 1 // (0 if n == 1 or ctx.attempt == 1 else 1))

        return work

    def test_it_answers_the_last_run(self, xjobs_queue: XjobsQueue, work: Any) -> None:
        work.enqueue(n=1)
        work.enqueue(n=2)
        xjobs_queue.drain(errors="collect")
        run = xjobs_queue.assert_ran(work.call(n=2), steps=["first", "second", "second"])
        assert run.attempt == 2
        assert xjobs_queue.assert_ran(work, input={"n": 1}, outcome="dead-lettered").attempt == 2
        runs = xjobs_queue.assert_ran(work, count=1)
        assert [each.job_id for each in runs] == [run.job_id]

    def test_it_remembers_runs_of_drains_that_raised(self, xjobs_queue: XjobsQueue, work: Any) -> None:
        work.enqueue(n=2)
        with pytest.raises(ZeroDivisionError):
            xjobs_queue.drain()
        xjobs_queue.assert_ran(work, outcome="retried")
        xjobs_queue.drain()
        xjobs_queue.assert_ran(work)

    @pytest.mark.parametrize(
        ("arguments", "lines"),
        [
            (
                {"steps": ["second"]},
                [
                    "no job work(...) ran to the outcome 'completed'",
                    "  ran: work(n=2) done, queue 'default', id *: attempt 1 retried, attempt 2 completed",
                    "    steps were ['first', 'second', 'second'], expected ['second']",
                ],
            ),
            (
                {"outcome": "dead-lettered", "input": {"n": 3}},
                [
                    "no job work(n=3, ...) ran to the outcome 'dead-lettered'",
                    "    input.n is 2, expected 3",
                    "    outcome is 'completed', expected 'dead-lettered'",
                ],
            ),
            ({"count": 2}, ["1 jobs work(...) ran, expected 2"]),
        ],
    )
    def test_its_message_shows_what_did_run(
        self, xjobs_queue: XjobsQueue, work: Any, arguments: dict[str, Any], lines: list[str]
    ) -> None:
        work.enqueue(n=2)
        xjobs_queue.drain(errors="collect")
        with pytest.raises(AssertionError) as caught:
            xjobs_queue.assert_ran(work, **arguments)
        pytest.LineMatcher(str(caught.value).splitlines()).fnmatch_lines([line.replace("[", "[[]") for line in lines])

    def test_nothing_ran(self, xjobs_queue: XjobsQueue, work: Any) -> None:
        with pytest.raises(AssertionError, match="no drain of this test has run any job"):
            xjobs_queue.assert_ran(work)


def test_a_failing_ending_hook_fails_the_drain(xjobs_queue: XjobsQueue) -> None:
    @job(key=NO_KEY)
    def work() -> None: ...

    @work.on_settled
    def notify(ending: xjobs.Ending) -> None:
        raise OSError("mail")

    made = work.enqueue()
    with pytest.raises(xjobs.OnSettledFailed):
        xjobs_queue.drain()
    xjobs_queue.assert_state(made, "done")
    work.enqueue()
    xjobs_queue.drain(errors="collect")


def test_a_body_reports_progress_to_the_test(xjobs_queue: XjobsQueue) -> None:
    @job(key=NO_KEY)
    def work(ctx: Context) -> None:
        ctx.progress(3, 7, "halfway")

    made = work.enqueue()
    xjobs_queue.drain()
    row = xjobs_queue.job(made.id)
    assert row is not None
    assert (row.progress["done"], row.progress["total"], row.progress["note"]) == (3, 7, "halfway")

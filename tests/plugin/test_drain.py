"""Draining: how bodies are called from blocking and async tests, where a drain ends, and what it says."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import re
import threading
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from inner_run import Inner

import xjobs
from pytest_xjobs.clock import Clock
from pytest_xjobs.drain import WrongColour
from pytest_xjobs.queue import XjobsQueue
from xjobs import NO_KEY, AsyncContext, Context, Retry, job

START = datetime(2031, 1, 1, 12, tzinfo=UTC)
SECOND, HOUR, DAY = timedelta(seconds=1), timedelta(hours=1), timedelta(days=1)
variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def outside() -> str:
    """What tests replace by monkeypatch."""
    return "real"


class Trouble(Exception):
    """An error of the app."""


def outcomes(report: xjobs.DrainReport) -> list[str]:
    return [run.outcome for run in report.runs]


# How bodies are called -----------------------------------------------------------------------------------------------


class TestBlockingTest:
    def test_a_def_body_runs_in_the_tests_own_thread_with_its_patches_and_a_context_of_its_own(
        self, xjobs_queue: XjobsQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[Any] = []

        @job(key=NO_KEY)
        def look() -> None:
            seen.extend([threading.get_ident(), outside(), variable.get()])
            variable.set("by the body")

        monkeypatch.setattr(f"{__name__}.outside", lambda: "patched")
        variable.set("by the test")
        look.enqueue()
        xjobs_queue.drain()
        assert seen == [threading.get_ident(), "patched", "unset"]
        assert variable.get() == "by the test"

    def test_an_async_body_runs_in_that_thread_too_and_sees_the_same(
        self, xjobs_queue: XjobsQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[Any] = []

        @job(key=NO_KEY)
        async def look() -> None:
            await asyncio.sleep(0)
            seen.extend([threading.get_ident(), outside(), variable.get()])
            variable.set("by the body")

        monkeypatch.setattr(f"{__name__}.outside", lambda: "patched")
        variable.set("by the test")
        look.enqueue()
        xjobs_queue.drain()
        assert seen == [threading.get_ident(), "patched", "unset"]
        assert variable.get() == "by the test"

    def test_async_bodies_of_one_drain_share_a_loop(self, xjobs_queue: XjobsQueue) -> None:
        kept: list[Any] = []

        @job(key="{number}")
        async def chain(number: int) -> None:
            if number == 1:
                kept.extend([asyncio.get_running_loop(), asyncio.Event(), asyncio.Queue()])
                # A task that outlives the body, as a client's background reader would.
                kept.append(asyncio.create_task(kept[2].get()))
                await chain.aenqueue(number=2)
                return
            assert asyncio.get_running_loop() is kept[0]
            kept[1].set()
            await kept[1].wait()
            kept[2].put_nowait("said")
            assert await kept[3] == "said"

        chain.enqueue(number=1)
        assert outcomes(xjobs_queue.drain()) == ["completed", "completed"]
        assert kept[0].is_closed()

    def test_each_drain_has_a_fresh_loop(self, xjobs_queue: XjobsQueue) -> None:
        loops: list[asyncio.AbstractEventLoop] = []

        @job(key=NO_KEY)
        async def look() -> None:
            loops.append(asyncio.get_running_loop())

        for _ in range(2):
            look.enqueue()
            xjobs_queue.drain()
        assert loops[0] is not loops[1]
        assert all(loop.is_closed() for loop in loops)

    def test_no_loop_is_made_for_def_bodies(self, xjobs_queue: XjobsQueue, monkeypatch: pytest.MonkeyPatch) -> None:
        @job(key=NO_KEY)
        def look() -> None:
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()

        monkeypatch.delattr(asyncio, "Runner")
        look.enqueue()
        xjobs_queue.drain()

    def test_bodies_of_both_kinds_may_enqueue_each_other(self, xjobs_queue: XjobsQueue) -> None:
        order: list[str] = []

        @job(key="{left}")
        def plain(left: int) -> None:
            order.append(f"plain {left}")
            coroutine.enqueue(left=left - 1)

        @job(key="{left}")
        async def coroutine(left: int) -> None:
            order.append(f"coroutine {left}")
            if left:
                # Both forms serve async bodies of a blocking test.
                plain.enqueue(left=left - 1) if left % 4 else await plain.aenqueue(left=left - 1)

        plain.enqueue(left=5)
        xjobs_queue.drain()
        assert order == ["plain 5", "coroutine 4", "plain 3", "coroutine 2", "plain 1", "coroutine 0"]

    def test_the_context_tells_about_the_attempt(self, xjobs_queue: XjobsQueue, xjobs_clock: Clock) -> None:
        seen: list[Context | AsyncContext] = []

        @job(key=NO_KEY, tenant="acme", retry=2)
        def plain(ctx: Context, number: int) -> None:
            seen.append(ctx)
            assert ctx.now() == START
            raise Trouble

        @job(key=NO_KEY)
        async def coroutine(ctx: AsyncContext) -> None:
            seen.append(ctx)

        xjobs_clock.freeze(START)
        first, second = plain.using(enqueued_by="ann").enqueue(number=1), coroutine.enqueue()
        xjobs_queue.drain(errors="collect")
        about, other = seen
        assert (about.job_id, about.run_id, about.attempt, about.max_attempts) == (first.id, first.run_id, 1, 2)
        assert (about.tenant, about.enqueued_by, about.final_attempt) == ("acme", "ann", False)
        assert (other.job_id, type(other)) == (second.id, AsyncContext)


class TestAsyncTest:
    async def test_an_async_body_runs_on_the_tests_own_loop(
        self, xjobs_queue: XjobsQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ready, seen = asyncio.Event(), []

        @job(key=NO_KEY)
        async def look() -> None:
            # Only on one loop does the test's event wake the body, and the body's the test.
            ready.set()
            await asyncio.sleep(0)
            seen.extend([asyncio.get_running_loop(), outside(), variable.get()])

        monkeypatch.setattr(f"{__name__}.outside", lambda: "patched")
        variable.set("by the test")
        await look.aenqueue()
        other = asyncio.create_task(ready.wait())
        await xjobs_queue.adrain()
        assert await other
        assert seen == [asyncio.get_running_loop(), "patched", "unset"]

    async def test_a_def_body_runs_in_a_thread_where_it_may_block(
        self, xjobs_queue: XjobsQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[Any] = []
        running, go_on = threading.Event(), threading.Event()

        @job(key=NO_KEY)
        def look() -> None:
            running.set()
            assert go_on.wait(10)
            seen.extend([threading.get_ident(), outside(), variable.get()])

        async def let_it_go_on() -> None:
            await asyncio.to_thread(running.wait, 10)
            go_on.set()

        monkeypatch.setattr(f"{__name__}.outside", lambda: "patched")
        variable.set("by the test")
        await look.aenqueue()
        await asyncio.gather(xjobs_queue.adrain(), let_it_go_on())
        assert seen[0] != threading.get_ident()
        assert seen[1:] == ["patched", "unset"]

    async def test_bodies_of_both_kinds_may_enqueue_each_other(self, xjobs_queue: XjobsQueue) -> None:
        order: list[str] = []

        @job(key="{left}")
        def plain(left: int) -> None:
            order.append(f"plain {left}")
            coroutine.enqueue(left=left - 1)

        @job(key="{left}")
        async def coroutine(left: int) -> None:
            order.append(f"coroutine {left}")
            if left:
                await plain.aenqueue(left=left - 1)

        await plain.aenqueue(left=3)
        report = await xjobs_queue.adrain()
        assert order == ["plain 3", "coroutine 2", "plain 1", "coroutine 0"]
        # Also from the thread the parent is known.
        assert [run.parent for run in report.runs] == [None, *(run.job_id for run in report.runs[:-1])]

    async def test_a_blocking_drain_is_refused_at_once(self, xjobs_queue: XjobsQueue) -> None:
        ran: list[int] = []

        @job(key=NO_KEY)
        def look() -> None:
            ran.append(1)

        answer = await look.aenqueue()
        for call in ("drain", "run_next"):
            with pytest.raises(WrongColour) as refused:
                getattr(xjobs_queue, call)()
            assert str(refused.value) == (
                f"{call}() was called on a running event loop, where an async def body could not be run:"
                f" await a{call}() instead"
            )
        assert ran == []
        xjobs_queue.assert_state(answer, "ready")

    async def test_arun_next(self, xjobs_queue: XjobsQueue) -> None:
        @job(key=NO_KEY)
        async def look() -> None: ...

        assert await xjobs_queue.arun_next() is None
        answer = await look.aenqueue()
        run = await xjobs_queue.arun_next()
        assert run is not None
        assert (run.job_id, run.outcome) == (answer.id, "completed")

    async def test_errors_and_moves_as_in_a_blocking_test(self, xjobs_queue: XjobsQueue, xjobs_clock: Clock) -> None:
        @job(key=NO_KEY, retry=Retry(attempts=2, delay=HOUR, jitter=False))
        async def fails() -> None:
            raise Trouble("again")

        xjobs_clock.freeze(START)
        await fails.aenqueue()
        with pytest.raises(Trouble, match="again"):
            await xjobs_queue.adrain()
        report = await xjobs_queue.adrain(advance=True, errors="collect")
        assert outcomes(report) == ["dead-lettered"]
        assert xjobs_clock.now == START + HOUR


def test_async_tests_without_an_async_plugin(inner: Inner) -> None:
    inner.file(
        """
        import asyncio, xjobs

        @xjobs.job(key=xjobs.NO_KEY)
        async def coroutine(): ...

        @xjobs.job(key=xjobs.NO_KEY)
        def plain(): ...

        def test_it(xjobs_queue):
            async def scenario():
                await coroutine.aenqueue()
                plain.enqueue()
                return await xjobs_queue.adrain()

            for _ in range(2):  # a loop each
                assert len(asyncio.run(scenario()).runs) == 2
        """
    )
    inner.pytester.makeini("[pytest]\nfilterwarnings = error")
    inner.run("-p", "no:asyncio", *inner.both).assert_outcomes(passed=2)


# Order, parents, what the report says --------------------------------------------------------------------------------


def test_jobs_that_enqueue_jobs_run_in_order_with_their_parents(xjobs_queue: XjobsQueue) -> None:
    @job(key="{path}")
    def tree(path: str) -> None:
        if len(path) < 3:
            for branch in "lr":
                tree.enqueue(path=path + branch)

    for root in "ab":
        tree.enqueue(path=root)
    report = xjobs_queue.drain()
    paths = {row.id: row.input["path"] for row in xjobs_queue.jobs()}
    # Breadth first: a child is enqueued behind what is due already.
    assert " ".join(paths[run.job_id] for run in report.runs) == "a b al ar bl br all alr arl arr bll blr brl brr"
    assert all(paths[run.parent] == paths[run.job_id][:-1] for run in report.runs if run.parent is not None)
    assert [run.parent for run in report.runs[:2]] == [None, None]


def test_a_body_sees_its_siblings_as_ready(xjobs_queue: XjobsQueue) -> None:
    seen: list[list[str]] = []

    @job(key="{number}")
    def look(number: int) -> None:
        seen.append([row.state for row in reversed(xjobs_queue.jobs())])

    for number in range(3):
        look.enqueue(number=number)
    xjobs_queue.drain()
    assert seen == [["running", "ready", "ready"], ["done", "running", "ready"], ["done", "done", "running"]]


def test_due_instants_decide_the_order_and_the_enqueues_break_ties(xjobs_queue: XjobsQueue, xjobs_clock: Clock) -> None:
    ran: list[str] = []

    @job(key="{name}")
    def note(name: str) -> None:
        ran.append(name)

    xjobs_clock.freeze(START)
    note.using(delay=2 * HOUR).enqueue(name="late")
    xjobs.enqueue_many([note.call(name=f"bulk {number}") for number in range(5)])
    note.using(run_at=START - DAY).enqueue(name="overdue")
    note.using(delay=HOUR).enqueue(name="early")
    note.enqueue(name="last of those due")
    xjobs_clock.advance(hours=3)
    xjobs_queue.drain()
    assert ran == ["overdue", *(f"bulk {number}" for number in range(5)), "last of those due", "early", "late"]


@pytest.mark.parametrize("way", ["one by one", "in bulk"])
def test_equal_instants_run_in_the_order_of_the_enqueues(xjobs_queue: XjobsQueue, xjobs_clock: Clock, way: str) -> None:
    ran: list[int] = []

    @job(key="{number}")
    def note(number: int) -> None:
        ran.append(number)

    xjobs_clock.freeze(START)
    if way == "in bulk":
        xjobs.enqueue_many([note.call(number=number) for number in range(300)])
    else:
        for number in range(300):
            note.enqueue(number=number)
    report = xjobs_queue.drain()
    assert ran == list(range(300))
    assert {run.started_at for run in report.runs} == {START}


def test_the_report(xjobs_queue: XjobsQueue, xjobs_clock: Clock) -> None:
    @job(key=NO_KEY, queue="mail", retry=Retry(attempts=2, delay=HOUR, jitter=False))
    def fails() -> None:
        raise Trouble("no")

    @job(key=NO_KEY)
    def works() -> None: ...

    xjobs_clock.freeze(START)
    first, second, third = fails.enqueue(), works.enqueue(), works.using(delay=DAY).enqueue()
    report = xjobs_queue.drain(errors="collect")
    one, two = report.runs
    assert one[:6] == (fails, "fails", first.id, 1, "retried", START)
    assert (type(one.error), one.parent) == (Trouble, None)
    assert two == (works, "works", second.id, 1, "completed", START, None, None, (), None)
    assert [(job.id, job.name, job.queue, job.state, job.due_at, job.due) for job in report.waiting] == [
        (first.id, "fails", "mail", "ready", START + HOUR, False),
        (third.id, "works", "default", "delayed", START + DAY, False),
    ]
    assert (report.jumps, report.buried, report.reason) == ((), (), "not due")

    report = xjobs_queue.drain(until=HOUR, errors="collect")
    assert [(run.job, run.attempt, run.outcome, run.started_at) for run in report.runs] == [
        (fails, 2, "dead-lettered", START + HOUR)
    ]
    assert report.jumps == (xjobs.Jump(START, START + HOUR),)

    report = xjobs_queue.drain(advance=True)
    assert (report.jumps, report.reason) == ((xjobs.Jump(START + HOUR, START + DAY),), "idle")
    assert (report.waiting, xjobs_queue.drain().runs) == ((), ())


def test_an_empty_queue(xjobs_queue: XjobsQueue, xjobs_clock: Clock) -> None:
    xjobs_clock.freeze(START)
    nothing = xjobs.DrainReport((), (), (), (), "idle")
    assert xjobs_queue.drain() == xjobs_queue.drain(advance=True) == nothing
    assert xjobs_queue.run_next() is None
    assert xjobs_clock.now == START


def test_jobs_of_every_queue_run_also_of_queues_that_no_declaration_names(xjobs_queue: XjobsQueue) -> None:
    ran: list[str] = []

    @job(key="{name}", queue="mail")
    def note(name: str) -> None:
        ran.append(name)

    note.enqueue(name="declared")
    note.using(queue="urgent").enqueue(name="named by the enqueue")
    # As a row of another process is: nothing in this one ever heard of its queue.
    xjobs.Queue(xjobs_queue.source).enqueue(note.using(queue="elsewhere").call(name="unheard of"))
    xjobs_queue._queues.clear()
    xjobs_queue.drain()
    assert sorted(ran) == ["declared", "named by the enqueue", "unheard of"]


def test_run_next_runs_one_job_and_leaves_the_rest(xjobs_queue: XjobsQueue, xjobs_clock: Clock) -> None:
    @job(key="{number}")
    def note(number: int) -> None:
        if number == 1:
            note.enqueue(number=3)
        if number == 2:
            raise Trouble("two")

    xjobs_clock.freeze(START)
    note.using(delay=HOUR).enqueue(number=4)
    one, two = note.enqueue(number=1), note.enqueue(number=2)
    run = xjobs_queue.run_next()
    assert run is not None
    assert (run.job_id, run.outcome) == (one.id, "completed")
    xjobs_queue.assert_state(two, "ready")
    with pytest.raises(Trouble, match="two"):
        xjobs_queue.run_next()
    run = xjobs_queue.run_next()
    assert run is not None
    xjobs_queue.assert_enqueued(note.call(number=4), due=HOUR)
    assert xjobs_queue.run_next() is None
    assert xjobs_clock.now == START


# Ends ----------------------------------------------------------------------------------------------------------------


def test_a_job_that_keeps_coming_back_stops_at_the_budget_and_is_named(
    xjobs_queue: XjobsQueue, xjobs_clock: Clock
) -> None:
    @job(key="{number}")
    def again(number: int) -> None:
        again.enqueue(number=number + 1)

    @job(key=NO_KEY)
    def tomorrow(name: str) -> None: ...

    xjobs_clock.freeze(START)
    later = tomorrow.using(delay=DAY).enqueue(name="x")
    again.enqueue(number=1)
    with pytest.raises(xjobs.DrainStopped) as stopped:
        xjobs_queue.drain(budget=8)
    chain = " <- ".join(f"again(number={number})" for number in range(8, 2, -1))
    assert str(stopped.value) == (
        "drain stopped: 8 runs and jobs are still due\n"
        "  job 'again' ran 8 times, last as attempt 1 (completed)\n"
        f"  it was queued by: {chain} <- ...\n"
        f"  not due: 'tomorrow' ({later.id}) in 1 day, 0:00:00\n"
        "  end the loop in the job, or pass a larger budget= or max_advance="
    )
    report = stopped.value.report
    assert len(report.runs) == 8
    assert [(job.name, job.due) for job in report.waiting] == [("again", True), ("tomorrow", False)]


def test_the_budget_is_not_used_up_by_work_that_ends_on_it(xjobs_queue: XjobsQueue) -> None:
    @job(key="{number}")
    def note(number: int) -> None: ...

    for number in range(8):
        note.enqueue(number=number)
    assert len(xjobs_queue.drain(budget=8).runs) == 8


def test_the_most_frequent_job_is_named_not_the_last_one(xjobs_queue: XjobsQueue) -> None:
    @job(key="{number}", retry=Retry(attempts=100, delay=0, jitter=False))
    def comes_back(number: int) -> None:
        raise Trouble("back")

    @job(key="{number}")
    def passes(number: int) -> None: ...

    comes_back.enqueue(number=0)
    for number in range(3):
        passes.enqueue(number=number)
    with pytest.raises(xjobs.DrainStopped) as stopped:
        xjobs_queue.drain(budget=10, errors="collect")
    assert "job 'comes_back' ran 7 times, last as attempt 7 (retried)" in str(stopped.value)


def test_many_jobs_that_are_not_due_are_counted(xjobs_queue: XjobsQueue, xjobs_clock: Clock) -> None:
    @job(key="{number}")
    def later(number: int) -> None: ...

    @job(key="{number}")
    def again(number: int) -> None:
        again.enqueue(number=number + 1)

    xjobs_clock.freeze(START)
    for number in range(150):
        later.using(delay=DAY).enqueue(number=number)
    again.enqueue(number=0)
    with pytest.raises(xjobs.DrainStopped) as stopped:
        xjobs_queue.drain(budget=3)
    lines = str(stopped.value).splitlines()
    assert [line.startswith("  not due: 'later'") for line in lines].count(True) == 5
    assert "  not due: 145 more" in str(stopped.value)
    assert len(lines) < 25


def test_an_endless_retry_is_found_under_advance_too(xjobs_queue: XjobsQueue, xjobs_clock: Clock) -> None:
    @job(key=NO_KEY, retry=Retry(attempts=1_000_000, delay=SECOND, backoff="fixed", jitter=False))
    def snoozes() -> None:
        raise Trouble("not yet")

    xjobs_clock.freeze(START)
    snoozes.enqueue()
    with pytest.raises(xjobs.DrainStopped, match="job 'snoozes' ran 20 times, last as attempt 20"):
        xjobs_queue.drain(advance=True, errors="collect", budget=20)


def test_advance_does_not_go_beyond_its_span(xjobs_queue: XjobsQueue, xjobs_clock: Clock) -> None:
    ran: list[datetime] = []

    @job(key="{number}")
    def yearly(ctx: Context, number: int) -> None:
        ran.append(ctx.now())
        yearly.using(delay=100 * DAY).enqueue(number=number + 1)

    xjobs_clock.freeze(START)
    yearly.enqueue(number=1)
    with pytest.raises(xjobs.DrainStopped) as stopped:
        xjobs_queue.drain(advance=True)
    assert ran == [START + number * 100 * DAY for number in range(4)]
    assert "the clock had moved 300 days, 0:00:00 and the next job lies beyond 366 days" in str(stopped.value)
    assert xjobs_clock.now == START + 300 * DAY
    xjobs_queue.drain(until=100 * DAY)
    assert len(ran) == 5


def test_a_job_that_nobody_declares(xjobs_queue: XjobsQueue) -> None:
    def declare() -> xjobs.Enqueued:
        @job(key=NO_KEY)
        def unknown() -> None: ...

        return unknown.enqueue()

    with xjobs.registry.scope():
        answer = declare()

    @job(key=NO_KEY)
    def known() -> None: ...

    with pytest.raises(xjobs.JobUnknown) as refused:
        xjobs_queue.drain()
    assert refused.value.fact == f"job 'unknown' ({answer.id}) is queued, but nothing in this process declares it"
    assert refused.value.remedy.startswith("import the module that does; declared here: ")
    assert "known" in refused.value.remedy
    # Not an attempt of the job, which is as it was.
    assert xjobs_queue.assert_state(answer, "ready").attempt == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"errors": "ignore"}, "errors is 'ignore': give 'raise' or 'collect'"),
        ({"budget": 0}, "budget is 0: give a whole number from 1 to 2,147,483,647"),
        ({"budget": 1.5}, "budget is 1.5: give a whole number from 1 to 2,147,483,647"),
        ({"until": -1}, "until is -1: give at least 0:00:00"),
        ({"until": "tomorrow"}, "until is 'tomorrow': give a timedelta or a number of seconds"),
        ({"until": timedelta(-1)}, "until is datetime.timedelta(days=-1): give at least 0:00:00"),
        ({"until": datetime(2031, 1, 1)}, "until is the naive datetime 2031-01-01T00:00:00: attach its time zone"),  # noqa: DTZ001
        ({"max_advance": -1}, "max_advance is -1: give at least 0:00:00"),
        ({"max_advance": "1d"}, "max_advance is '1d': give a timedelta or a number of seconds"),
    ],
)
def test_bad_arguments(xjobs_queue: XjobsQueue, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(xjobs.Invariant) as refused:
        xjobs_queue.drain(**arguments)
    assert str(refused.value).startswith(message)


# Errors --------------------------------------------------------------------------------------------------------------


def three_deep(number: int) -> None:
    def two() -> None:
        raise Trouble(f"number {number}")

    two()


def test_what_a_body_raises_is_raised_after_its_settle_with_a_note(xjobs_queue: XjobsQueue) -> None:
    @job(key="{number}", retry=3)
    def fails(number: int) -> None:
        three_deep(number)

    answer = fails.enqueue(number=7)
    with pytest.raises(Trouble) as raised:
        xjobs_queue.drain()
    assert raised.value.__notes__ == [
        f"xjobs: in attempt 1 of 3 of job fails(number=7), id {answer.id}",
    ]
    assert [entry.name for entry in raised.traceback][-3:] == ["fails", "three_deep", "two"]
    row = xjobs_queue.assert_state(answer, "ready")
    assert (row.attempt, row.last_error) == (1, "Trouble: number 7")


def test_the_failure_report_shows_the_line_of_the_body_and_the_note(inner: Inner) -> None:
    inner.file(
        """
        import xjobs

        @xjobs.job(key=xjobs.NO_KEY)
        def charge(amount: int):
            deeper(amount)

        def deeper(amount):
            raise LookupError(f"no card for {amount}")  # the line

        def test_it(xjobs_queue):
            charge.enqueue(amount=3)
            xjobs_queue.drain()
        """
    )
    result = inner.run(*inner.both)
    result.assert_outcomes(failed=2)
    for _ in range(2):
        result.stdout.fnmatch_lines(
            [
                '>       raise LookupError(f"no card for {amount}")  # the line',
                "E       LookupError: no card for 3",
                "E       xjobs: in attempt 1 of 3 of job charge(amount=3), id *",
            ]
        )


def test_collect_goes_on_and_keeps_the_errors(xjobs_queue: XjobsQueue) -> None:
    @job(key="{number}", retry=1)
    def fails(number: int) -> None:
        raise Trouble(f"number {number}")

    for number in range(3):
        fails.enqueue(number=number)
    report = xjobs_queue.drain(errors="collect")
    assert [str(run.error) for run in report.runs] == ["number 0", "number 1", "number 2"]
    assert not any(hasattr(run.error, "__notes__") for run in report.runs)
    assert outcomes(report) == ["dead-lettered"] * 3


@pytest.mark.parametrize("errors", ["raise", "collect"])
def test_an_assertion_in_a_body_fails_the_test_in_either_setting(xjobs_queue: XjobsQueue, errors: Any) -> None:
    @job(key=NO_KEY)
    def checks() -> None:
        raise AssertionError("one is not two")

    answer = checks.enqueue()
    with pytest.raises(AssertionError, match="one is not two"):
        xjobs_queue.drain(errors=errors)
    assert xjobs_queue.assert_state(answer, "ready").attempt == 1


@pytest.mark.parametrize("colour", ["def", "async def"])
@pytest.mark.parametrize("errors", ["raise", "collect"])
@pytest.mark.parametrize(
    "interrupt", [KeyboardInterrupt, SystemExit, pytest.skip.Exception, pytest.fail.Exception], ids=lambda k: k.__name__
)
def test_what_is_no_outcome_of_a_job_passes_through_and_gives_the_attempt_back(
    xjobs_queue: XjobsQueue, interrupt: type[BaseException], errors: Any, colour: str
) -> None:
    if colour == "def":

        @job(key=NO_KEY)
        def body() -> None:
            raise interrupt("stop")

    else:

        @job(key=NO_KEY)
        async def body() -> None:
            await asyncio.sleep(0)
            raise interrupt("stop")

    answer = body.enqueue()
    with pytest.raises(interrupt) as raised:
        xjobs_queue.drain(errors=errors)
    assert "in attempt 1 of 3 of job body()" in raised.value.__notes__[0]
    assert xjobs_queue.assert_state(answer, "ready").attempt == 0


INTERRUPTS = """
import pytest, xjobs

@xjobs.job(key="{what}")
def plain(what: str):
    act(what)

@xjobs.job(key="{what}")
async def coroutine(what: str):
    act(what)

def act(what):
    {"skip": pytest.skip, "fail": pytest.fail, "xfail": pytest.xfail, "interrupt": interrupt}[what]("said so")

def interrupt(reason):
    raise KeyboardInterrupt(reason)

bodies = pytest.mark.parametrize("body", [plain, coroutine], ids=["def", "async"])
"""


def test_skip_and_fail_inside_bodies_are_the_tests_own(inner: Inner) -> None:
    inner.file(
        INTERRUPTS
        + """
@bodies
@pytest.mark.parametrize("what", ["skip", "fail", "xfail"])
def test_blocking(xjobs_queue, body, what):
    body.enqueue(what=what)
    xjobs_queue.drain(errors="collect")

@bodies
@pytest.mark.parametrize("what", ["skip", "fail", "xfail"])
async def test_async(xjobs_queue, body, what):
    await body.aenqueue(what=what)
    await xjobs_queue.adrain(errors="collect")
"""
    )
    result = inner.run("-rs", *inner.both)
    result.assert_outcomes(skipped=8, failed=8, xfailed=8)
    result.stdout.fnmatch_lines("SKIPPED*said so")


@pytest.mark.parametrize("body", ["plain", "coroutine"])
@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_ctrl_c_inside_a_body_ends_the_run(inner: Inner, kind: str, body: str) -> None:
    call = (
        f"def test_it(xjobs_queue):\n    {body}.enqueue(what='interrupt')\n    xjobs_queue.drain()\n"
        if kind == "blocking"
        else f"async def test_it(xjobs_queue):\n    {body}.enqueue(what='interrupt')\n    await xjobs_queue.adrain()\n"
    )
    inner.file(INTERRUPTS + call + "def test_after(): ...")
    result = inner.run(inner.pg)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines("*KeyboardInterrupt*")
    result.stdout.no_fnmatch_line("*INTERNALERROR*")
    assert "passed" not in result.parseoutcomes()


@pytest.mark.parametrize("colour", ["def", "async def"])
def test_a_body_that_raises_stop_iteration_is_an_attempt_like_others(xjobs_queue: XjobsQueue, colour: str) -> None:
    if colour == "def":

        @job(key=NO_KEY)
        def body() -> None:
            next(iter(()))

    else:

        @job(key=NO_KEY)
        async def body() -> None:
            next(iter(()))

    body.enqueue()
    (run,) = xjobs_queue.drain(errors="collect").runs
    # Python itself lets none out of a coroutine (PEP 479).
    assert isinstance(run.error, RuntimeError)
    assert isinstance(run.error.__cause__, StopIteration)


async def test_stop_iteration_in_a_thread_does_not_hang_the_loop(xjobs_queue: XjobsQueue) -> None:
    @job(key=NO_KEY)
    def body() -> None:
        next(iter(()))

    await body.aenqueue()
    report = await asyncio.wait_for(xjobs_queue.adrain(errors="collect"), 10)
    assert isinstance(report.runs[0].error, RuntimeError)
    assert isinstance(report.runs[0].error.__cause__, StopIteration)


def test_input_that_no_longer_fits_the_body_is_a_failed_attempt(xjobs_queue: XjobsQueue) -> None:
    @job(key=NO_KEY, name="grown")
    def older(number: int) -> None: ...

    with xjobs.registry.scope():
        answer = older.enqueue(number=1)
    xjobs.registry._jobs.pop("grown")

    @job(key=NO_KEY, name="grown")
    def newer(number: UUID) -> None: ...

    with pytest.raises(xjobs.InputInvalid, match=r"^input\.number of job 'grown'"):
        xjobs_queue.drain()
    assert xjobs_queue.assert_state(answer, "ready").attempt == 1


# The clock -----------------------------------------------------------------------------------------------------------


def test_retries_to_the_end_each_at_its_instant(xjobs_queue: XjobsQueue, xjobs_clock: Clock) -> None:
    @job(key=NO_KEY, retry=Retry(attempts=4, backoff="exponential", delay=10, jitter=False))
    def fails() -> None:
        raise Trouble("no")

    xjobs_clock.freeze(START)
    answer = fails.enqueue()
    report = xjobs_queue.drain(advance=True, errors="collect")
    instants = [START, START + 10 * SECOND, START + 30 * SECOND, START + 70 * SECOND]
    assert [run.started_at for run in report.runs] == instants
    assert outcomes(report) == ["retried", "retried", "retried", "dead-lettered"]
    assert report.jumps == tuple(xjobs.Jump(one, other) for one, other in itertools.pairwise(instants))
    assert xjobs_clock.now == instants[-1]
    xjobs_queue.assert_state(answer, "dead")


def test_until_runs_each_job_at_its_own_instant_and_leaves_the_clock_there(
    xjobs_queue: XjobsQueue, xjobs_clock: Clock
) -> None:
    seen: list[tuple[str, datetime, datetime]] = []

    @job(key="{name}")
    def note(ctx: Context, name: str) -> None:
        seen.append((name, ctx.now(), datetime.now(UTC)))
        if name == "first":
            note.using(delay=HOUR).enqueue(name="on the way")

    xjobs_clock.freeze(START)
    note.using(delay=DAY).enqueue(name="first")
    note.using(delay=2 * DAY).enqueue(name="second")
    note.using(delay=3 * DAY).enqueue(name="at the end")
    note.using(delay=3 * DAY + timedelta(microseconds=1)).enqueue(name="after it")
    report = xjobs_queue.drain(until=START + 3 * DAY)
    expected = [("first", DAY), ("on the way", DAY + HOUR), ("second", 2 * DAY), ("at the end", 3 * DAY)]
    assert seen == [(name, START + due, START + due) for name, due in expected]
    assert xjobs_clock.now == START + 3 * DAY
    assert report.reason == "not due"
    xjobs_queue.drain(until=2 * HOUR)
    assert [name for name, *_ in seen][-1] == "after it"
    assert xjobs_clock.now == START + 3 * DAY + 2 * HOUR


def test_until_a_past_instant_runs_what_is_due_and_moves_nothing(xjobs_queue: XjobsQueue, xjobs_clock: Clock) -> None:
    @job(key=NO_KEY)
    def note() -> None: ...

    xjobs_clock.freeze(START)
    note.enqueue()
    report = xjobs_queue.drain(until=START - DAY)
    assert (len(report.runs), report.jumps, xjobs_clock.now) == (1, (), START)


def test_a_plain_drain_never_moves_the_clock_and_advance_runs_nothing(
    xjobs_queue: XjobsQueue, xjobs_clock: Clock
) -> None:
    @job(key=NO_KEY)
    def note() -> None: ...

    xjobs_clock.freeze(START)
    answer = note.using(delay=DAY).enqueue()
    assert xjobs_queue.drain().runs == ()
    assert xjobs_clock.now == START
    xjobs_clock.advance(days=1)
    xjobs_queue.assert_state(answer, "delayed")
    assert len(xjobs_queue.drain().runs) == 1


@pytest.mark.parametrize("colour", ["def", "async def"])
def test_a_body_that_moves_the_clock_past_its_lease_keeps_its_job(
    xjobs_queue: XjobsQueue, xjobs_clock: Clock, colour: str
) -> None:
    ran: list[int] = []

    def long() -> None:
        for _ in range(3):
            xjobs_clock.advance(hours=1)
            # Another worker that looks for work in the meantime.
            assert xjobs_queue.claim(queues=["default"], worker_id="rival", limit=10).jobs == []
        ran.append(1)

    if colour == "def":

        @job(key=NO_KEY)
        def body() -> None:
            long()

    else:

        @job(key=NO_KEY)
        async def body() -> None:
            long()

    xjobs_clock.freeze(START)
    answer = body.enqueue()
    report = xjobs_queue.drain()
    assert (outcomes(report), ran) == (["completed"], [1])
    assert xjobs_queue.assert_state(answer, "done").claims == 1


async def test_the_same_with_a_body_in_a_thread(xjobs_queue: XjobsQueue, xjobs_clock: Clock) -> None:
    @job(key=NO_KEY)
    def body() -> None:
        xjobs_clock.advance(hours=1)
        assert xjobs_queue.claim(queues=["default"], worker_id="rival").jobs == []

    xjobs_clock.freeze(START)
    await body.aenqueue()
    assert outcomes(await xjobs_queue.adrain()) == ["completed"]


def test_a_claim_of_somebody_else_is_not_renewed_by_the_move(xjobs_queue: XjobsQueue, xjobs_clock: Clock) -> None:
    ran: list[int] = []

    @job(key=NO_KEY)
    def body(ctx: Context) -> None:
        ran.append(ctx.attempt)

    xjobs_clock.freeze(START)
    body.enqueue()
    assert len(xjobs_queue.claim(queues=["default"], worker_id="dead").jobs) == 1
    assert xjobs_queue.drain().runs == ()
    xjobs_clock.advance(minutes=1)
    xjobs_queue.drain()
    assert ran == [2]


def test_a_drain_inside_a_body_runs_the_others_and_not_itself(xjobs_queue: XjobsQueue) -> None:
    ran: list[str] = []

    @job(key="{name}")
    def note(name: str) -> None:
        ran.append(name)
        if name == "outer":
            note.enqueue(name="inner")
            xjobs_queue.drain()
            ran.append("end of outer")

    note.enqueue(name="outer")
    xjobs_queue.drain()
    assert ran == ["outer", "inner", "end of outer"]


# Randomness ----------------------------------------------------------------------------------------------------------

JITTER = """
import xjobs
from xjobs import Retry

@xjobs.job(key=xjobs.NO_KEY, retry=Retry(attempts=4, delay=100))
def fails():
    raise ValueError

def test_it(xjobs_queue, xjobs_clock):
    xjobs_clock.freeze()
    fails.enqueue()
    report = xjobs_queue.drain(advance=True, errors="collect")
    print("waits", *((jump.end - jump.start).total_seconds() for jump in report.jumps))
"""


def waits(result: pytest.RunResult) -> list[str]:
    return [match[0] for line in result.outlines if (match := re.search(r"waits( [\d.]+){3}", line))]


def test_jitter_is_the_seeds_and_the_same_on_both_backends(inner: Inner) -> None:
    inner.file(JITTER)
    memory, pg = waits(inner.run("-s", "--xjobs-seed=5", *inner.both))
    assert memory == pg
    assert waits(inner.run("-s", "--xjobs-seed=5")) == [memory]
    assert waits(inner.run("-s", "--xjobs-seed=6")) != [memory]
    first, second = waits(inner.run("-s")), waits(inner.run("-s"))
    assert first != second


def test_the_seed_in_the_header_repeats_the_run(inner: Inner) -> None:
    inner.file(JITTER)
    result = inner.run("-s", "-v")
    seed = re.search(r"^xjobs: .*seed=(\d+)$", result.stdout.str(), re.MULTILINE)
    assert seed is not None
    assert waits(inner.run("-s", f"--xjobs-seed={seed[1]}")) == waits(result)

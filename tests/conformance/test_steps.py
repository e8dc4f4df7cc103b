"""Durable steps: recorded once and replayed, sleeps and waits that hold no process, and every write fenced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest

import xjobs
from conformance.fixtures import Drain, Work
from conformance.stores import Store, Tables
from pytest_xjobs.clock import Clock
from xjobs import points
from xjobs.drivers.base import Driver
from xjobs.operations.steps import StepLog, Suspended
from xjobs.signals import RunSignal

Colour = Literal["def", "async def"]
Body = Callable[["Each"], Any]
NO_JITTER = xjobs.Retry(attempts=9, delay=60, jitter=False)


class Each:
    """The steps of either colour behind one awaitable face, so that a body is written once."""

    def __init__(self, ctx: xjobs.Context | xjobs.AsyncContext) -> None:
        self.ctx = ctx

    async def run(self, *args: Any) -> Any:
        answer: Any = self.ctx.step.run(*args)
        return await answer if isinstance(self.ctx, xjobs.AsyncContext) else answer

    async def sleep(self, *args: Any) -> None:
        answer: Any = self.ctx.step.sleep(*args)
        if isinstance(self.ctx, xjobs.AsyncContext):
            await answer

    async def wait(self, *args: Any, **options: Any) -> Any:
        answer: Any = self.ctx.step.wait_for_event(*args, **options)
        return await answer if isinstance(self.ctx, xjobs.AsyncContext) else answer


@pytest.fixture(params=["def", "async def"])
def colour(request: pytest.FixtureRequest) -> Colour:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def declare(colour: Colour) -> Callable[..., Any]:
    """Declare a job of the colour whose body is `body(Each)`."""

    def declare(body: Body, **options: Any) -> xjobs.JobHandle[Any, [], Any]:
        def plain(ctx: xjobs.Context) -> Any:
            coroutine = body(Each(ctx))
            try:
                coroutine.send(None)
            except StopIteration as end:
                return end.value
            raise AssertionError("a def body waited")

        async def awaited(ctx: xjobs.AsyncContext) -> Any:
            return await body(Each(ctx))

        options = {"key": xjobs.NO_KEY, "name": "run", "retry": NO_JITTER, **options}
        return xjobs.job(**options)(plain if colour == "def" else awaited)

    return declare


class TestRun:
    async def test_a_completed_step_is_replayed_and_a_failed_one_runs_again(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, declare: Any
    ) -> None:
        calls: list[str] = []

        def effect(name: str) -> dict[str, str]:
            calls.append(name)
            if name == "b" and calls.count("b") < 3:
                raise OSError(f"down {calls.count('b')}")
            return {"of": name}

        async def body(steps: Each) -> None:
            got = [await steps.run(name, effect, name) for name in ("a", "b", "c")]
            assert got == [{"of": "a"}, {"of": "b"}, {"of": "c"}]

        clock.freeze()
        made = await declare(body).aenqueue()
        report = await drain(advance=True, errors="collect")
        assert calls == ["a", "b", "b", "b", "c"]
        assert [run.outcome for run in report.runs] == ["retried", "retried", "completed"]
        assert [run.steps for run in report.runs] == [("a", "b"), ("b",), ("b", "c")]
        records = await queue.steps(made.run_id)
        assert [(r.name, r.status, r.attempts, r.output, r.error) for r in records] == [
            ("a", "completed", 1, {"of": "a"}, None),
            ("b", "completed", 3, {"of": "b"}, None),
            ("c", "completed", 1, {"of": "c"}, None),
        ]

    async def test_a_failed_step_stands_with_its_error_and_keeps_its_start(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, declare: Any
    ) -> None:
        def effect() -> None:
            raise OSError("no\0thing \ud800")

        async def body(steps: Each) -> None:
            await steps.run("a", effect)

        began = clock.freeze()
        made = await declare(body).aenqueue()
        for _ in range(2):
            await drain(errors="collect")
            clock.advance(hours=2)
        (record,) = await queue.steps(made.run_id)
        assert (record.status, record.attempts, record.started_at, record.completed_at) == ("failed", 2, began, None)
        assert record.error == "OSError: no\\x00thing \\ud800"

    @pytest.mark.parametrize(
        "value", [None, 0, -1, 1.5, "", "ü", True, [], {}, [1, {"b": [None]}, "x"], {"z": 1, "aa": 2}]
    )
    async def test_the_answer_is_the_recorded_json_at_once_and_on_replay(
        self, drain: Drain, declare: Any, queue: xjobs.AsyncQueue, value: Any
    ) -> None:
        seen: list[Any] = []

        async def body(steps: Each) -> None:
            seen.append(await steps.run("a", lambda: value))
            if len(seen) == 1:
                raise OSError

        await declare(body, retry=xjobs.Retry(delay=0)).aenqueue()
        await drain(errors="collect")
        assert seen == [value, value]
        assert [repr(each) for each in seen] == [repr(seen[0])] * 2

    @pytest.mark.parametrize(
        ("value", "path"),
        [
            ({"items": [1, {"when": datetime.now(UTC)}]}, "output.items[1].when"),
            ((1, 2), "output"),
            ({1, 2}, "output"),
            (b"x", "output"),
            (float("nan"), "output"),
            (2**63, "output"),
            ({"a": {3: "x"}}, "output.a"),
            ("a\0b", "output"),
            (["\ud800"], "output[0]"),
            (object(), "output"),
        ],
    )
    async def test_an_answer_that_is_no_strict_json_fails_the_attempt_and_names_the_path(
        self, drain: Drain, queue: xjobs.AsyncQueue, declare: Any, value: Any, path: str
    ) -> None:
        async def body(steps: Each) -> None:
            await steps.run("a", lambda: value)

        made = await declare(body).aenqueue()
        with pytest.raises(xjobs.InputInvalid) as caught:
            await drain()
        assert caught.value.path == path
        assert [(r.name, r.status) for r in await queue.steps(made.run_id)] == [("a", "failed")]

    async def test_a_name_is_used_once_in_an_attempt_and_again_in_the_next(
        self, drain: Drain, queue: xjobs.AsyncQueue, declare: Any
    ) -> None:
        async def body(steps: Each) -> None:
            await steps.run("a", lambda: 1)
            await steps.run("a", lambda: 2)

        made = await declare(body).aenqueue()
        (run,) = (await drain(errors="collect")).runs
        assert isinstance(run.error, xjobs.StepDuplicate)
        assert (run.outcome, run.stop_reason) == ("dead-lettered", "terminal")
        row = await queue.job(made.id)
        assert row is not None
        assert row.attempt == 1
        assert "X_STEP_DUPLICATE" in (row.last_error or "")
        assert "terminal" in (row.last_error or "")
        assert [record.output for record in await queue.steps(made.run_id)] == [1]

    @pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "x" * 256, 7])
    async def test_a_name_that_cannot_be_is_refused(self, drain: Drain, declare: Any, store: Store, name: Any) -> None:
        async def body(steps: Each) -> None:
            await steps.run(name, lambda: 1)

        await declare(body).aenqueue()
        with pytest.raises(xjobs.Invariant, match="step "):
            await drain()
        assert store.tables.steps() == []

    async def test_a_step_that_changed_its_kind_is_refused(self, drain: Drain, declare: Any, clock: Clock) -> None:
        async def body(steps: Each) -> None:
            if steps.ctx.attempt == 1:
                await steps.sleep("a", 0)
                raise OSError
            await steps.run("a", int)

        clock.freeze()
        await declare(body, retry=xjobs.Retry(attempts=2, delay=0)).aenqueue()
        report = await drain(advance=True, errors="collect")
        assert isinstance(report.runs[-1].error, xjobs.Invariant)
        assert "recorded as a sleep and is now a run" in str(report.runs[-1].error)

    async def test_one_read_serves_all_replays_of_an_attempt(
        self, queue: xjobs.AsyncQueue, drain: Drain, store: Store, declare: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def body(steps: Each) -> None:
            for number in range(20):
                await steps.run(f"s{number}", int)
            if steps.ctx.attempt == 1:
                raise OSError

        await declare(body, retry=xjobs.Retry(delay=0)).aenqueue()
        reads: list[int] = []
        for driver in {id(d): d for d in (store.driver, store.blocking)}.values():
            counted(driver, "SQL_STEPS", reads, monkeypatch)
        await drain(errors="collect")
        assert len(reads) == 2

    async def test_steps_of_one_instant_keep_their_order(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, declare: Any
    ) -> None:
        async def body(steps: Each) -> None:
            for name in ("c", "a", "b"):
                await steps.run(name, int)

        clock.freeze()
        made = await declare(body).aenqueue()
        await drain()
        records = await queue.steps(made.run_id)
        assert [record.name for record in records] == ["c", "a", "b"]
        assert sorted({record.started_at for record in records}) == [record.started_at for record in records]


def counted(driver: Driver, name: str, calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Note each run of a statement on a driver, which goes on as it would."""
    run = driver.run

    async def noting(statement: Any, **parameters: Any) -> Any:
        if statement.name == name:
            calls.append(1)
        return await run(statement, **parameters)

    monkeypatch.setattr(driver, "run", noting)


class TestCrash:
    """The worker dies at a point: nothing more is written for the attempt, and its lease lapses."""

    @pytest.mark.parametrize("point", ["before_step", "before_record", "after_step", "before_settle"])
    async def test_each_recorded_step_ran_once_and_an_unrecorded_one_again(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, declare: Any, point: str
    ) -> None:
        names = ["a", "b", "c", "d", "e"]
        calls: list[str] = []
        left = names.copy() if point != "before_settle" else ["end"]

        async def body(steps: Each) -> None:
            for name in names:
                await steps.run(name, calls.append, name)

        def die(_point: str, facts: dict[str, Any]) -> None:
            if left and facts.get("step", "end") == left[0]:
                left.pop(0)
                raise points.Crash

        clock.freeze()
        made = await declare(body).aenqueue()
        with points.listening(die, point):
            report = await drain(advance=True)
        crashes = 1 if point == "before_settle" else 5
        assert [run.outcome for run in report.runs] == ["crashed"] * crashes + ["completed"]
        twice = point == "before_record"
        assert calls == [name for name in names for _ in range(1 + twice)]
        row = await queue.job(made.id)
        assert row is not None
        assert (row.state, row.attempt) == ("done", crashes + 1)


class TestSleep:
    async def test_it_suspends_without_an_attempt_and_resumes_past_its_end(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, declare: Any
    ) -> None:
        seen: list[tuple[int, datetime]] = []

        async def body(steps: Each) -> None:
            seen.append((steps.ctx.attempt, steps.ctx.now()))
            await steps.sleep("grace", timedelta(days=30))
            await steps.run("a", lambda: 1)

        began = clock.freeze()
        made = await declare(body, retry=1).aenqueue()
        report = await drain()
        assert [run.outcome for run in report.runs] == ["suspended"]
        row = await queue.job(made.id)
        assert row is not None
        assert (row.state, row.attempt, row.run_at) == ("suspended", 0, began + timedelta(days=30))
        assert report.waiting[0].due_at == row.run_at
        report = await drain(advance=True)
        assert [(jump.end - jump.start) for jump in report.jumps] == [timedelta(days=30)]
        assert seen == [(1, began), (1, began + timedelta(days=30))]
        row = await queue.job(made.id)
        assert row is not None
        assert (row.state, row.attempt, row.claims) == ("done", 1, 2)
        grace, _ = await queue.steps(made.run_id)
        assert (grace.status, grace.started_at, grace.wake_at, grace.completed_at) == (
            "completed",
            began,
            began + timedelta(days=30),
            began + timedelta(days=30),
        )

    async def test_a_run_that_is_woken_early_sleeps_on_to_the_same_end(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, declare: Any, tables: Tables
    ) -> None:
        async def body(steps: Each) -> None:
            await steps.sleep("s", 100)

        began = clock.freeze()
        made = await declare(body).aenqueue()
        await drain()
        clock.advance(60)
        tables.change(made.id, run_at=clock.now)
        (run,) = (await drain()).runs
        assert run.outcome == "suspended"
        row = await queue.job(made.id)
        assert row is not None
        assert row.run_at == began + timedelta(seconds=100)

    async def test_sleeps_without_names_are_named_by_length_and_number(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, declare: Any
    ) -> None:
        async def body(steps: Each) -> None:
            for _ in range(3):
                await steps.sleep(timedelta(days=30))
            await steps.sleep(0.5)

        clock.freeze()
        made = await declare(body).aenqueue()
        report = await drain(advance=True)
        assert [record.name for record in await queue.steps(made.run_id)] == [
            "sleep:2592000s",
            "sleep:2592000s#2",
            "sleep:2592000s#3",
            "sleep:0.5s",
        ]
        assert len(report.jumps) == 4

    async def test_no_time_is_no_suspension(self, drain: Drain, declare: Any) -> None:
        async def body(steps: Each) -> None:
            await steps.sleep("s", 0)
            await steps.sleep(timedelta(0))

        await declare(body).aenqueue()
        assert [run.outcome for run in (await drain()).runs] == ["completed"]

    @pytest.mark.parametrize("duration", [-1, timedelta(microseconds=-1), float("nan"), float("inf"), "3d", None, True])
    async def test_a_span_that_cannot_be_is_refused(
        self, drain: Drain, declare: Any, store: Store, duration: Any
    ) -> None:
        async def body(steps: Each) -> None:
            await steps.sleep("s", duration)

        await declare(body).aenqueue()
        with pytest.raises(xjobs.Invariant):
            await drain()
        assert store.tables.steps() == []

    async def test_a_body_cannot_swallow_it(self, drain: Drain, clock: Clock, declare: Any) -> None:
        reached: list[str] = []

        async def body(steps: Each) -> None:
            try:
                await steps.sleep("s", 60)
            except Exception:  # noqa: BLE001 - what bodies do
                reached.append("except")
            except BaseException:  # noqa: BLE001
                reached.append("base")
            await steps.run("after", reached.append, "after")

        clock.freeze()
        await declare(body).aenqueue()
        (run,) = (await drain()).runs
        assert (run.outcome, reached) == ("suspended", ["base"])
        await drain(advance=True)
        assert reached == ["base", "after"]


class TestWait:
    async def _waiting(
        self, declare: Any, drain: Drain, got: list[Any], **options: Any
    ) -> tuple[xjobs.Enqueued, xjobs.DrainReport]:
        async def body(steps: Each) -> None:
            got.append(await steps.wait("w", "paid", **options))

        made = await declare(body).aenqueue()
        return made, await drain()

    async def test_an_event_that_comes_while_it_is_suspended(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, declare: Any
    ) -> None:
        got: list[Any] = []
        clock.freeze()
        _, report = await self._waiting(declare, drain, got, match="7", timeout=timedelta(days=7))
        assert ([run.outcome for run in report.runs], got) == (["suspended"], [])
        clock.advance(days=6)
        event = await queue.publish("paid", {"cents": 5}, correlation_key="7")
        assert [run.outcome for run in (await drain()).runs] == ["completed"]
        assert got == [event]
        assert (event.payload, event.published_at) == ({"cents": 5}, clock.now)

    @pytest.mark.parametrize("key", [None, "8", ""])
    async def test_another_correlation_key_never_matches(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, declare: Any, key: str | None
    ) -> None:
        got: list[Any] = []
        clock.freeze()
        await self._waiting(declare, drain, got, match="7", timeout=60)
        if key == "":
            with pytest.raises(xjobs.Invariant):
                await queue.publish("paid", correlation_key=key)
        else:
            await queue.publish("paid", correlation_key=key)
        await queue.publish("unpaid", correlation_key="7")
        assert (await drain()).runs == ()
        await drain(advance=True)
        assert got == [None]

    async def test_without_a_match_any_key_will_do(self, queue: xjobs.AsyncQueue, drain: Drain, declare: Any) -> None:
        got: list[Any] = []
        await self._waiting(declare, drain, got)
        event = await queue.publish("paid", correlation_key="9")
        await drain()
        assert got == [event]

    async def test_time_up_answers_none_and_is_replayed_so(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, declare: Any
    ) -> None:
        got: list[Any] = []

        async def body(steps: Each) -> None:
            got.append(await steps.wait("w", "paid", timeout=timedelta(days=7)))
            await steps.sleep("later", 60)

        clock.freeze()
        made = await declare(body, retry=1).aenqueue()
        await drain(until=timedelta(days=7))
        await queue.publish("paid")
        report = await drain(advance=True)
        assert got == [None, None]
        assert report.runs[-1].outcome == "completed"
        row = await queue.job(made.id)
        assert row is not None
        assert row.attempt == 1

    async def test_a_required_one_fails_the_attempt_and_the_retry_finds_it_late(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, declare: Any
    ) -> None:
        got: list[Any] = []
        clock.freeze()
        made, _ = await self._waiting(declare, drain, got, timeout=60, required=True)
        clock.advance(60)
        with pytest.raises(xjobs.JobTimeout, match="'paid'"):
            await drain()
        assert [(r.status, r.output) for r in await queue.steps(made.run_id)] == [("failed", None)]
        event = await queue.publish("paid")
        await drain(advance=True)
        assert got == [event]

    @pytest.mark.parametrize("when", ["before", "same instant", "after"])
    async def test_an_event_is_found_whenever_it_was_published(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, declare: Any, when: str
    ) -> None:
        got: list[Any] = []

        async def body(steps: Each) -> None:
            await steps.sleep("first", 60)
            got.append(await steps.wait("w", "paid", timeout=3600))

        clock.freeze()
        await queue.publish("paid", "of an earlier run")
        clock.advance(1)
        await declare(body).aenqueue()
        await drain()
        if when == "before":
            clock.advance(30)
            event = await queue.publish("paid", when)
        clock.advance(60)
        if when == "same instant":
            event = await queue.publish("paid", when)
        await drain()
        if when == "after":
            assert got == []
            clock.advance(30)
            event = await queue.publish("paid", when)
            await drain()
        assert got == [event]

    @pytest.mark.parametrize("wakes", [True, False])
    async def test_one_that_commits_after_the_first_look(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, declare: Any, store: Store, wakes: bool
    ) -> None:
        got: list[Any] = []

        async def body(steps: Each) -> None:
            got.append(await steps.wait("w", "paid", timeout=3600))

        clock.freeze()
        await declare(body).aenqueue()
        clock.advance(1)
        other = await store.begin()
        event = await other.queue.publish("paid", 1)
        clock.advance(1)
        await drain()
        assert got == []
        await other.commit()
        await drain(until=None if wakes else timedelta(hours=1))
        assert got == [event]

    async def test_one_that_is_rolled_back_never_was(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, declare: Any, store: Store
    ) -> None:
        got: list[Any] = []
        clock.freeze()
        await self._waiting(declare, drain, got, timeout=60)
        other = await store.begin()
        await other.queue.publish("paid", 1)
        await other.rollback()
        await drain(advance=True)
        assert got == [None]
        assert await queue.events() == []

    async def test_two_waits_of_a_run_take_two_events_in_the_order_of_publication(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, declare: Any
    ) -> None:
        got: list[Any] = []

        async def body(steps: Each) -> None:
            first = await steps.wait("w1", "paid")
            second = await steps.wait("w2", "paid")
            got.append((first, second))

        clock.freeze()
        await declare(body).aenqueue()
        published = [await queue.publish("paid", number) for number in range(3)]
        await drain()
        assert got == [tuple(published[:2])]

    async def test_several_runs_match_one_event(self, queue: xjobs.AsyncQueue, drain: Drain, declare: Any) -> None:
        got: list[Any] = []

        async def body(steps: Each) -> None:
            got.append(await steps.wait("w", "paid"))

        job = declare(body)
        await queue.enqueue_many([job.call(), job.call(), job.call()])
        await drain()
        event = await queue.publish("paid")
        await drain()
        assert got == [event] * 3

    async def test_an_expired_event_is_not_found(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, declare: Any
    ) -> None:
        got: list[Any] = []

        async def body(steps: Each) -> None:
            await steps.sleep("s", 60)
            got.append(await steps.wait("w", "paid", timeout=1))

        clock.freeze()
        await declare(body).aenqueue()
        await queue.publish("paid", ttl=60)
        await drain(advance=True)
        assert got == [None]

    @pytest.mark.parametrize(
        ("event", "options"),
        [
            ("", {}),
            ("a\0", {}),
            ("paid", {"match": ""}),
            ("paid", {"match": 7}),
            ("paid", {"timeout": -1}),
            ("paid", {"timeout": float("nan")}),
            ("paid", {"timeout": None}),
        ],
    )
    async def test_what_cannot_be_is_refused(
        self, drain: Drain, declare: Any, store: Store, event: str, options: dict[str, Any]
    ) -> None:
        async def body(steps: Each) -> None:
            await steps.wait("w", event, **options)

        await declare(body).aenqueue()
        with pytest.raises(xjobs.Invariant):
            await drain()
        assert store.tables.steps() == []

    async def test_a_sleep_and_two_long_waits_in_one_run(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, declare: Any
    ) -> None:
        got: list[Any] = []

        async def body(steps: Each) -> None:
            await steps.sleep("month", timedelta(days=30))
            got.append(await steps.wait("never", "nothing", timeout=timedelta(days=7)))
            got.append(await steps.wait("answer", "paid", match="1", timeout=timedelta(days=7)))

        async def pay() -> None:
            await queue.publish("paid", {"day": 6}, correlation_key="1")

        payment: Any = xjobs.job(key=xjobs.NO_KEY)(pay)
        began = clock.freeze()
        made = await declare(body, retry=1).aenqueue()
        await payment.using(delay=timedelta(days=30 + 7 + 6)).aenqueue()
        report = await drain(advance=True)
        assert [getattr(event, "payload", None) for event in got] == [None, None, {"day": 6}][-len(got) :]
        assert clock.now == began + timedelta(days=43)
        assert report.reason == "idle"
        row = await queue.job(made.id)
        assert row is not None
        assert (row.state, row.attempt) == ("done", 1)


class TestFence:
    """A write lands only while the claim stands that makes it."""

    async def _log(
        self, store: Store, queue: xjobs.AsyncQueue, work: Work, worker_id: str
    ) -> tuple[StepLog, xjobs.ClaimedJob]:
        await work.aenqueue(n=1)
        (job,) = (await queue.claim(queues=["default"], worker_id=worker_id)).jobs
        return self._of(store, job, worker_id), job

    def _of(self, store: Store, job: xjobs.ClaimedJob, worker_id: str, clock: Any = None) -> StepLog:
        clock = clock or (lambda: datetime.now(UTC))
        return StepLog(store.driver, job, worker_id=worker_id, signal=RunSignal(), clock=clock)

    @pytest.mark.parametrize("kind", ["run", "sleep", "wait"])
    @pytest.mark.parametrize("end", ["ack", "nack", "cancel", "reclaim", "remove"])
    async def test_a_stale_write_is_refused(
        self,
        store: Store,
        queue: xjobs.AsyncQueue,
        work: Work,
        worker_id: str,
        clock: Clock,
        kind: str,
        end: str,
    ) -> None:
        clock.freeze()
        log, job = await self._log(store, queue, work, worker_id)
        await log.run("before", produce(1))
        if end == "ack":
            await queue.ack([xjobs.Ack(job)], worker_id=worker_id)
        elif end == "nack":
            await queue.nack([xjobs.Nack(job)], worker_id=worker_id)
        elif end == "cancel":
            await queue.cancel(job.id)
        elif end == "remove":
            await queue.cancel(job.id)
            await queue.remove(job.id)
        else:
            clock.advance(60)
            (again,) = (await queue.claim(queues=["default"], worker_id=worker_id)).jobs
            assert await self._of(store, again, worker_id).run("s", produce("theirs")) == "theirs"
        before = store.tables.steps()
        calls: dict[str, Any] = {
            "run": lambda: log.run("s", produce("ours")),
            "sleep": lambda: log.sleep("s", 60),
            "wait": lambda: log.wait("s", "paid"),
        }
        with pytest.raises(xjobs.JobCancelled if end == "cancel" else xjobs.LeaseLost):
            await calls[kind]()
        with pytest.raises(xjobs.Aborted):  # and the run has been told to stop
            await log.run("t", produce(1))
        assert store.tables.steps() == before

    async def test_a_write_of_a_run_that_must_stop_is_refused_unless_its_worker_ends(
        self, store: Store, queue: xjobs.AsyncQueue, work: Work, worker_id: str
    ) -> None:
        await work.aenqueue(n=1)
        (job,) = (await queue.claim(queues=["default"], worker_id=worker_id)).jobs
        for reason, lands in ((xjobs.Draining("end", ""), True), (xjobs.JobTimeout("late", ""), False)):
            signal = RunSignal()
            log = StepLog(store.driver, job, worker_id=worker_id, signal=signal, clock=lambda: datetime.now(UTC))
            name = type(reason).__name__

            async def stopped(signal: RunSignal = signal, reason: Any = reason) -> int:
                signal.stop(reason)
                return 1

            if lands:
                assert await log.run(name, stopped) == 1
            else:
                with pytest.raises(xjobs.Aborted) as caught:
                    await log.run(name, stopped)
                assert caught.value.__cause__ is reason
            with pytest.raises(xjobs.Aborted):
                await log.run("next", produce(1))
        assert [row[1] for row in store.tables.steps()] == ["Draining"]

    async def test_a_log_serves_no_one_after_the_end(
        self, store: Store, queue: xjobs.AsyncQueue, work: Work, worker_id: str
    ) -> None:
        log, _ = await self._log(store, queue, work, worker_id)
        log.end()
        for call in (log.run("s", produce(1)), log.sleep("s", 1), log.wait("s", "paid")):
            with pytest.raises(xjobs.Aborted, match="after its attempt had ended"):
                await call
        assert store.tables.steps() == []

    async def test_a_step_under_way_when_the_attempt_ends_is_not_recorded(
        self, store: Store, drain: Drain, queue: xjobs.AsyncQueue
    ) -> None:
        left: list[asyncio.Task[Any]] = []
        go = asyncio.Event()

        async def slow() -> int:
            await go.wait()
            return 1

        @xjobs.job(key=xjobs.NO_KEY)
        async def loose(ctx: xjobs.AsyncContext) -> None:
            left.append(asyncio.create_task(ctx.step.run("slow", slow)))
            await asyncio.sleep(0)
            await ctx.step.run("quick", int)

        await loose.aenqueue()
        await drain()
        go.set()
        with pytest.raises(xjobs.Aborted):
            await left[0]
        assert [row[1] for row in store.tables.steps()] == ["quick"]


class TestAsyncBodies:
    async def test_a_forgotten_await_fails_the_attempt_and_names_the_step(
        self, queue: xjobs.AsyncQueue, drain: Drain
    ) -> None:
        @xjobs.job(key=xjobs.NO_KEY)
        async def hasty(ctx: xjobs.AsyncContext) -> None:
            ctx.step.run("a", int)  # type: ignore[unused-coroutine]
            ctx.step.sleep("b", 5)  # type: ignore[unused-coroutine]
            ctx.step.wait_for_event("c", "paid")  # type: ignore[unused-coroutine]

        made = await hasty.aenqueue()
        with pytest.raises(xjobs.StepNotAwaited, match="'a', 'b', 'c' of job 'hasty' was called and not awaited"):
            await drain()
        row = await queue.job(made.id)
        assert row is not None
        assert row.state == "dead"

    async def test_steps_may_run_at_once(self, queue: xjobs.AsyncQueue, drain: Drain) -> None:
        async def effect(number: int) -> int:
            await asyncio.sleep(0)
            return number

        got: list[Any] = []

        @xjobs.job(key=xjobs.NO_KEY)
        async def wide(ctx: xjobs.AsyncContext) -> None:
            got.append(await asyncio.gather(*(ctx.step.run(f"s{n}", effect, n) for n in range(5))))
            async with asyncio.TaskGroup() as group:
                waits = [group.create_task(ctx.step.wait_for_event(f"w{n}", "paid")) for n in range(2)]
            got.append([wait.result() for wait in waits])

        await wide.aenqueue()
        published = [await queue.publish("paid", n) for n in range(2)]
        await drain()
        assert got == [[0, 1, 2, 3, 4], published]

    async def test_a_suspension_leaves_a_task_group(self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock) -> None:
        done: list[int] = []

        @xjobs.job(key=xjobs.NO_KEY, retry=1)
        async def grouped(ctx: xjobs.AsyncContext) -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.step.sleep("s", 60))
            done.append(1)

        clock.freeze()
        await grouped.aenqueue()
        report = await drain(advance=True)
        assert [run.outcome for run in report.runs] == ["suspended", "completed"]
        assert done == [1]

    async def test_an_async_function_in_a_def_body_is_refused(self, queue: xjobs.AsyncQueue, drain: Drain) -> None:
        async def effect() -> None: ...

        @xjobs.job(key=xjobs.NO_KEY)
        def plain(ctx: xjobs.Context) -> None:
            ctx.step.run("a", effect)

        await plain.aenqueue()
        with pytest.raises(xjobs.Invariant, match="async def function"):
            await drain()


class TestRequeueFromStep:
    async def test_it_drops_the_step_and_those_that_began_after_it(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, declare: Any
    ) -> None:
        calls: list[str] = []

        async def body(steps: Each) -> None:
            for name in ("a", "b", "c", "d"):
                await steps.run(name, calls.append, name)

        clock.freeze()
        made = await declare(body).aenqueue()
        await drain()
        await queue.requeue(made.id, from_step="c")
        assert [record.name for record in await queue.steps(made.run_id)] == ["a", "b"]
        await drain()
        assert calls == ["a", "b", "c", "d", "c", "d"]
        await queue.requeue(made.id, from_step="unknown")
        await drain()
        await queue.requeue(made.id)
        await drain()
        assert len(calls) == 6

    async def test_one_that_began_at_the_same_instant_beside_it_is_kept(
        self, store: Store, queue: xjobs.AsyncQueue, work: Work, clock: Clock, worker_id: str
    ) -> None:
        clock.freeze()
        made = await work.aenqueue(n=1)
        (job,) = (await queue.claim(queues=["default"], worker_id=worker_id)).jobs
        for name in ("a", "b"):  # two logs know nothing of each other
            log = StepLog(store.driver, job, worker_id=worker_id, signal=RunSignal(), clock=lambda: datetime.now(UTC))
            log._records = {}
            await log.run(name, produce(name))
        await queue.ack([xjobs.Ack(job)], worker_id=worker_id)
        await queue.requeue(made.id, from_step="a")
        assert [record.name for record in await queue.steps(made.run_id)] == ["b"]

    async def test_a_refused_requeue_drops_nothing(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, declare: Any, tables: Tables
    ) -> None:
        async def body(steps: Each) -> None:
            await steps.run("a", int)

        job = declare(body, key=lambda: "same")
        made = await job.aenqueue()
        await drain()
        other = await job.aenqueue()
        before = tables.steps()
        with pytest.raises(xjobs.JobDuplicate):
            await queue.requeue(made.id, from_step="a")
        with pytest.raises(xjobs.JobNotRequeueable):
            await queue.requeue(other.id, from_step="a")
        assert tables.steps() == before

    async def test_a_removed_run_takes_its_steps_along_unless_another_row_has_them(
        self, queue: xjobs.AsyncQueue, drain: Drain, declare: Any, tables: Tables
    ) -> None:
        async def body(steps: Each) -> None:
            await steps.run("a", int)

        job = declare(body)
        first = await job.aenqueue()
        await drain()
        second = await job.using(run_id=first.run_id).aenqueue()
        await drain()
        await queue.remove(first.id)
        assert len(tables.steps()) == 1
        await queue.remove(second.id)
        assert tables.steps() == []
        for _ in range(3):
            await job.aenqueue()
        await drain()
        assert len(tables.steps()) == 3
        assert (await queue.remove_many(state="done")).affected == 3
        assert tables.steps() == []


class TestEvents:
    async def test_they_are_listed_newest_first_until_they_expire(
        self, queue: xjobs.AsyncQueue, clock: Clock, tables: Tables
    ) -> None:
        clock.freeze()
        published = [await queue.publish("a" if n else "b", {"n": n}, ttl=60 + n) for n in range(3)]
        assert await queue.events() == published[::-1]
        assert await queue.events("a", limit=1) == [published[2]]
        clock.advance(61)
        assert await queue.events() == [published[2]]
        assert await queue.purge_events() == 2
        assert [row[0] for row in tables.events()] == [published[2].id]
        assert await queue.purge_events() == 0

    @pytest.mark.parametrize(
        ("payload", "path"),
        [({"a": [b""]}, "payload.a[0]"), (float("inf"), "payload"), ({"k": (1,)}, "payload.k"), ({1: 2}, "payload")],
    )
    async def test_a_payload_that_is_no_strict_json_is_refused(
        self, queue: xjobs.AsyncQueue, tables: Tables, payload: Any, path: str
    ) -> None:
        with pytest.raises(xjobs.InputInvalid) as caught:
            await queue.publish("paid", payload)
        assert caught.value.path == path
        assert tables.events() == []

    @pytest.mark.parametrize(
        "arguments",
        [{"name": ""}, {"name": "x" * 256}, {"correlation_key": "k" * 1001}, {"ttl": 0}, {"ttl": float("nan")}],
    )
    async def test_what_cannot_be_is_refused(
        self, queue: xjobs.AsyncQueue, tables: Tables, arguments: dict[str, Any]
    ) -> None:
        with pytest.raises(xjobs.Invariant):
            await queue.publish(**{"name": "paid", **arguments})
        assert tables.events() == []

    async def test_waking_asks_for_the_names_that_it_is_given(
        self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock
    ) -> None:
        @xjobs.job(key=xjobs.NO_KEY, queue="orders")
        async def waits(ctx: xjobs.AsyncContext) -> None:
            await ctx.step.wait_for_event("w", "paid")

        clock.freeze()
        made = await waits.aenqueue()
        await drain()
        assert await queue.wake_waits() == []
        await queue.publish("paid")
        assert await queue.wake_waits(["other"]) == []
        assert await queue.wake_waits(["other", "paid"]) == [(made.id, "orders")]
        assert await queue.wake_waits() == []  # it is due already

    async def test_a_run_id_that_is_no_uuid_is_refused(self, queue: xjobs.AsyncQueue) -> None:
        with pytest.raises(xjobs.IdInvalid):
            await queue.steps("nonsense")


def produce(value: Any) -> Callable[[], Any]:
    async def answer() -> Any:
        return value

    return answer


def test_a_suspension_is_no_exception() -> None:
    assert not issubclass(Suspended, Exception)

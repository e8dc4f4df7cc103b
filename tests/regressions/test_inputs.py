"""Numbers, names and options from outside: refused when they mean nothing, and heeded when they mean something."""

from __future__ import annotations

import enum
import inspect
import math
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from conformance.fixtures import Drain, Work
from conformance.stores import Tables

import xjobs
from pytest_xjobs.clock import Clock

NO_COUNT = [-1, 0.5, 1.0, math.nan, math.inf, -math.inf, True, "1", None]
NO_SPAN = [math.nan, math.inf, -math.inf, True, "1s", 1e300, 10**40]

Act = Callable[[xjobs.AsyncQueue, xjobs.ClaimedJob, Any], Awaitable[Any]]
COUNTS: dict[str, Act] = {
    "limit of a claim": lambda queue, job, n: queue.claim(queues=["default"], worker_id="w", limit=n),
    "limit of a listing": lambda queue, job, n: queue.jobs(limit=n),
}
SPANS: dict[str, Act] = {
    "lease of a claim": lambda queue, job, span: queue.claim(queues=["default"], worker_id="w", lease=span),
    "lease of a heartbeat": lambda queue, job, span: queue.heartbeat([job], worker_id="w", lease=span),
    "delay of a nack": lambda queue, job, span: queue.nack([xjobs.Nack(job, delay=span)], worker_id="w"),
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name in COUNTS for value in NO_COUNT] + [(name, value) for name in SPANS for value in NO_SPAN],
)
async def test_a_number_that_means_nothing_is_refused_before_anything_happens(
    queue: xjobs.AsyncQueue, tables: Tables, work: Work, name: str, value: Any
) -> None:
    """Faults 44 and 48: NaN leases never lapsed, fractions and negatives went through, a NaN delay slept for ever."""
    await queue.enqueue_many(work.call(n=n) for n in range(2))
    (job,) = (await queue.claim(queues=["default"], worker_id="w")).jobs
    before = tables.jobs()
    with pytest.raises(xjobs.Invariant):
        await {**COUNTS, **SPANS}[name](queue, job, value)
    assert (tables.jobs(), tables.counters()) == (before, [])


@pytest.mark.parametrize("value", NO_COUNT)
def test_no_attempts_are_refused_where_they_are_declared(value: Any) -> None:
    """Fault 45: zero was accepted and made a job that could never run, silently."""
    if value is None:
        value = 0
    with pytest.raises(xjobs.DeclarationInvalid):
        xjobs.Retry(attempts=value)


@pytest.mark.parametrize(
    "name", ["constructor", "__proto__", "toString", "None", "%s", "{}", "'; --", "$1", " ", "null", "a,b", "ＡＢＣ"]
)
async def test_any_name_is_only_a_name(queue: xjobs.AsyncQueue, tables: Tables, drain: Drain, name: str) -> None:
    """Fault 46: a queue with the name of a built-in property broke the table of slots."""

    @xjobs.job(key="{text}", name=name, queue=name, tenant="{text}")
    async def work(text: str) -> None: ...

    made = await work.using(enqueued_by=name, traceparent=name).aenqueue(text=name)
    tables.pause(name)
    assert (await queue.claim(queues=[name], worker_id=name)).jobs == []
    tables.resume(name)
    (job,) = (await queue.claim(queues=[name], worker_id=name)).jobs
    assert (job.id, job.name, job.queue, job.tenant_id, job.input) == (made.id, name, name, name, {"text": name})
    assert await queue.nack([xjobs.Nack(job, error=name, stack=name)], worker_id=name) == {job.id}
    assert [stats.queue for stats in await queue.stats()] == [name]
    assert [row.last_error for row in await queue.jobs(name, queue=name)] == [name]
    assert [run.job_name for run in (await drain()).runs] == [name]
    assert [counter[0] for counter in tables.counters()] == [name]


def test_jitter_that_is_not_mentioned_is_on() -> None:
    """Fault 54: leaving it out meant off."""
    from random import Random

    waits = {xjobs.Retry(backoff="fixed", delay=60).delay_after(1, Random(seed)) for seed in range(20)}
    assert len(waits) == 20


# Options of a declaration or an enqueue: how each is given, and what it changes in the row of `work(n=7)`.
AT = datetime(2030, 1, 1, tzinfo=UTC)
ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
DECLARED: dict[str, tuple[Any, str, Any]] = {
    "key": ("k{n}", "idempotency_key", "k7"),
    "name": ("app.work", "name", "app.work"),
    "queue": ("mail", "queue", "mail"),
    "tenant": ("t{n}", "tenant_id", "t7"),
    "retry": (9, "max_attempts", 9),
}
GIVEN: dict[str, tuple[Any, str, Any]] = {
    "run_at": (AT, "run_at", AT),
    "delay": (60, "state", "delayed"),
    "queue": ("mail", "queue", "mail"),
    "key": ("mine", "idempotency_key", "mine"),
    "tenant": ("t", "tenant_id", "t"),
    "id": (ID, "id", ID),
    "run_id": (ID, "run_id", ID),
    "enqueued_by": ("ann", "enqueued_by", "ann"),
    "traceparent": ("00-a", "traceparent", "00-a"),
}
ELSEWHERE = {"on_conflict", "connection"}  # conformance/test_enqueue.py, test_transactions.py


class TestOptionsAreHeeded:
    """Fault 59: options that were declared and never read, so that nothing held what they promised."""

    @pytest.mark.parametrize("option", DECLARED)
    async def test_of_a_declaration(self, queue: xjobs.AsyncQueue, option: str) -> None:
        value, column, expected = DECLARED[option]

        def work(n: int) -> None: ...

        job = xjobs.job(**{"key": "{n}", option: value})(work)
        await job.aenqueue(n=7)
        (row,) = await queue.jobs()
        assert getattr(row, column) == expected

    @pytest.mark.parametrize("option", ["timeout", "step_timeout"])
    async def test_of_a_deadline(self, queue: xjobs.AsyncQueue, drain: Drain, clock: Clock, option: str) -> None:
        @xjobs.job(**{"key": xjobs.NO_KEY, option: 60})
        def work(ctx: xjobs.Context) -> None:
            ctx.step.run("a", lambda: clock.advance(60) and None)

        clock.freeze()
        await work.aenqueue()
        (run,) = (await drain(errors="collect")).runs
        assert isinstance(run.error, xjobs.JobTimeout)

    async def test_of_a_limit(self, queue: xjobs.AsyncQueue, drain: Drain) -> None:
        seen: list[int] = []

        @xjobs.job(key="{n}", concurrency_limit=1)
        async def work(n: int) -> None:
            seen.append(len(await queue.driver.run(xjobs.sql.SQL_SLOT_HOLDERS, keys=["job:work"])))

        await work.aenqueue(n=1)
        await drain()
        assert seen == [1]

    @pytest.mark.parametrize("option", GIVEN)
    async def test_of_an_enqueue(self, queue: xjobs.AsyncQueue, work: Work, option: str) -> None:
        value, column, expected = GIVEN[option]
        await work.using(**{option: value}).aenqueue(n=7)
        (row,) = await queue.jobs()
        assert getattr(row, column) == expected

    @pytest.mark.parametrize(
        ("policy", "waits", "state"),
        [
            ({}, [10, 20], "dead"),
            ({"attempts": 2}, [10], "dead"),
            ({"backoff": "fixed"}, [10, 10], "dead"),
            ({"delay": 1}, [1, 2], "dead"),
            ({"max_delay": 15}, [10, 15], "dead"),
            ({"dead_letter": False}, [10, 20], "failed"),
        ],
    )
    async def test_of_a_retry_policy(
        self,
        queue: xjobs.AsyncQueue,
        clock: Clock,
        drain: Drain,
        policy: dict[str, Any],
        waits: list[int],
        state: str,
    ) -> None:
        @xjobs.job(key="{n}", retry=xjobs.Retry(**{"delay": 10, "jitter": False, **policy}))
        async def fail(n: int) -> None:
            raise LookupError

        clock.freeze()
        await fail.aenqueue(n=1)
        report = await drain(errors="collect", advance=True)
        assert [jump.end - jump.start for jump in report.jumps] == [timedelta(seconds=wait) for wait in waits]
        assert [row.state for row in await queue.jobs()] == [state]

    def test_and_there_are_no_others(self) -> None:
        declared = set(DECLARED) | {"timeout", "step_timeout", "concurrency_limit"}
        options = inspect.signature(xjobs.job).parameters.values()
        assert {option.name for option in options if option.kind is option.KEYWORD_ONLY} == declared
        using = set(inspect.signature(xjobs.JobHandle.using).parameters) - {"self"}
        assert using == set(GIVEN) | ELSEWHERE
        retry = set(inspect.signature(xjobs.Retry).parameters)
        assert retry == {"attempts", "backoff", "delay", "max_delay", "jitter", "dead_letter"}


class Speed(enum.StrEnum):
    SLOW = "slow"


class OldSpeed(str, enum.Enum):  # noqa: UP042 - the older form, whose text in a message is another one
    SLOW = "slow"


class Odd(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "odd"


class Instant(datetime):
    """As a frozen clock and some libraries have them."""


TEXTS = [Speed.SLOW, OldSpeed.SLOW, Odd("slow")]
TEXT_OPTIONS = [name for name, (value, _, _) in GIVEN.items() if isinstance(value, str)]


@pytest.mark.parametrize("text", TEXTS, ids=["enum", "older enum", "subclass"])
class TestTextsOfSubclassesArePlain:
    """Members of enums came back from memory as members, and from a database as texts."""

    @pytest.mark.parametrize("option", TEXT_OPTIONS)
    async def test_as_an_option_of_an_enqueue(
        self, queue: xjobs.AsyncQueue, work: Work, tables: Tables, option: str, text: str
    ) -> None:
        await work.using(**{option: text}).aenqueue(n=7)
        column = GIVEN[option][1]
        (row,) = await queue.jobs()
        for found in (getattr(row, column), tables.jobs()[0][column]):
            assert (type(found), found) == (str, "slow")

    @pytest.mark.parametrize("option", ["name", "queue", "key", "tenant"])
    async def test_as_an_option_of_a_declaration(self, queue: xjobs.AsyncQueue, option: str, text: str) -> None:
        given: Any = text if option in ("name", "queue") else lambda n: text

        def work(n: int) -> None: ...

        job = xjobs.job(**{"key": "{n}", option: given})(work)
        await job.aenqueue(n=7)
        (row,) = await queue.jobs()
        found = getattr(row, DECLARED[option][1])
        assert (type(found), found) == (str, "slow")

    async def test_as_what_an_operator_gives(self, queue: xjobs.AsyncQueue, work: Work, text: str) -> None:
        made = await work.aenqueue(n=7)
        cancelled = await queue.cancel(made.id, reason=text)
        assert (type(cancelled.last_error), cancelled.last_error) == (str, "slow")
        assert [(type(paused.name), paused.name) for paused in await queue.pause_queue(text)] == [(str, "slow")]

    def test_as_the_key_of_a_limit(self, text: str) -> None:
        def work(n: int) -> None: ...

        job = xjobs.job(key="{n}", concurrency_limit=xjobs.Limit(1, key=lambda n: text))(work)
        assert job.slot_key({"n": 7}) == "job-key:work:slow"


async def test_an_instant_of_a_subclass_is_a_plain_one(queue: xjobs.AsyncQueue, work: Work, tables: Tables) -> None:
    """Memory gave back the frozen clock's own class."""
    await work.using(run_at=Instant(2030, 1, 1, tzinfo=UTC, fold=1)).aenqueue(n=7)
    (row,) = await queue.jobs()
    for found in (row.run_at, tables.jobs()[0]["run_at"]):
        assert (type(found), found) == (type(AT), AT)

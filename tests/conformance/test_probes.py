"""Probes under which the memory backends of other queues differed from their Postgres, answered alike on every driver.

What was probed and how others answered is in the name and the docstring of each test.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

import xjobs
from conformance.fixtures import Drain, Work
from conformance.stores import Tables
from pytest_xjobs.clock import Clock

MISSING = UUID(int=7)
BEYOND = [2**31, 2**63, 10**30]
"""Beyond the integers of a Postgres column or parameter."""


@pytest.fixture
def received() -> list[Any]:
    return []


@pytest.mark.parametrize("value", [datetime(2030, 1, 1, tzinfo=UTC), (1, (2, 3))], ids=["datetime", "tuple"])
async def test_a_value_that_json_does_not_have_comes_back_or_is_refused(
    queue: xjobs.AsyncQueue, drain: Drain, tables: Tables, received: list[Any], value: Any
) -> None:
    """Memory took a datetime and gave the tuple back; Postgres raised TypeError and gave a list."""

    @xjobs.job(key=xjobs.NO_KEY)
    def named(at: datetime | None = None, pair: tuple[int, tuple[int, int]] | None = None) -> None:
        received.append(at or pair)

    @xjobs.job(key=xjobs.NO_KEY)
    def unnamed(value: Any) -> None: ...

    with pytest.raises(xjobs.InputInvalid):
        await unnamed.aenqueue(value=value)
    assert tables.jobs() == []
    await named.aenqueue(**{"at" if isinstance(value, datetime) else "pair": value})
    await drain()
    assert received == [value]


@pytest.mark.parametrize("verb", ["cancel", "requeue", "promote", "remove"])
async def test_a_verb_on_an_id_that_nothing_has(queue: xjobs.AsyncQueue, verb: str) -> None:
    """Memory raised KeyError; Postgres answered False."""
    with pytest.raises(xjobs.Error) as refused:
        await getattr(queue, verb)(MISSING)
    expected = "X_JOB_NOT_CANCELLABLE" if verb == "cancel" else "X_JOB_NOT_FOUND"
    assert (refused.value.code, str(MISSING) in str(refused.value)) == (expected, True)
    assert await queue.job(MISSING) is None


@pytest.mark.parametrize("number", BEYOND)
async def test_attempts_beyond_the_column_are_refused_where_they_are_declared(number: int) -> None:
    """Memory took a priority beyond four bytes; Postgres raised an error."""
    with pytest.raises(xjobs.DeclarationInvalid):
        xjobs.Retry(attempts=number)


@pytest.mark.parametrize("number", BEYOND)
@pytest.mark.parametrize("what", ["claim", "jobs", "cancel_many", "remove_many"])
async def test_a_limit_beyond_the_parameter_is_the_same_everywhere(
    queue: xjobs.AsyncQueue, tables: Tables, work: Work, what: str, number: int
) -> None:
    await work.aenqueue(n=1)
    before = tables.jobs()
    with pytest.raises(xjobs.Invariant):
        if what == "claim":
            await queue.claim(queues=["default"], worker_id="w", limit=number)
        elif what == "jobs":
            await queue.jobs(limit=number)
        else:
            await getattr(queue, what)(state="ready", limit=number)
    assert tables.jobs() == before


Act = Callable[[xjobs.AsyncQueue, Work, str], Awaitable[Any]]
TEXTS: dict[str, Act] = {
    "queue": lambda queue, work, text: work.using(queue=text).aenqueue(n=1),
    "key": lambda queue, work, text: work.using(key=text).aenqueue(n=1),
    "tenant": lambda queue, work, text: work.using(tenant=text).aenqueue(n=1),
    "actor": lambda queue, work, text: work.using(enqueued_by=text).aenqueue(n=1),
    "trace": lambda queue, work, text: work.using(traceparent=text).aenqueue(n=1),
    "claimed queue": lambda queue, work, text: queue.claim(queues=[text], worker_id="w"),
    "worker": lambda queue, work, text: queue.claim(queues=["default"], worker_id=text),
    "reason": lambda queue, work, text: queue.cancel(MISSING, reason=text),
    "paused queue": lambda queue, work, text: queue.pause_queue(text),
    "listed queue": lambda queue, work, text: queue.jobs(queue=text),
    "bulk queue": lambda queue, work, text: queue.cancel_many(state="ready", queue=text),
}


@pytest.mark.parametrize("text", ["a\0b", "\ud800"], ids=["NUL", "surrogate"])
@pytest.mark.parametrize("place", TEXTS)
async def test_text_that_postgres_cannot_hold_is_refused(
    queue: xjobs.AsyncQueue, tables: Tables, work: Work, place: str, text: str
) -> None:
    """Memory took a NUL; Postgres raised an error."""
    with pytest.raises(xjobs.Invariant):
        await TEXTS[place](queue, work, text)
    assert (tables.jobs(), tables.pauses()) == ([], [])


async def test_a_retry_after_a_cancel(queue: xjobs.AsyncQueue, work: Work) -> None:
    """After an abort was requested, memory left the job to be done and Postgres had it failed."""
    made = await work.aenqueue(n=1)
    (job,) = (await queue.claim(queues=["default"], worker_id="w")).jobs
    await queue.cancel(made.id)
    assert await queue.nack([xjobs.Nack(job)], worker_id="w") == set()
    assert [row.state for row in await queue.jobs()] == ["cancelled"]


async def test_finishing_a_job_that_never_started(queue: xjobs.AsyncQueue, tables: Tables, work: Work) -> None:
    """Both took it: here nothing is settled without its claim."""
    await work.aenqueue(n=1)
    (job,) = (await queue.claim(queues=["default"], worker_id="w")).jobs
    await queue.nack([xjobs.Nack(job, counted=False)], worker_id="w")
    before = tables.jobs()
    assert await queue.ack([xjobs.Ack(job)], worker_id="w") == set()
    assert (tables.jobs(), tables.counters()) == (before, [])


async def test_a_second_ack_is_no_second_ending(queue: xjobs.AsyncQueue, tables: Tables, work: Work) -> None:
    """Memory logged the job as done twice."""
    await work.aenqueue(n=1)
    (job,) = (await queue.claim(queues=["default"], worker_id="w")).jobs
    assert [await queue.ack([xjobs.Ack(job)], worker_id="w") for _ in range(2)] == [{job.id}, set()]
    assert [counter[3] for counter in tables.counters()] == [1]


async def test_the_shortest_lease_is_delivered_again_and_none_is_refused(
    queue: xjobs.AsyncQueue, clock: Clock, work: Work
) -> None:
    """Picked again at once where a heartbeat was set to nothing."""
    clock.freeze()
    await work.aenqueue(n=1)
    with pytest.raises(xjobs.Invariant):
        await queue.claim(queues=["default"], worker_id="w", lease=0)
    ordinals = []
    for _ in range(2):
        jobs = (await queue.claim(queues=["default"], worker_id="w", lease=timedelta(microseconds=1))).jobs
        ordinals += [job.claims for job in jobs]
        assert (await queue.claim(queues=["default"], worker_id="w")).jobs == []
        clock.advance(timedelta(microseconds=1))
    assert ordinals == [1, 2]


async def test_a_negative_delay_is_due_at_once(queue: xjobs.AsyncQueue, clock: Clock, work: Work) -> None:
    now = clock.freeze()
    await work.using(delay=timedelta(hours=-1)).aenqueue(n=1)
    assert [(row.state, row.run_at) for row in await queue.jobs()] == [("ready", now - timedelta(hours=1))]


async def test_a_batch_with_one_bad_call_puts_nothing_in(queue: xjobs.AsyncQueue, tables: Tables, work: Work) -> None:
    with pytest.raises(xjobs.InputInvalid):
        await queue.enqueue_many([work.call(n=1), work.call(n="two")])  # type: ignore[arg-type]
    assert tables.jobs() == []

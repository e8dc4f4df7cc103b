"""Right and wrong uses of handles and fixtures. Never run: mypy and pyright read it, see test_typing.py.

A line that ends in `# E: why` must be an error to both, and no other line may be one to either.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

import xjobs
from pytest_xjobs import XjobsClock, XjobsQueue
from xjobs import AsyncContext, Call, Context, DrainReport, Enqueued, JobRow, Retry, Run, job


@dataclass
class Address:
    street: str


@job(key="welcome:{user_id}", queue="mail", retry=5)
def welcome(user_id: int, greeting: str = "hello") -> str:
    return f"{greeting} {user_id}"


@job(key=lambda order_id: str(order_id), retry=Retry(attempts=8, backoff="linear", delay=timedelta(minutes=1)))
async def ship(order_id: UUID, *, to: Address | None = None) -> bool:
    return True


@job(key=xjobs.NO_KEY)
def count(ctx: Context, number: int) -> int:
    assert_type(ctx.attempt, int)
    assert_type(ctx.now(), datetime)
    return number


@job(key=xjobs.NO_KEY)
async def publish(ctx: AsyncContext, number: int) -> int:
    return number


# Declarations --------------------------------------------------------------------------------------------------------


@job(key=7)  # E: a key is text, a function or NO_KEY
def no_key() -> None: ...


@job(key="{a}", retry="often")  # E: a retry is a number or a policy
def no_retry(a: int) -> None: ...


@job(key="{a}", lane="mail")  # E: there is no such option
def no_option(a: int) -> None: ...


@job  # E: job() takes options first
def no_call() -> None: ...


Retry(attempts=3, backoff="random")  # E: no such curve


# Enqueueing ----------------------------------------------------------------------------------------------------------


def enqueue_right(queue: xjobs.Queue, token: UUID) -> None:
    assert_type(welcome.enqueue(user_id=7), Enqueued)
    assert_type(welcome.enqueue(7, greeting="hi").id, UUID)
    assert_type(welcome.using(delay=timedelta(hours=1), queue="slow").enqueue(user_id=7), Enqueued)
    assert_type(welcome.using(delay=30).call(user_id=7), Call)
    assert_type(ship.enqueue(token, to=Address("Main")), Enqueued)
    assert_type(ship.call(order_id=token), Call)
    assert_type(count.enqueue(number=1), Enqueued)
    assert_type(queue.enqueue(welcome.call(user_id=7)), Enqueued)
    assert_type(queue.enqueue_many([welcome.call(1), ship.call(token)]), list[Enqueued])
    assert_type(xjobs.enqueue_many(welcome.call(n) for n in range(3)), list[Enqueued])
    assert_type(queue.jobs(welcome, state="done"), list[JobRow])
    assert_type(queue.job(token), JobRow | None)
    with xjobs.use(queue):
        pass


def enqueue_wrong(queue: xjobs.Queue, token: UUID, ctx: Context) -> None:
    welcome.enqueue(user=7)  # E: no such parameter
    welcome.enqueue()  # E: an argument is missing
    welcome.enqueue(user_id="7")  # E: text is no number
    welcome.enqueue(7, "hi", 3)  # E: one too many
    welcome.enqueue(user_id=7, queue="mail")  # E: options go to using()
    welcome.call(user_id=None)  # E: None is no number
    welcome.using(delay="1h")  # E: text is no duration
    welcome.using(on_conflict="ignore")  # E: not one of the ways
    welcome.using(run_at=7)  # E: a number is no instant
    welcome.using(delay=30).enqueue(user="x")  # E: no such parameter, after using() too
    ship.enqueue(order_id=7)  # E: a number is no UUID
    ship.enqueue(token, Address("Main"))  # E: by keyword only
    ship.enqueue(token, to="Main")  # E: text is no Address
    count.enqueue(ctx, 1)  # E: the context is not the caller's to give
    count.enqueue(ctx=ctx, number=1)  # E: nor by name
    count.call(ctx, number=1)  # E: nor in a call
    queue.enqueue(welcome)  # E: a handle is no call
    queue.enqueue(user_id=7)  # E: a queue takes a call
    queue.enqueue_many(welcome.call(user_id=7))  # E: one call is no list
    xjobs.use(welcome)  # E: a handle is no queue
    number: int = welcome.enqueue(user_id=7)  # E: an enqueue answers no result of the body


# From async code -----------------------------------------------------------------------------------------------------


async def async_right(queue: xjobs.AsyncQueue, token: UUID) -> None:
    assert_type(await ship.aenqueue(order_id=token), Enqueued)
    assert_type(await welcome.aenqueue(7), Enqueued)
    assert_type(await publish.aenqueue(number=1), Enqueued)
    assert_type(await ship.using(delay=3).aenqueue(token), Enqueued)
    assert_type(await queue.enqueue(welcome.call(user_id=7)), Enqueued)
    assert_type(await queue.jobs(), list[JobRow])
    assert_type(await xjobs.aenqueue_many([ship.call(token)]), list[Enqueued])


async def async_wrong(queue: xjobs.AsyncQueue, token: UUID, ctx: AsyncContext) -> None:
    ship.aenqueue(order_id=token)  # E: not awaited
    welcome.using(delay=3).aenqueue(7)  # E: not awaited
    xjobs.aenqueue_many([ship.call(token)])  # E: not awaited
    queue.enqueue(welcome.call(user_id=7))  # E: not awaited
    queue.stats()  # E: not awaited
    await ship.aenqueue(order=token)  # E: no such parameter
    await publish.aenqueue(ctx, 1)  # E: the context is not the caller's to give
    await welcome.enqueue(user_id=7)  # E: the blocking form answers at once
    ship.aenqueue(order_id=token).id  # E: a coroutine has no id


# Calling the body ----------------------------------------------------------------------------------------------------


async def call_right(token: UUID, ctx: Context, actx: AsyncContext) -> None:
    assert_type(welcome(7), str)
    assert_type(welcome.body(user_id=7), str)
    assert_type(count(ctx, number=1), int)
    assert_type(await ship(token), bool)
    assert_type(await publish(actx, 1), int)


async def call_wrong(token: UUID, ctx: Context, actx: AsyncContext) -> None:
    ship(token)  # E: an async body, not awaited
    publish(actx, number=1)  # E: the same with a context
    count(number=1)  # E: called by itself, a body needs its context
    count(actx, number=1)  # E: that is the context of async bodies
    await publish(ctx, 1)  # E: that is the context of def bodies
    await welcome(7)  # E: nothing to await
    result: bool = ship(token)  # E: a coroutine is no result
    text: int = welcome(7)  # E: text is no number


# The fixtures --------------------------------------------------------------------------------------------------------


def fixtures_right(xjobs_queue: XjobsQueue, xjobs_clock: XjobsClock) -> None:
    report = xjobs_queue.drain(until=timedelta(days=3), errors="collect")
    assert_type(report, DrainReport)
    assert_type(report.runs[0].attempt, int)
    assert report.runs[0].job is welcome
    assert_type(xjobs_queue.run_next(), Run | None)
    assert_type(xjobs_queue.assert_enqueued(welcome), JobRow)
    assert_type(xjobs_queue.assert_enqueued(welcome.call(user_id=7), queue="mail", due=timedelta(hours=1)), JobRow)
    assert_type(xjobs_queue.assert_enqueued(ship, input={"to": None}, count=2), list[JobRow])
    assert_type(xjobs_queue.assert_state(welcome.enqueue(7), "done"), JobRow)
    assert_type(xjobs_queue.assert_state(report.runs[0], "done").id, UUID)
    assert_type(xjobs_clock.now, datetime)
    assert_type(xjobs_clock.advance(days=1), datetime)
    xjobs_clock.move_to(datetime(2031, 1, 1, tzinfo=UTC))


async def async_fixtures_right(xjobs_queue: XjobsQueue) -> None:
    assert_type(await xjobs_queue.adrain(), DrainReport)
    assert_type(await xjobs_queue.arun_next(), Run | None)
    pending: Coroutine[Any, Any, DrainReport] = xjobs_queue.adrain()
    await pending


def fixtures_wrong(xjobs_queue: XjobsQueue, xjobs_clock: XjobsClock) -> None:
    xjobs_queue.drain(errors="ignore")  # E: not one of the ways
    xjobs_queue.drain(until="tomorrow")  # E: text is no instant
    xjobs_queue.drain(60)  # E: by keyword only
    xjobs_queue.assert_enqueued(welcome, user_id=7)  # E: input goes into a call or input=
    xjobs_queue.assert_enqueued("welcome")  # E: a name is no job
    xjobs_queue.assert_enqueued(welcome, count="1")  # E: text is no number
    xjobs_queue.assert_state(welcome, "done")  # E: a handle is not one job
    xjobs_clock.advance("7d")  # E: text is no duration
    xjobs_clock.now = datetime.now(UTC)  # E: time is moved by methods


async def async_fixtures_wrong(xjobs_queue: XjobsQueue) -> None:
    xjobs_queue.adrain()  # E: not awaited
    xjobs_queue.arun_next()  # E: not awaited
    (await xjobs_queue.adrain()).jobs  # E: a report has runs


# Durable runs --------------------------------------------------------------------------------------------------------


def label(order_id: UUID, copies: int = 1) -> str:
    return f"{order_id} x{copies}"


async def alabel(order_id: UUID) -> str:
    return str(order_id)


def steps_right(ctx: Context, order_id: UUID) -> None:
    assert_type(ctx.step.run("label", label, order_id), str)
    assert_type(ctx.step.run("label", label, order_id, copies=2), str)
    assert_type(ctx.step.wait_for_event("paid", "order.paid", match="7", timeout=timedelta(days=7)), xjobs.Event | None)
    ctx.step.sleep("grace", timedelta(days=3))
    ctx.step.sleep(60)
    ctx.progress(1, 2, "half")


async def async_steps_right(ctx: AsyncContext, order_id: UUID) -> None:
    assert_type(await ctx.step.run("label", label, order_id), str)
    assert_type(await ctx.step.run("label", alabel, order_id), str)
    assert_type(await ctx.step.wait_for_event("paid", "order.paid"), xjobs.Event | None)
    await ctx.step.sleep("grace", timedelta(days=3))
    await ctx.progress(1, 2)


def steps_wrong(ctx: Context, order_id: UUID) -> None:
    ctx.step.run("label", label, "7")  # E: the function takes a UUID
    ctx.step.run("label", label)  # E: and it takes one
    ctx.step.run(label, order_id)  # E: a step has a name
    ctx.step.sleep("grace", "3 days")  # E: text is no duration
    ctx.step.wait_for_event("paid", "order.paid", match=7)  # E: a match is text


async def async_steps_wrong(ctx: AsyncContext, order_id: UUID) -> None:
    ctx.step.run("label", label, order_id)  # E: not awaited
    ctx.step.sleep(60)  # E: not awaited
    ctx.step.wait_for_event("paid", "order.paid")  # E: not awaited
    await ctx.step.run("label", alabel, order_id, 7)  # E: one argument too many


@xjobs.classify("terminal")
class Declined(Exception): ...


@xjobs.classify("fatal")  # E: not one of the kinds
class Fatal(Exception): ...


@welcome.on_settled
def told(ending: xjobs.Ending) -> None:
    assert_type(ending.outcome, str)


@welcome.on_settled  # E: a hook takes an ending
def told_wrong(ending: int) -> None: ...

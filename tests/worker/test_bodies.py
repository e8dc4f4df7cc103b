"""`async def` bodies on the event loop: none notices another one, and each is cancelled when it has to be."""

from __future__ import annotations

import asyncio
import contextvars
import time
from contextlib import suppress
from typing import Any

import pytest
from serving import FaultyConnections, serving, until

import xjobs
from xjobs import NO_KEY, job, registry
from xjobs.states import LIVE

MARK: contextvars.ContextVar[object] = contextvars.ContextVar("mark")


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(registry, "_cached", None)


async def drained(connections: FaultyConnections, store: xjobs.Queue, calls: list[xjobs.Call], **options: Any) -> None:
    """Have one claim take all the calls, and wait until each is settled."""
    store.enqueue_many(calls)
    async with serving(connections, concurrency=len(calls), **options):
        await until("the jobs to end", lambda: not any(row.state in LIVE for row in store.jobs()))


@pytest.mark.parametrize("suspends", [False, True])
@pytest.mark.parametrize("outside", [False, True])
async def test_no_body_sees_the_context_variables_of_another(
    connections: FaultyConnections, store: xjobs.Queue, suspends: bool, outside: bool
) -> None:
    seen: list[object] = []

    @job(key=NO_KEY)
    async def marks(n: int) -> None:
        seen.append(MARK.get("none"))
        MARK.set(n)
        if suspends:
            await asyncio.sleep(0)
        seen.append(MARK.get())

    if outside:
        MARK.set("outside")
    await drained(connections, store, [marks.call(n=n) for n in range(5)])
    before = "outside" if outside else "none"
    assert sorted(map(str, seen)) == sorted([before] * 5 + [str(n) for n in range(5)])


async def test_bodies_begin_in_the_order_of_the_claim_and_each_task_has_its_name(
    connections: FaultyConnections, store: xjobs.Queue
) -> None:
    began: list[tuple[str, int]] = []

    @job(key=NO_KEY)
    async def quick(n: int) -> None:
        began.append((asyncio.current_task().get_name(), n))  # type: ignore[union-attr]

    @job(key=NO_KEY)
    async def slow(n: int) -> None:
        began.append((asyncio.current_task().get_name(), n))  # type: ignore[union-attr]
        await asyncio.sleep(0.01)
        assert asyncio.current_task().get_name() == "slow"  # type: ignore[union-attr]

    bodies = [slow, quick, quick, slow, slow, quick]
    await drained(connections, store, [body.call(n=n) for n, body in enumerate(bodies)])
    assert began == [(body.name, n) for n, body in enumerate(bodies)]
    assert {row.state for row in store.jobs()} == {"done"}


async def test_a_body_that_cancels_its_own_task_harms_no_other(
    connections: FaultyConnections, store: xjobs.Queue
) -> None:
    cancelling: list[int] = []

    @job(key=NO_KEY, retry=1)
    async def cancels() -> None:
        asyncio.current_task().cancel()  # type: ignore[union-attr]
        asyncio.current_task().uncancel()  # type: ignore[union-attr]

    @job(key=NO_KEY, retry=1)
    async def works() -> None:
        cancelling.append(asyncio.current_task().cancelling())  # type: ignore[union-attr]
        await asyncio.sleep(0)

    await drained(connections, store, [cancels.call(), works.call(), cancels.call(), works.call()])
    assert [row.state for row in store.jobs()] == ["done"] * 4
    assert cancelling == [0, 0]


async def test_a_body_that_suspends_keeps_no_other_from_starting(
    connections: FaultyConnections, store: xjobs.Queue
) -> None:
    """All bodies of a claim begin before any of them goes on."""
    steps: list[str] = []

    @job(key=NO_KEY)
    async def goes_on(n: int) -> None:
        steps.append("begun")
        await asyncio.sleep(0)
        steps.append("gone on")

    await drained(connections, store, [goes_on.call(n=n) for n in range(20)])
    assert steps == ["begun"] * 20 + ["gone on"] * 20


async def test_what_a_body_leaves_behind_reaches_no_other(connections: FaultyConnections, store: xjobs.Queue) -> None:
    """A timer that cancels, and a callback on the task, are of the body that left them."""
    ended: list[str] = []

    @job(key=NO_KEY, retry=1)
    async def leaves() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_later(0.02, task.cancel)
        task.add_done_callback(lambda _: ended.append("leaves"))

    @job(key=NO_KEY, retry=1)
    async def victim() -> None:
        await asyncio.sleep(0.1)
        ended.append("victim")

    await drained(connections, store, [leaves.call(), victim.call()])
    assert ended == ["leaves", "victim"]
    assert [(row.state, row.attempt) for row in store.jobs()] == [("done", 1)] * 2


async def test_a_deadline_counts_from_the_start_of_a_body_that_suspends_late(
    connections: FaultyConnections, store: xjobs.Queue
) -> None:
    suspended: list[float] = []

    @job(key=NO_KEY, timeout=1.0, retry=1)
    async def late() -> None:
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            pass
        began = time.monotonic()
        try:
            await asyncio.sleep(60)
        finally:
            suspended.append(time.monotonic() - began)

    await drained(connections, store, [late.call()])
    (row,) = store.jobs()
    assert (row.state, "JobTimeout" in str(row.last_error)) == ("dead", True)
    assert suspended[0] < 0.8


async def test_a_body_that_goes_on_when_the_worker_ends_is_named(
    connections: FaultyConnections, store: xjobs.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    release, started = asyncio.Event(), asyncio.Event()

    @job(key=NO_KEY)
    async def stubborn() -> None:
        started.set()
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await release.wait()

    @job(key=NO_KEY)
    async def behind() -> None:
        await asyncio.Event().wait()

    store.enqueue_many([stubborn.call(), behind.call()])
    async with serving(connections, shutdown=0.4) as worker:
        await started.wait()
        worker.stop(within=0.4)
        await until("the worker to end", lambda: worker.state == "stopped")
    release.set()
    assert [record.facts for record in caplog.records if getattr(record, "event", "") == "jobs.worker.bodies-left"] == [  # type: ignore[attr-defined]
        {"bodies": 1, "names": "stubborn"}
    ]
    assert {row.state for row in store.jobs()} == {"ready"}

"""What a worker makes of answers that come late or never, and of claims that nothing can begin."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from serving import QUICK, FaultyConnections, serving, until

import xjobs
from xjobs import NO_KEY, job, registry
from xjobs.bridge import run_sync
from xjobs.operations.claim import take
from xjobs.worker import Worker, settings


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(registry, "_cached", None)


def states(store: xjobs.Queue) -> Counter[str]:
    return Counter(row.state for row in store.jobs(limit=200))


@pytest.fixture
def ran(store: xjobs.Queue) -> list[int]:
    """The jobs whose bodies have been called; five are queued."""
    ran: list[int] = []

    @job(key=NO_KEY, name="one-of-some")
    async def work(n: int) -> None:
        ran.append(n)

    store.enqueue_many([work.call(n=n) for n in range(5)])
    return ran


async def test_a_worker_ends_in_time_though_a_claim_is_never_answered(
    connections: FaultyConnections, ran: list[int]
) -> None:
    reached = asyncio.Event()

    def hang(when: str, _which: str, name: str) -> Awaitable[Any] | None:
        if (when, name) != ("before", "SQL_CLAIM"):
            return None
        reached.set()
        return asyncio.Event().wait()

    connections.hold = hang
    worker = Worker(connections, settings(worker_id="w", **QUICK))
    task = asyncio.create_task(worker.run())
    await asyncio.wait_for(reached.wait(), 10)
    began = time.monotonic()
    worker.stop(within=1)
    await asyncio.wait_for(task, 10)
    assert time.monotonic() - began < 5
    assert ran == []


async def test_a_claim_that_is_answered_after_its_lease_begins_nothing(
    connections: FaultyConnections, store: xjobs.Queue, ran: list[int]
) -> None:
    """The bodies ran besides those of whoever had the jobs by then."""
    stolen: list[xjobs.ClaimedJob] = []

    async def hold_back() -> None:
        def steal() -> bool:
            stolen.extend(store.claim(queues=["default"], worker_id="thief", limit=5, lease=600).jobs)
            return len(stolen) == 5

        await until("the jobs to be stolen", steal)

    def hold(when: str, _which: str, name: str) -> Awaitable[Any] | None:
        return hold_back() if (when, name) == ("after", "SQL_CLAIM") and not stolen else None

    connections.hold = hold
    async with serving(connections, lease=0.3):
        await until("the jobs to be stolen", lambda: len(stolen) == 5)
        looks = connections.sent.count("SQL_CLAIM")
        await until("the next claim", lambda: connections.sent.count("SQL_CLAIM") > looks)
    assert ran == []
    assert {(row.state, row.claimed_by, row.claims) for row in store.jobs()} == {("running", "thief", 2)}


async def test_the_hook_of_a_job_that_the_last_claim_buried_is_awaited(
    connections: FaultyConnections, store: xjobs.Queue
) -> None:
    """The worker ended at once, since nothing had been held when it was told to."""
    told: list[str] = []

    @job(key=NO_KEY, retry=xjobs.Retry(attempts=1))
    async def work() -> None: ...

    @work.on_settled
    async def tell(ending: xjobs.Ending) -> None:
        await asyncio.sleep(0.05)
        told.append(ending.outcome)

    store.enqueue(work.call())
    moment = timedelta(milliseconds=20)
    taken = run_sync(take(store.driver, ["default"], worker_id="dead", limit=1, lease=moment)).jobs
    assert len(taken) == 1
    await asyncio.sleep(0.05)
    worker = Worker(connections, settings(worker_id="w", **QUICK))
    connections.after = lambda name: worker.stop(within=10) if name == "SQL_CLAIM" else None
    connections.hold = lambda when, which, name: asyncio.sleep(0.05) if when == "after" else None
    await asyncio.wait_for(worker.run(), 20)
    assert (states(store), told) == ({"dead": 1}, ["dead-lettered"])


@pytest.fixture
def no_more_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Three threads of the worker cannot be started; the names of those."""
    refused: list[str] = []
    start = threading.Thread.start

    def limited(self: threading.Thread) -> None:
        if self.name.startswith("w-") and int(self.name[2:]) > 5 and len(refused) < 3:
            refused.append(self.name)
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", limited)
    return refused


async def test_jobs_that_no_thread_can_be_started_for_go_back(
    connections: FaultyConnections, store: xjobs.Queue, no_more_threads: list[str]
) -> None:
    """They kept their slots and claims until the worker ended, and those behind them in the batch too."""
    together = threading.Semaphore(0)

    @job(key=NO_KEY)
    def work(n: int) -> None:
        together.acquire(timeout=0.05)

    store.enqueue_many([work.call(n=n) for n in range(30)])
    async with serving(connections, concurrency=20):
        await until("all to be done", lambda: states(store) == {"done": 30})
    assert len(no_more_threads) == 3
    assert {row.attempt for row in store.jobs()} == {1}


async def test_a_worker_that_is_cancelled_gives_back_what_waits_for_its_slot(
    connections: FaultyConnections, store: xjobs.Queue
) -> None:
    @job(key=NO_KEY, concurrency_limit=10)
    async def work(n: int) -> None: ...

    store.enqueue_many([work.call(n=n) for n in range(8)])
    asked = asyncio.Event()

    async def slowly() -> None:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.02)

    connections.hold = lambda when, _which, name: slowly() if (when, name) == ("before", "SQL_SLOT_ACQUIRE") else None
    worker = Worker(connections, settings(worker_id="w", **QUICK))
    task = asyncio.create_task(worker.run())
    await asyncio.wait_for(asked.wait(), 10)
    task.cancel()
    await asyncio.wait([task], timeout=15)
    assert task.done()
    assert states(store) == {"ready": 8}
    assert {row.attempt for row in store.jobs()} == {0}


async def test_a_worker_that_is_cancelled_gives_back_what_a_claim_may_have_brought(
    connections: FaultyConnections, store: xjobs.Queue, ran: list[int]
) -> None:
    answered = asyncio.Event()

    def hold(when: str, _which: str, name: str) -> Awaitable[Any] | None:
        if (when, name) != ("after", "SQL_CLAIM"):
            return None
        answered.set()
        return asyncio.Event().wait()

    connections.hold = hold
    worker = Worker(connections, settings(worker_id="w", **QUICK))
    task = asyncio.create_task(worker.run())
    await asyncio.wait_for(answered.wait(), 10)
    task.cancel()
    await asyncio.wait([task], timeout=15)
    assert (states(store), ran) == ({"ready": 5}, [])
    assert {row.attempt for row in store.jobs()} == {0}

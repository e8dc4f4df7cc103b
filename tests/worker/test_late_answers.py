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
from xjobs.errors import DriverUnavailable
from xjobs.operations.claim import take
from xjobs.worker import Worker, settings

JOBS, SLOTS = 900, 400
TWO = pytest.mark.parametrize("connections", ["postgres"], indirect=True)  # memory answers at once: no claim is beside


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(registry, "_cached", None)


def rows(store: xjobs.Queue) -> list[xjobs.JobRow]:
    found = page = store.jobs(limit=200)
    while len(page) == 200:
        page = store.jobs(limit=200, after=page[-1])
        found = [*found, *page]
    return found


def states(store: xjobs.Queue) -> Counter[str]:
    return Counter(row.state for row in rows(store))


@pytest.fixture
def ran(store: xjobs.Queue) -> Counter[int]:
    """How often the body of each job has been called; the jobs are queued."""
    ran: Counter[int] = Counter()

    @job(key=NO_KEY, name="one-of-many")
    async def work(n: int) -> None:
        ran[n] += 1
        await asyncio.sleep(0)

    store.enqueue_many([work.call(n=n) for n in range(JOBS)])
    return ran


class Hung:
    """Holds the claims of one connection for ever, and has those of the other take a moment."""

    def __init__(self, which: str) -> None:
        self.which = which
        self.reached = asyncio.Event()

    def __call__(self, when: str, which: str, name: str) -> Awaitable[Any] | None:
        if (when, name) != ("before", "SQL_CLAIM"):
            return None
        if which != self.which:
            return asyncio.sleep(0.05)
        self.reached.set()
        return asyncio.Event().wait()


@TWO
@pytest.mark.parametrize("which", ["claims", "beside"])
async def test_a_worker_ends_in_time_though_a_claim_is_never_answered(
    connections: FaultyConnections, ran: Counter[int], which: str
) -> None:
    connections.hold = hung = Hung(which)
    worker = Worker(connections, settings(worker_id="w", **QUICK, concurrency=SLOTS))
    task = asyncio.create_task(worker.run())
    await asyncio.wait_for(hung.reached.wait(), 10)
    began = time.monotonic()
    worker.stop(within=1)
    await asyncio.wait_for(task, 10)
    assert time.monotonic() - began < 5
    assert set(ran.values()) <= {1}


@TWO
async def test_a_second_claim_that_is_never_answered_keeps_no_other_from_being_sent(
    connections: FaultyConnections, store: xjobs.Queue, ran: Counter[int]
) -> None:
    """A claim that fails has the worker look for strays, which waits until no claim is under way."""
    connections.hold = hung = Hung("beside")

    def fail(name: str) -> None:
        if name == "SQL_CLAIM" and hung.reached.is_set() and not failed:
            failed.append(True)
            raise DriverUnavailable("the connection broke", "connect again")

    failed: list[bool] = []
    connections.before = fail
    async with serving(connections, concurrency=SLOTS, lease=1.5):
        await until("all to be done", lambda: states(store) == {"done": JOBS})
    assert failed
    assert set(ran.values()) == {1}


@TWO
async def test_a_claim_that_is_answered_after_its_lease_begins_nothing(
    connections: FaultyConnections, store: xjobs.Queue, ran: Counter[int]
) -> None:
    """The other claim of the same worker had taken the rows again by then, and both ran them."""
    late: list[str] = []

    async def hold_back() -> None:
        late.append("held")
        try:
            await until("the rows to be taken again", lambda: any(row.claims > 1 for row in rows(store)))
        finally:
            late.append("over")

    def hold(when: str, which: str, name: str) -> Awaitable[Any] | None:
        if name != "SQL_CLAIM":
            return None
        if which == "beside":
            return hold_back() if when == "after" and not late else None
        return asyncio.sleep(0.05) if when == "before" else None

    connections.hold = hold
    async with serving(connections, concurrency=SLOTS, lease=0.5, heartbeat=0.1):
        await until("all to be done", lambda: states(store) == {"done": JOBS} and late[-1] == "over")
    assert set(ran.values()) == {1}


@TWO
async def test_second_claims_that_fail_are_left_alone_for_a_while(
    connections: FaultyConnections, store: xjobs.Queue, ran: Counter[int]
) -> None:
    """Where the server has no connection left for them, each brought a warning and a look for strays."""
    tries: list[str] = []

    async def refuse() -> None:
        tries.append("beside")
        raise DriverUnavailable("too many clients", "raise max_connections")

    connections.hold = lambda when, which, name: refuse() if which == "beside" else None
    async with serving(connections, concurrency=SLOTS):
        await until("all to be done", lambda: states(store) == {"done": JOBS})
    assert len(tries) <= 1
    assert set(ran.values()) == {1}


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


@TWO
@pytest.mark.parametrize("which", ["claims", "beside"])
async def test_a_worker_that_is_cancelled_gives_back_what_waits_for_its_slot(
    connections: FaultyConnections, store: xjobs.Queue, which: str
) -> None:
    @job(key=NO_KEY, concurrency_limit=10_000)
    async def work(n: int) -> None:
        await asyncio.sleep(0)

    store.enqueue_many([work.call(n=n) for n in range(JOBS)])
    asked = asyncio.Event()
    claims: list[str] = []

    async def slowly() -> None:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.02)

    def hold(when: str, connection: str, name: str) -> Awaitable[Any] | None:
        if (when, name) == ("after", "SQL_CLAIM"):
            claims.append(connection)
        if (when, name) == ("before", "SQL_CLAIM") and connection != which:
            return asyncio.sleep(0.05)
        if (when, name) == ("before", "SQL_SLOT_ACQUIRE") and claims[-1] == which:
            return slowly()
        return None

    connections.hold = hold
    worker = Worker(connections, settings(worker_id="w", **QUICK, concurrency=SLOTS))
    task = asyncio.create_task(worker.run())
    await asyncio.wait_for(asked.wait(), 10)
    task.cancel()
    await asyncio.wait([task], timeout=15)
    assert task.done()
    assert states(store)["running"] == 0

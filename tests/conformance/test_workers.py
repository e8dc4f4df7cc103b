"""The registry of workers, and what autoscaling reads from it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import xjobs
from conformance.fixtures import Work
from conformance.stores import Store, Tables
from pytest_xjobs.clock import Clock
from xjobs.operations.workers import announce, forget

START = datetime(2025, 1, 1, tzinfo=UTC)
TTL = timedelta(seconds=30)


async def _announce(store: Store, worker_id: str = "w", **changes: Any) -> None:
    told: dict[str, Any] = {
        "host": "h",
        "queues": {"mail": 2, "default": 3},
        "in_flight": [],
        "started_at": START,
        "ttl": TTL,
        "draining": False,
    }
    await announce(store.driver, worker_id=worker_id, **{**told, **changes})


async def test_a_worker_is_listed_as_it_announced_itself(queue: xjobs.AsyncQueue, store: Store, clock: Clock) -> None:
    now = clock.freeze()
    running = [UUID(int=n) for n in range(120)]
    await _announce(store, in_flight=running)
    assert await queue.workers() == [
        xjobs.WorkerRow(
            "w", "h", ["mail", "default"], 5, [str(one) for one in running[:100]], START, now, now + TTL, None
        )
    ]


async def test_workers_are_listed_by_start_and_id(queue: xjobs.AsyncQueue, store: Store) -> None:
    later = START + timedelta(microseconds=1)
    for worker_id, started_at in [("b", later), ("a", later), ("é", START), ("Z", START)]:
        await _announce(store, worker_id, started_at=started_at)
    assert [worker.id for worker in await queue.workers()] == ["Z", "é", "a", "b"]


async def test_a_worker_that_announces_itself_again_stays_and_one_that_does_not_is_forgotten(
    queue: xjobs.AsyncQueue, store: Store, clock: Clock
) -> None:
    clock.freeze()
    await _announce(store, "alive")
    await _announce(store, "dead")
    clock.advance(seconds=20)
    await _announce(store, "alive", host="moved")
    clock.advance(seconds=10)
    (alive,) = await queue.workers()
    assert (alive.id, alive.host, alive.heartbeat_at) == ("alive", "moved", clock.now - timedelta(seconds=10))
    assert await forget(store.driver, "dead") is False, "the list had deleted it"


async def test_a_forgotten_worker_is_not_listed(queue: xjobs.AsyncQueue, store: Store) -> None:
    await _announce(store)
    assert await forget(store.driver, "w") is True
    assert await forget(store.driver, "w") is False
    assert await queue.workers() == []


async def test_the_first_announcement_that_says_draining_is_the_one_that_counts(
    queue: xjobs.AsyncQueue, store: Store, clock: Clock
) -> None:
    clock.freeze()
    seen = []
    for draining in (False, True, True, False):
        await _announce(store, draining=draining)
        seen.append((await queue.workers())[0].draining_at)
        clock.advance(seconds=1)
    began = clock.now - timedelta(seconds=3)
    assert seen == [None, began, began, None]


async def test_a_worker_that_began_by_draining_is_listed_so(
    queue: xjobs.AsyncQueue, store: Store, clock: Clock
) -> None:
    now = clock.freeze()
    await _announce(store, draining=True)
    assert (await queue.workers())[0].draining_at == now


async def test_a_transaction_shows_its_announcements_when_it_commits(queue: xjobs.AsyncQueue, store: Store) -> None:
    await _announce(store, "a")
    other = await store.begin()
    assert await forget(other.queue.driver, "a") is True
    assert await other.queue.workers() == []
    assert [worker.id for worker in await queue.workers()] == ["a"]
    await other.rollback()
    assert [worker.id for worker in await queue.workers()] == ["a"]


async def test_the_depth_counts_what_workers_to_come_would_do(
    queue: xjobs.AsyncQueue, store: Store, tables: Tables, clock: Clock, work: Work
) -> None:
    clock.freeze()
    await _announce(store, "leaving", draining=True)
    await _announce(store, "staying")
    calls = [work.using(queue=name).call(n=at) for at, name in enumerate("aaaabbc")]
    made = await queue.enqueue_many([*calls, work.using(queue="a", delay=60).call(n=90)])
    tables.change(made[0].id, state="suspended")
    tables.change(made[1].id, state="done")
    await queue.claim(queues=["b"], worker_id="leaving", limit=1)
    await queue.claim(queues=["b"], worker_id="staying", limit=1)
    await queue.claim(queues=["c"], worker_id="leaving", limit=1)
    assert await queue.scaler_depth() == [("a", 3), ("b", 1), ("c", 0)]
    clock.advance(TTL)  # the worker that was leaving has not been heard of since
    assert await queue.scaler_depth() == [("a", 3), ("b", 2), ("c", 1)]
    clock.advance(TTL)
    await queue.pause_queue("b")
    assert await queue.scaler_depth() == [("a", 4), ("c", 1)]

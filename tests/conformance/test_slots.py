"""Slots of fleet-wide limits: never given twice, freed by their holder or by time alone."""

from __future__ import annotations

from datetime import timedelta

import pytest

import xjobs
from conformance.stores import BLOCKED, Store
from pytest_xjobs.clock import Clock
from xjobs.operations.leases import renew_all
from xjobs.operations.slots import Request, Slot, acquire, holders, release

TTL = timedelta(seconds=30)
pytestmark = pytest.mark.usefixtures("queue")


async def _take(store: Store, holder: str, key: str = "k", limit: int = 2) -> Slot | None:
    (slot,) = await acquire(store.driver, [Request(key, limit, holder)], ttl=TTL)
    return slot


async def test_slots_are_given_lowest_first_up_to_the_limit(store: Store) -> None:
    assert await _take(store, "a") == ("k", 0, "a")
    assert await _take(store, "b") == ("k", 1, "b")
    assert await _take(store, "c") is None
    assert await holders(store.driver, ["k"]) == [("k", 0, "a"), ("k", 1, "b")]


async def test_other_keys_have_slots_of_their_own(store: Store) -> None:
    for key in ("k", "l", "ä"):
        assert await _take(store, "a", key, limit=1) == (key, 0, "a")
    assert await holders(store.driver, ["l", "ä", "k"]) == [("k", 0, "a"), ("l", 0, "a"), ("ä", 0, "a")]


async def test_several_requests_in_one_statement_get_different_slots(store: Store) -> None:
    await _take(store, "held")
    requests = [Request("k", 3, "a"), Request("l", 1, "b"), Request("k", 3, "c"), Request("k", 3, "d")]
    assert await acquire(store.driver, requests, ttl=TTL) == [("k", 1, "a"), ("l", 0, "b"), ("k", 2, "c"), None]


async def test_requests_with_different_limits_for_one_key_keep_to_their_own(store: Store) -> None:
    requests = [Request("k", 2, "a"), Request("k", 1, "b"), Request("k", 0, "c")]
    assert await acquire(store.driver, requests, ttl=TTL) == [("k", 0, "a"), None, None]


async def test_no_requests_take_and_release_nothing(store: Store) -> None:
    assert await acquire(store.driver, [], ttl=TTL) == []
    assert await release(store.driver, []) == 0
    assert await holders(store.driver, []) == []


async def test_a_released_slot_is_free_again(store: Store) -> None:
    slot = await _take(store, "a", limit=1)
    assert slot is not None
    assert await release(store.driver, [slot]) == 1
    assert await holders(store.driver, ["k"]) == []
    assert await _take(store, "b", limit=1) == ("k", 0, "b")


async def test_only_the_holder_releases_a_slot(store: Store) -> None:
    await _take(store, "a")
    assert await release(store.driver, [Slot("k", 0, "b"), Slot("k", 1, "a"), Slot("l", 0, "a")]) == 0
    assert await holders(store.driver, ["k"]) == [("k", 0, "a")]


async def test_a_dead_holder_frees_its_slot_by_expiry_only(store: Store, clock: Clock) -> None:
    clock.freeze()
    await _take(store, "dead", limit=1)
    clock.advance(TTL - timedelta(microseconds=1))
    assert await _take(store, "b", limit=1) is None
    clock.advance(timedelta(microseconds=1))
    assert await holders(store.driver, ["k"]) == []
    assert await _take(store, "b", limit=1) == ("k", 0, "b")
    assert await release(store.driver, [Slot("k", 0, "dead")]) == 0


async def test_a_renewed_slot_stays_for_a_full_term_and_a_lapsed_one_is_not_revived(store: Store, clock: Clock) -> None:
    clock.freeze()
    slot = await _take(store, "a", limit=1)
    assert slot is not None
    clock.advance(seconds=20)
    assert await renew_all(store.driver, [], [slot], worker_id="w", lease=TTL) == ([], ["held"])
    clock.advance(seconds=29)
    assert await _take(store, "b", limit=1) is None
    clock.advance(seconds=1)
    assert await renew_all(store.driver, [], [slot], worker_id="w", lease=TTL) == ([], ["lost"])
    assert await holders(store.driver, ["k"]) == []


async def test_another_holder_renews_nothing(store: Store, clock: Clock) -> None:
    clock.freeze()
    await _take(store, "a", limit=1)
    clock.advance(seconds=20)
    strangers = [Slot("k", 0, "b"), Slot("k", 1, "a"), Slot("l", 0, "a")]
    assert (await renew_all(store.driver, [], strangers, worker_id="w", lease=TTL)).slots == ["lost"] * 3
    clock.advance(seconds=10)
    assert await holders(store.driver, ["k"]) == []


async def test_sessions_that_reach_for_one_slot_at_a_time_never_share_it(store: Store) -> None:
    async def take(queue: xjobs.AsyncQueue) -> list[Slot | None]:
        mine: list[Slot | None] = []
        for n in range(20):
            mine += await acquire(queue.driver, [Request("k", 7, f"{id(queue)}-{n}")], ttl=TTL)
        return mine

    found = [slot for some in await store.at_once(4, take) for slot in some if slot is not None]
    held = await holders(store.driver, ["k"])
    assert sorted(slot.number for slot in found) == list(range(7))
    assert sorted(held) == sorted(found)


async def test_a_slot_that_an_open_transaction_took_is_waited_for(store: Store) -> None:
    other = await store.begin()
    await acquire(other.queue.driver, [Request("k", 1, "a")], ttl=TTL)
    if store.kind == "memory":
        with pytest.raises(BLOCKED):
            await _take(store, "b", limit=1)
    await other.rollback()
    assert await _take(store, "b", limit=1) == ("k", 0, "b")


async def test_what_a_transaction_releases_is_held_until_it_commits(store: Store) -> None:
    slot = await _take(store, "a", limit=1)
    assert slot is not None
    other = await store.begin()
    assert await release(other.queue.driver, [slot]) == 1
    assert await holders(other.queue.driver, ["k"]) == []
    assert await holders(store.driver, ["k"]) == [slot]
    assert await acquire(other.queue.driver, [Request("k", 1, "b")], ttl=TTL) == [("k", 0, "b")]
    assert await holders(store.driver, ["k"]) == [slot]
    await other.commit()
    assert await holders(store.driver, ["k"]) == [("k", 0, "b")]

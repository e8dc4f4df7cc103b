"""Ids: UUIDs of version 7 that sort in the order in which they were made."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import RFC_4122, UUID

import freezegun
import pytest
import time_machine
from hypothesis import given, strategies as st

import xjobs
from pytest_xjobs.clock import Clock
from xjobs.ids import check_id, new_id, new_pair, new_pairs, text_of


def made_at(value: UUID) -> datetime:
    return datetime.fromtimestamp((value.int >> 80) / 1000, UTC)


def test_an_id_is_a_uuid_of_version_7_with_the_present_time_in_it() -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=2)
    value = new_id()
    assert (value.version, value.variant) == (7, RFC_4122)
    assert before <= made_at(value) <= datetime.now(UTC) + timedelta(seconds=1)


def test_ids_sort_in_the_order_in_which_they_were_made() -> None:
    values = [new_id() for _ in range(50_000)]
    assert values == sorted(values)
    assert len(set(values)) == len(values)
    assert [str(value) for value in values] == sorted(map(str, values))


def test_pairs_sort_among_single_ids_and_differ_in_their_last_bit() -> None:
    values = [new_id(), *(job_id for job_id, _ in new_pairs(5_000)), new_pair()[0], new_id()]
    assert values == sorted(set(values))
    assert all(job_id.int ^ run_id.int == 1 for job_id, run_id in [*new_pairs(3), new_pair()])
    assert new_pairs(0) == []


@given(st.uuids() | st.integers(0, 99).map(lambda number: UUID(int=number)))
def test_the_text_of_an_id_is_the_canonical_one(value: UUID) -> None:
    assert text_of(value) == str(value)


def test_ids_of_many_threads_are_distinct_and_rise_in_each() -> None:
    start = threading.Barrier(8)

    def make(_: int) -> list[UUID]:
        start.wait()
        return [each for n in range(100) for each in (new_id(), *(job_id for job_id, _ in new_pairs(n % 100)))]

    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(make, range(8)))
    assert all(values == sorted(values) for values in made)
    assert len({value for values in made for value in values}) == sum(map(len, made)) == 8 * (100 + 99 * 50)


def test_the_random_part_is_random() -> None:
    assert len({new_id().int & (2**62 - 1) for _ in range(1_000)}) == 1_000


@pytest.mark.parametrize("instant", [datetime(1999, 1, 1, tzinfo=UTC), datetime(2090, 1, 1, tzinfo=UTC)])
@pytest.mark.parametrize("how", ["freezegun", "freezegun ticking", "time-machine", "time-machine ticking", "our clock"])
def test_a_moved_clock_does_not_move_ids(how: str, instant: datetime) -> None:
    clock = Clock()
    freezes: dict[str, Any] = {
        "freezegun": freezegun.freeze_time(instant),
        "freezegun ticking": freezegun.freeze_time(instant, tick=True),
        "time-machine": time_machine.travel(instant, tick=False),
        "time-machine ticking": time_machine.travel(instant, tick=True),
    }
    before = new_id()
    if how == "our clock":
        clock.move_to(instant)
        inside = [new_id() for _ in range(100)]
        clock.close()
    else:
        with freezes[how]:
            assert datetime.now(UTC).year == instant.year
            inside = [new_id() for _ in range(100)]
    values = [before, *inside, new_id()]
    assert values == sorted(values)
    assert made_at(values[-1]) - made_at(before) < timedelta(seconds=30)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_makes_ids_of_its_own() -> None:
    new_id()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:  # the child must not run anything of pytest
        try:
            values = [new_id() for _ in range(200)]
            rising = values == sorted(values)
            os.write(write, b"".join(value.bytes for value in values) if rising else b"")
        finally:
            os._exit(0)
    os.close(write)
    own = [new_id() for _ in range(200)]
    with os.fdopen(read, "rb") as pipe:
        sent = pipe.read()
    os.waitpid(pid, 0)
    child = [UUID(bytes=sent[at : at + 16]) for at in range(0, len(sent), 16)]
    assert len(child) == 200
    assert not set(child) & set(own)
    assert len({value.int & (2**62 - 1) for value in (*child, *own)}) == 400


@pytest.mark.skipif(not hasattr(os, "fork") or sys.platform == "win32", reason="needs fork")
def test_a_fork_while_another_thread_makes_an_id_does_not_hang_the_child() -> None:
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            new_id()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(20):
            pid = os.fork()
            if pid == 0:
                new_id()
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    finally:
        stop.set()
        thread.join()


def test_an_id_is_accepted_as_uuid_or_canonical_text() -> None:
    value = new_id()
    assert check_id(value, "id") is value
    assert check_id(str(value), "id") == value
    nil = UUID(int=0)
    assert check_id(str(nil), "id") == nil


@pytest.mark.parametrize(
    "text",
    [
        "01890A5D-AC96-774B-BCCE-B302099A8057",
        "01890a5dac96774bbcceb302099a8057",
        "{01890a5d-ac96-774b-bcce-b302099a8057}",
        "urn:uuid:01890a5d-ac96-774b-bcce-b302099a8057",
        " 01890a5d-ac96-774b-bcce-b302099a8057",
        "01890a5d-ac96-774b-bcce-b302099a8057\n",
        "01890a5d-ac96-774b-bcce-b302099a805",
        "01890a5d-ac96-774b-bcce-b302099a805g",
        "order-17",
        "",
        17,
        None,
        b"01890a5d-ac96-774b-bcce-b302099a8057",
    ],
)
def test_anything_else_is_refused_by_name(text: Any) -> None:
    with pytest.raises(xjobs.IdInvalid, match="run_id") as caught:
        check_id(text, "run_id")
    assert caught.value.code == "X_ID_INVALID"

"""The seam of named points."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from xjobs import points
from xjobs.bridge import run_sync
from xjobs.errors import Invariant


async def test_listeners_are_told_in_order_and_only_inside_their_block() -> None:
    heard: list[tuple[str, str, dict[str, Any]]] = []
    with points.listening(lambda point, facts: heard.append(("outer", point, facts))):
        with points.listening(lambda point, facts: heard.append(("inner", point, facts))):
            await points.reach("claimed", job=1)
        await points.reach("after_body")
    await points.reach("after_settle")
    assert heard == [
        ("outer", "claimed", {"job": 1}),
        ("inner", "claimed", {"job": 1}),
        ("outer", "after_body", {}),
    ]
    assert points.heard == {}


async def test_what_a_listener_raises_goes_through() -> None:
    def crash(point: str, facts: dict[str, Any]) -> None:
        raise ConnectionError(point)

    with pytest.raises(ConnectionError, match="claimed"), points.listening(crash):
        await points.reach("claimed")
    assert points.heard == {}


async def test_an_awaitable_answer_holds_the_operation() -> None:
    free, arrived = asyncio.Event(), asyncio.Event()

    async def hold(point: str, facts: dict[str, Any]) -> None:
        arrived.set()
        await free.wait()

    with points.listening(hold):
        operation = asyncio.create_task(points.reach("before_settle"))
        await arrived.wait()
        assert not operation.done()
        free.set()
        await operation


def test_a_listener_may_be_there_twice_and_leave_in_any_order() -> None:
    heard: list[str] = []

    def listener(point: str, facts: dict[str, Any]) -> None:
        heard.append(point)

    first, second = points.listening(listener), points.listening(listener)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    run_sync(points.reach("claimed"))
    second.__exit__(None, None, None)
    assert heard == ["claimed"]


def test_a_listener_that_leaves_while_it_is_told_does_not_hide_others() -> None:
    heard: list[str] = []

    def leave(point: str, facts: dict[str, Any]) -> None:
        leaving.__exit__(None, None, None)

    leaving = points.listening(leave)
    leaving.__enter__()
    with points.listening(lambda point, facts: heard.append(point)):
        run_sync(points.reach("claimed"))
    assert heard == ["claimed"]


async def test_a_listener_of_some_points_is_called_at_no_other() -> None:
    reached: list[str] = []
    with points.listening(lambda point, facts: reached.append(point), "claimed", "after_body"):
        assert set(points.heard) == {"claimed", "after_body"}
        for point in points.NAMES:
            await points.reach(point)
    assert reached == ["claimed", "after_body"]
    assert points.heard == {}


def test_a_point_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(Invariant, match="'claimd'"), points.listening(lambda point, facts: None, "claimd"):
        pass

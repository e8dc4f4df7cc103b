"""One coroutine for both colours."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

import xjobs
from xjobs.bridge import awaiting, blocking, run_sync


async def _answer(value: int) -> int:
    return value


def test_a_coroutine_that_never_suspends_runs_to_its_end() -> None:
    async def outer() -> int:
        return await _answer(3) + await _answer(4)

    assert run_sync(outer()) == 7


def test_what_it_raises_goes_through() -> None:
    async def fail() -> None:
        raise LookupError("x")

    with pytest.raises(LookupError, match="x"):
        run_sync(fail())


@pytest.mark.parametrize("error", [StopIteration, StopAsyncIteration, KeyboardInterrupt, GeneratorExit])
def test_errors_that_steer_coroutines_are_not_taken_for_answers(error: type[BaseException]) -> None:
    async def fail() -> None:
        raise error

    with pytest.raises((error, RuntimeError)):
        run_sync(fail())


def test_one_that_suspends_is_refused_and_closed() -> None:
    ended = []

    async def wait() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            ended.append(True)

    with pytest.raises(RuntimeError, match="use the async form"):
        run_sync(wait())
    assert ended == [True]


async def test_it_works_while_a_loop_runs() -> None:
    assert run_sync(_answer(5)) == 5


async def _operation(driver: Any, first: int, *, second: str = "x") -> tuple[Any, int, str]:
    """What it does."""
    return driver, first, second


class _Holder:
    driver: Any = "the driver"
    block = blocking(_operation)
    wait = awaiting(_operation)


async def test_methods_drop_the_driver_and_keep_the_rest() -> None:
    holder = _Holder()
    assert holder.block(1, second="y") == ("the driver", 1, "y")
    coroutine = holder.wait(2)
    assert inspect.iscoroutine(coroutine)
    assert await coroutine == ("the driver", 2, "x")
    for method in (_Holder.block, _Holder.wait):
        assert (method.__name__, method.__doc__) == ("_operation", "What it does.")
        assert list(inspect.signature(method).parameters) == ["self", "first", "second"]


def test_both_queues_have_the_same_methods() -> None:
    def public(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(member).parameters)
            for name, member in inspect.getmembers(kind, callable)
            if not name.startswith("_")
        }

    assert public(xjobs.Queue) == public(xjobs.AsyncQueue)

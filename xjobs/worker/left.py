"""What a body may raise that would mean something else to the worker, and what it counts as there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any

from xjobs import points
from xjobs.errors import Error
from xjobs.operations.steps import Suspended
from xjobs.signals import RunSignal

_OURS = (Suspended, points.Crash)
"""What is none of `Exception` and yet ours: it goes through, alone or in a group."""


class BodyLeft(Error):
    """A body that ended by an exception which means something else to a worker, such as SystemExit."""

    code = "X_JOB_BODY_LEFT"


async def kept(body: Awaitable[Any], signal: RunSignal) -> Any:
    """Await a body; what it raises that would mean something else to the worker becomes BodyLeft.

    A cancellation is none of its doing once the signal has stopped.
    """
    try:
        return await body
    except asyncio.CancelledError as cancelled:
        if signal.reason is None:
            raise left_by(cancelled) from cancelled
        raise
    except BaseException as error:
        if counts(error):
            raise
        raise left_by(error) from error


class _Guarded(Coroutine[Any, Any, Any]):
    """A coroutine out of which neither SystemExit nor KeyboardInterrupt comes."""

    def __init__(self, inner: Coroutine[Any, Any, Any]) -> None:
        self._inner = inner

    def send(self, value: Any) -> Any:
        try:
            return self._inner.send(value)
        except (SystemExit, KeyboardInterrupt) as error:
            raise left_by(error) from error

    def throw(self, *error: Any) -> Any:
        try:
            return self._inner.throw(*error)
        except (SystemExit, KeyboardInterrupt) as left:
            raise left_by(left) from left

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Any:
        return self._inner.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # what debuggers and `Task.get_stack` ask


def guard_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """On a loop that is a worker's alone, have every task that bodies start fail where it raises SystemExit or
    KeyboardInterrupt. As they are, these end the loop, and with it the process and all that runs beside.
    """

    def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(_Guarded(coroutine), loop=loop, **options)

    loop.set_task_factory(make)


def counts(error: BaseException) -> bool:
    """Whether what a body raised is an outcome of its attempt as it is."""
    if isinstance(error, BaseExceptionGroup):
        rest = error.split(_OURS)[1]
        return rest is None or isinstance(rest, Exception)
    return isinstance(error, (Exception, *_OURS))


def left_by(error: BaseException) -> BodyLeft:
    """What an exception that is none of `Exception` counts as: a failure of the attempt, and not the worker's end."""
    return BodyLeft(f"the body raised {described(error)}", "have it return, or raise an Exception")


def described(error: BaseException) -> str:
    """The exception as Python writes it, if it can be written."""
    try:
        return repr(error)
    except Exception:  # noqa: BLE001 - foreign code
        return type(error).__name__

"""Awaiting an `async def` body on the running loop, so that it is cancelled when its run must stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from xjobs.errors import Error
from xjobs.signals import RunSignal

R = TypeVar("R")


async def cancellable(body: Awaitable[R], signal: RunSignal) -> R:
    """Await a body in this task; it meets CancelledError when the signal stops, from whichever thread, and at the
    deadline that the signal carries, in real time.

    The cancellation is of the body and not of the caller: this task is no longer being cancelled once it has left it.
    """
    __tracebackhide__ = True
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine that runs on a loop has one
    left = cancel_when_stopped(task, signal)
    try:
        return await body
    finally:
        left()


def cancel_when_stopped(task: asyncio.Task[Any], signal: RunSignal) -> Callable[[], None]:
    """Have a task of the running loop cancelled when the signal stops, or at the deadline that it carries.

    Answers what is to be called in the task when it has left what had to be cancelled.
    """
    loop = asyncio.get_running_loop()
    over = cancelled = False

    def cancel() -> None:
        nonlocal cancelled
        if not over and not cancelled:
            cancelled = True
            task.cancel()

    def stop(_reason: Error) -> None:
        loop.call_soon_threadsafe(cancel)

    left_over = signal.left
    timer = None if left_over is None else loop.call_later(left_over, signal.expire)
    forget = signal.listen(stop)

    def left() -> None:
        nonlocal over
        over = True
        forget()
        if timer is not None:
            timer.cancel()
        if cancelled:
            task.uncancel()

    return left

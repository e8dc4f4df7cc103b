"""How a drain calls job bodies: in the test's own thread in a blocking test, on the test's loop in an async one."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from xjobs.bodies import cancellable
from xjobs.bridge import run_sync
from xjobs.errors import Error
from xjobs.operations.attempt import Callee
from xjobs.signals import RunSignal

R = TypeVar("R")


class WrongColour(Error):
    """A blocking drain on a running event loop."""

    code = "X_DRAIN_WRONG_COLOUR"


class InPlace:
    """Calls `def` bodies in this thread, and `async def` bodies on one event loop that is kept for the drain.

    The awaitables that it answers are done when they are returned, so a blocking caller may drive them.
    """

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    async def __call__(
        self, callee: Callee, arguments: tuple[Any, ...], values: dict[str, Any], signal: RunSignal
    ) -> Any:
        """Call the body and answer what it returns."""
        __tracebackhide__ = True
        if not callee.is_async:
            return callee.body(*arguments, **values)
        if self._runner is None:
            self._runner = asyncio.Runner()
        # The runner would otherwise run it in the context in which its loop was made.
        body = cancellable(callee.body(*arguments, **values), signal)
        return self._runner.run(body, context=contextvars.copy_context())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            self._runner.close()


class Apart:
    """Runs each attempt, and each ending hook, in a copy of one context.

    So they see no context variable that the test has set, nor one of another attempt, and the test sees none of theirs,
    as with a worker. Where they run stays the same, so what is kept by thread, as Django's connections are in blocking
    code, is the test's own.
    """

    def __init__(self, context: contextvars.Context) -> None:
        self._context = context

    async def in_place(self, run: Coroutine[Any, Any, R], /) -> R:
        """Run a coroutine that never suspends in this thread."""
        __tracebackhide__ = True
        return self._context.copy().run(run_sync, run)

    async def on_loop(self, run: Coroutine[Any, Any, R], /) -> R:
        """Run a coroutine as a task of the running loop; it is cancelled with the caller."""
        __tracebackhide__ = True
        return await asyncio.create_task(run, context=self._context.copy())


async def on_loop(callee: Callee, arguments: tuple[Any, ...], values: dict[str, Any], signal: RunSignal) -> Any:
    """Await an `async def` body on the running loop; run a `def` body in a thread, so that it may block."""
    __tracebackhide__ = True
    if callee.is_async:
        return await cancellable(callee.body(*arguments, **values), signal)
    return await asyncio.to_thread(_call, callee, arguments, values)


def _call(callee: Callee, arguments: tuple[Any, ...], values: dict[str, Any]) -> Any:
    """Call a `def` body in a thread.

    Raises:
        RuntimeError: it raised StopIteration, which no future can carry: the loop would wait for ever. A blocking drain
            raises the same, since Python lets none out of a coroutine (PEP 479).
    """
    try:
        return callee.body(*arguments, **values)
    except StopIteration as stop:
        raise RuntimeError("the body raised StopIteration") from stop


def refuse_on_loop(call: str) -> None:
    """Refuse a blocking call that may have to run `async def` bodies, while a loop runs in this thread.

    Raises:
        WrongColour: there is one.
    """
    if "asyncio" in sys.modules and asyncio._get_running_loop() is not None:  # noqa: SLF001 - without an exception
        raise WrongColour(
            f"{call}() was called on a running event loop, where an async def body could not be run",
            f"await a{call}() instead",
        )

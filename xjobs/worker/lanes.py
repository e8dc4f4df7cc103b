"""Runs `async def` attempts on the event loop: those that do not suspend one after the other in one task, a lane.

A task costs more than a short body. An attempt that does suspend has its lane to itself from then on, and the ones
behind it go on in another lane. Each attempt finds the same context variables, and a task that nobody has cancelled.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from xjobs.bodies import cancel_when_stopped
from xjobs.operations.attempt import Callee
from xjobs.signals import RunSignal
from xjobs.worker.left import kept
from xjobs.worker.runs import Run

SLICE = 0.01
"""Seconds after which a lane ends although nothing in it suspends, so that the loop sees to its sockets and timers."""


class Lane:
    """One task that runs attempts.

    Attributes:
        overtaken: the event loop has gone on since the lane began, so that what runs in it now has suspended.
    """

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self.overtaken = False
        self._signal: RunSignal | None = None
        self._began = 0.0  # the body, where it has a deadline
        self._left: Callable[[], None] | None = None
        self.task = asyncio.Task(self._run(), loop=lanes.loop)

    async def call(self, callee: Callee, arguments: tuple[Any, ...], values: dict[str, Any], signal: RunSignal) -> Any:
        """Await a body in this lane; it is cancelled when the run has to stop, from its first suspension on."""
        self._signal = signal
        if signal.timeout is not None:
            self._began = time.monotonic()
        if self.overtaken:
            self._heed(signal)
        try:
            return await kept(callee.body(*arguments, **values), signal)
        finally:
            self._signal = None
            if self._left is not None:
                self._left()

    async def _run(self) -> None:
        lanes, task = self._lanes, self.task
        # Comes when this task first suspends, or has ended.
        lanes.loop.call_soon(self._overtake)
        before = list(contextvars.copy_context().items())
        until = time.monotonic() + SLICE
        while lanes.waiting and not self.overtaken:
            run = lanes.waiting.popleft()
            task.set_name(run.job.name)
            await lanes.attempt(run, self)
            if task.cancelling() or time.monotonic() > until or not _unchanged(before):
                return

    def _overtake(self) -> None:
        self.overtaken = True
        if self._signal is not None:
            self._heed(self._signal)
        self._lanes.go_on()

    def _heed(self, signal: RunSignal) -> None:
        since = 0.0 if signal.timeout is None else time.monotonic() - self._began
        self._left = cancel_when_stopped(self.task, signal, since)


class Lanes:
    """Starts attempts in their order.

    Args:
        attempt: one attempt, in a lane by whose `call` its body is to be called; it raises nothing.
    """

    def __init__(self, attempt: Callable[[Run, Lane], Coroutine[Any, Any, None]]) -> None:
        self.attempt = attempt
        self.loop = asyncio.get_running_loop()
        self.waiting: deque[Run] = deque()
        self._entered = False  # a lane has been made that takes what waits, and has not been overtaken
        self._open: set[asyncio.Task[None]] = set()

    def start(self, run: Run) -> None:
        """Have the attempt of a run begin."""
        self.waiting.append(run)
        if not self._entered:
            self._enter()

    def go_on(self) -> None:
        """Open a lane for what waits, behind one that has been overtaken."""
        self._entered = False
        if self.waiting:
            self._enter()

    def _enter(self) -> None:
        self._entered = True
        task = Lane(self).task
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def close(self, within: float) -> list[str]:
        """Begin nothing more and cancel what runs; the names of what goes on all the same."""
        self.waiting.clear()
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        left = (await asyncio.wait(tasks, timeout=within))[1] if tasks else ()
        return [task.get_name() for task in left]


def _unchanged(before: list[tuple[contextvars.ContextVar[Any], Any]]) -> bool:
    """Whether the context holds what it held; no value is asked whether it equals another."""
    now = contextvars.copy_context()
    return len(now) == len(before) and all(now.get(variable, before) is value for variable, value in before)

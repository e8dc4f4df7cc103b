"""What a body calls for durable steps: `ctx.step`, in both colours, over one log."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar, cast, overload

from xjobs.bridge import run_sync
from xjobs.errors import Invariant
from xjobs.records import Event
from xjobs.signals import overdue

P = ParamSpec("P")
R = TypeVar("R")

WAIT_TIMEOUT = timedelta(days=1)
"""How long a wait for an event lasts, when the body says nothing."""


class Log(Protocol):
    """What the steps of one attempt are recorded by and replayed from (`xjobs.operations.steps`)."""

    step_timeout: timedelta | None
    not_awaited: dict[object, NotAwaited]

    async def run(self, name: str, produce: Callable[[], Awaitable[Any]]) -> Any:
        """The recorded answer, or what `produce` answers, recorded."""
        ...

    async def sleep(self, name: str | None, duration: timedelta | float) -> None:
        """Suspend, or go on when it is over."""
        ...

    async def wait(
        self,
        name: str,
        event: str,
        *,
        match: str | None,
        timeout: timedelta | float,  # noqa: ASYNC109 - of the run, which no process holds
        required: bool,
    ) -> Event | None:
        """Suspend, or answer the event, or None when the time is over."""
        ...


class NotAwaited(NamedTuple):
    """A step of an async body that was called and not awaited: its coroutines, the body's and the one inside it."""

    name: str
    outer: Coroutine[Any, Any, Any]
    inner: Coroutine[Any, Any, Any]

    def close(self) -> None:
        """Close both, without Python's warning, which would come late and name an inner function."""
        self.outer.close()
        self.inner.close()


class Steps:
    """The durable steps of a `def` body.

    The name of a step is what its record is found by when the body runs again, so it has to be the same each time and
    unique within the run.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._waits = threading.Lock()

    def run(self, name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `fn` once and record what it answers; when the body runs again, answer the record without a call.

        Between the call and its record the worker may die: then the step runs again. What it raises is recorded too and
        raised; the next attempt calls it again.

        Raises:
            StepDuplicate: the name is used twice in this attempt.
            InputInvalid: the answer is not strict JSON; the message names the path in `output`.
            JobTimeout: it took longer than the job's `step_timeout`.
            Aborted, LeaseLost, JobCancelled: the run must stop; nothing is recorded.
            Invariant: `fn` is an `async def` function.
        """
        __tracebackhide__ = True
        if inspect.iscoroutinefunction(fn):
            raise Invariant(
                f"step {name!r} of a def job was given the async def function {fn.__qualname__}",
                "make the job an async def, or call a def function",
            )

        async def produce() -> R:
            return fn(*args, **kwargs)

        return cast("R", run_sync(self._log.run(name, produce)))

    @overload
    def sleep(self, duration: timedelta | float, /) -> None: ...

    @overload
    def sleep(self, name: str, duration: timedelta | float, /) -> None: ...

    def sleep(self, name: Any, duration: Any = None, /) -> None:
        """Suspend the run for `duration` (a timedelta or seconds) without holding a process; it costs no attempt.

        The body is left here and runs again from its start when the time is over, with its recorded steps replayed.
        Without a name it is named by its length: the second sleep of one length in a body is `sleep:60s#2`.

        Raises:
            StepDuplicate: the name is used twice in this attempt.
            Invariant: a negative duration, or one that is not finite.
        """
        __tracebackhide__ = True
        run_sync(self._log.sleep(*_named(name, duration)))

    def wait_for_event(
        self,
        name: str,
        event: str,
        *,
        match: str | None = None,
        timeout: timedelta | float = WAIT_TIMEOUT,
        required: bool = False,
    ) -> Event | None:
        """Suspend the run until `event` is published, and answer it; None when `timeout` is over first.

        It takes the earliest unexpired event of that name, published since the run was created, that no other wait of
        the run has taken: one that was there before the wait began is found too.

        Args:
            name: of the step.
            event: the name that `publish` was given.
            match: only events whose `correlation_key` is this.
            timeout: a timedelta or seconds, from the first look.
            required: raise JobTimeout in place of answering None.

        Raises:
            StepDuplicate: the name is used twice in this attempt.
            JobTimeout: `required`, and none came in time.
            Invariant: an argument that cannot be.
        """
        __tracebackhide__ = True
        with self._waits:  # of two threads at once, both would see an event that neither has taken yet
            return run_sync(self._log.wait(name, event, match=match, timeout=timeout, required=required))


class AsyncSteps:
    """The durable steps of an `async def` body; each call is awaited. See `Steps` for what they do and raise."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._waits: Any = None

    @overload
    def run(
        self, name: str, fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...

    @overload
    def run(self, name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...

    def run(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Call `fn`, a `def` or an `async def` function, once and record what it answers; see `Steps.run`."""

        async def produce() -> Any:
            answer = fn(*args, **kwargs)
            return await self._in_time(name, answer) if inspect.isawaitable(answer) else answer

        return self._step(name, self._log.run(name, produce))

    @overload
    def sleep(self, duration: timedelta | float, /) -> Coroutine[Any, Any, None]: ...

    @overload
    def sleep(self, name: str, duration: timedelta | float, /) -> Coroutine[Any, Any, None]: ...

    def sleep(self, name: Any, duration: Any = None, /) -> Coroutine[Any, Any, None]:
        """Suspend the run; see `Steps.sleep`."""
        named, span = _named(name, duration)
        return self._step(named or f"sleep({span})", self._log.sleep(named, span))

    def wait_for_event(
        self,
        name: str,
        event: str,
        *,
        match: str | None = None,
        timeout: timedelta | float = WAIT_TIMEOUT,
        required: bool = False,
    ) -> Coroutine[Any, Any, Event | None]:
        """Suspend the run until `event` is published; see `Steps.wait_for_event`."""

        async def wait() -> Event | None:
            # Two waits at once would both see an event that neither has taken yet.
            async with self._turn():
                return await self._log.wait(name, event, match=match, timeout=timeout, required=required)

        return self._step(name, wait())

    def _step(self, name: str, step: Coroutine[Any, Any, R]) -> Coroutine[Any, Any, R]:
        """The step's coroutine, known to the log as not awaited until it is."""
        token = object()

        async def awaited() -> R:
            del self._log.not_awaited[token]
            return await step

        coroutine = awaited()
        self._log.not_awaited[token] = NotAwaited(name, coroutine, step)
        return coroutine

    def _turn(self) -> Any:
        if self._waits is None:
            import asyncio

            self._waits = asyncio.Lock()
        return self._waits

    async def _in_time(self, name: str, answer: Awaitable[R]) -> R:
        """Await what a step answered, cancelled at the job's `step_timeout`."""
        timeout = self._log.step_timeout
        if timeout is None:
            return await answer
        import asyncio

        limit = asyncio.timeout(timeout.total_seconds())
        try:
            async with limit:
                return await answer
        except TimeoutError:
            if limit.expired():
                raise overdue(timeout, f"step {name!r}") from None
            raise


def _named(name: Any, duration: Any) -> tuple[str | None, Any]:
    return (name, duration) if duration is not None or isinstance(name, str) else (None, name)

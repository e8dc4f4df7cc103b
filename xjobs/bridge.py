"""How one coroutine serves both colours.

Operations are written once, as `async def` over a driver. The memory driver and the blocking Postgres driver have
`async def` methods that never suspend: they do their work, blocking if need be, and return. A coroutine over such a
driver runs to its end on the first `send(None)`, in the caller's thread, without an event loop. A caller on an event
loop awaits the same coroutine over the async driver.

`blocking` and `awaiting` make the methods of the two queue classes from operations, by dropping the driver parameter.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from xjobs.drivers.base import Driver

P = ParamSpec("P")
R = TypeVar("R")


class HasDriver(Protocol):
    """An object whose methods run operations on its driver."""

    @property
    def driver(self) -> Driver:
        """The driver of this object's colour."""
        ...


Operation = Callable[Concatenate[Driver, P], Coroutine[Any, Any, R]]


def run_sync(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine that never suspends to its end in this thread.

    Raises:
        RuntimeError: it did suspend, so something under it needs an event loop.
    """
    __tracebackhide__ = True
    try:
        waited_on = coroutine.send(None)
    except StopIteration as end:
        result: R = end.value
        return result
    told = f"{coroutine!r} waits on {waited_on!r}, which needs an event loop: use the async form of this call"
    coroutine.close()
    raise RuntimeError(told)


def blocking(operation: Operation[P, R]) -> Callable[Concatenate[HasDriver, P], R]:
    """The operation as a blocking method."""

    def method(self: HasDriver, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return run_sync(operation(self.driver, *args, **kwargs))

    return _described(method, operation)


def awaiting(operation: Operation[P, R]) -> Callable[Concatenate[HasDriver, P], Coroutine[Any, Any, R]]:
    """The operation as an async method."""

    # A plain function that answers a coroutine, so that a forgotten await is reported by type checkers.
    def method(self: HasDriver, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return operation(self.driver, *args, **kwargs)

    return _described(method, operation)


_M = TypeVar("_M", bound=Callable[..., Any])


def _described(method: _M, operation: Callable[..., Any]) -> _M:
    """Give a method the name, text and signature of its operation, with `self` in place of the driver."""
    signature = inspect.signature(operation)
    _, *parameters = signature.parameters.values()
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__name__ = operation.__name__
    method.__qualname__ = operation.__qualname__
    method.__doc__ = operation.__doc__
    method.__signature__ = signature.replace(parameters=[itself, *parameters])  # type: ignore[attr-defined]
    return method

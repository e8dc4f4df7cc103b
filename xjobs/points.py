"""The one seam of named points: operations say where they are, and tests, faults and recorders listen.

A point costs one attribute read while nobody listens:

    if points.listeners:
        await points.reach("claimed", job=job)

A listener is called as `listener(point, facts)`. What it raises goes through the operation, which is how a crash at a
point is made; an awaitable that it answers is awaited, which is how a schedule holds an operation at a point.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

Listener = Callable[[str, dict[str, Any]], Awaitable[None] | None]

NAMES = ("enqueued", "claimed", "before_body", "after_body", "before_settle", "after_settle")
"""Every point there is."""

listeners: tuple[Listener, ...] = ()


async def reach(point: str, **facts: Any) -> None:
    """Tell every listener that `point` has been reached."""
    for listener in listeners:
        held = listener(point, facts)
        if held is not None:
            await held


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Have `listener` called at every point, in every thread, for the length of the block."""
    global listeners  # noqa: PLW0603 - one process, one seam
    listeners = (*listeners, listener)
    try:
        yield
    finally:
        remaining = list(listeners)
        remaining.remove(listener)
        listeners = tuple(remaining)

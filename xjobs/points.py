"""The one seam of named points: operations say where they are, and tests, faults and recorders listen.

A point costs one look-up while nobody listens at it:

    if "claimed" in points.heard:
        await points.reach("claimed", job=job)

A listener is called as `listener(point, facts)`. What it raises goes through the operation, which is how a crash at a
point is made; an awaitable that it answers is awaited, which is how a schedule holds an operation at a point.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from xjobs.errors import Invariant

Listener = Callable[[str, dict[str, Any]], Awaitable[None] | None]

NAMES = (
    "enqueued",
    "claimed",
    "before_body",
    "before_step",
    "before_record",
    "after_step",
    "after_body",
    "before_settle",
    "after_settle",
)
"""Every point there is, in the order in which a job comes to them. A step's effect has happened at `before_record`, and
its record stands at `after_step`.
"""


class Crash(BaseException):
    """Raised by a listener: the process dies here, for the queue, and nothing more of the attempt is written.

    Attributes:
        steps: the steps that the attempt had carried out, once it has left its body.
    """

    steps: tuple[str, ...] = ()


heard: dict[str, tuple[Listener, ...]] = {}
"""The points at which somebody listens, with who does."""


async def reach(point: str, **facts: Any) -> None:
    """Tell every listener of `point` that it has been reached."""
    for listener in heard.get(point, ()):
        held = listener(point, facts)
        if held is not None:
            await held


@contextmanager
def listening(listener: Listener, *points: str) -> Iterator[None]:
    """Have `listener` called at the named points, or at all of them, in every thread, for the length of the block.

    Raises:
        Invariant: there is no such point.
    """
    for point in points:
        if point not in NAMES:
            raise Invariant(f"there is no point {point!r}", f"name one of {', '.join(NAMES)}")
    points = points or NAMES
    for point in points:
        heard[point] = (*heard.get(point, ()), listener)
    try:
        yield
    finally:
        for point in points:
            remaining = list(heard[point])
            remaining.remove(listener)
            if remaining:
                heard[point] = tuple(remaining)
            else:
                del heard[point]

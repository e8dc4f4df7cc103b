"""Which queue the handles enqueue through.

`use(queue)` puts a queue on top, for the whole process: every thread and task sees it. Handles take the top-most queue
that serves their colour of call, so an app with blocking and async code uses one queue of each. A test's queue is above
all of them while it is in use: nothing that the app uses or connects displaces it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self

from xjobs.drivers.base import Driver
from xjobs.errors import DriverUnavailable

if TYPE_CHECKING:
    from xjobs.queue import Source
    from xjobs.transactions import Colour

_lock = threading.Lock()
_stack: list[Using] = []
test_source: Source | None = None
"""The source of the test's queue, while one is in use."""


class Using:
    """A queue in use. As a context manager, or by `stop()`, it ends and what was in use before is again."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the use; once ended, nothing more happens."""
        with _lock:
            if self in _stack:
                _stack.remove(self)


def push(source: Source) -> Using:
    """Put a source on top."""
    using = Using(source)
    with _lock:
        _stack.append(using)
    return using


def push_under(source: Source) -> Using:
    """Put a source below all others: it serves the colours of call that nothing above it does."""
    using = Using(source)
    with _lock:
        _stack.insert(0, using)
    return using


class TestUse:
    """The use of a test's queue: handles and queues that the app connects lead to it until the block ends.

    What the app puts in use during the block is in use no longer after it, so that a later test without a queue of its
    own does not enqueue to this one's.
    """

    __test__ = False

    def __init__(self, source: Source) -> None:
        self._source = source

    def __enter__(self) -> None:
        global test_source
        self._outer, test_source = test_source, self._source
        with _lock:
            self._before = list(_stack)

    def __exit__(self, *_: object) -> None:
        global test_source  # noqa: PLW0603
        test_source = self._outer
        with _lock:
            _stack[:] = [using for using in _stack if using in self._before]


def source_for(colour: Colour) -> tuple[Source, Driver]:
    """The source that handles enqueue through, with its driver for that colour of call.

    Raises:
        DriverUnavailable: no queue is in use, or none for this colour.
    """
    candidates: list[Any] = [test_source] if test_source is not None else [using.source for using in reversed(_stack)]
    for source in candidates:
        driver = source.driver(colour)
        if driver is not None:
            return source, driver
    if not candidates:
        raise DriverUnavailable(
            "no queue is in use, so the job cannot be enqueued",
            "call xjobs.use(xjobs.Queue.connect(...)) when the app starts, or put the xjobs_queue fixture in the test",
        )
    raise wrong_colour(colour)


def wrong_colour(colour: Colour) -> DriverUnavailable:
    """The error for a call whose colour the queue does not serve."""
    if colour == "async":
        return DriverUnavailable(
            "the queue in use is a blocking Queue, and this is an async call",
            "use an xjobs.AsyncQueue as well, or call the blocking form",
        )
    return DriverUnavailable(
        "the queue in use is an AsyncQueue, and this is a blocking call",
        "use an xjobs.Queue as well, or await the async form",
    )

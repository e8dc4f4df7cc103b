"""Trace context (W3C Trace Context, section 3.2): carried from the enqueuer's request to the job's attempt.

With OpenTelemetry in the process, the span that is current at an enqueue is stamped on the job, and each attempt is a
span under it. Without it, what a body enqueues carries the trace context of the body's own job.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

from xjobs.records import ClaimedJob

_running: ContextVar[str | None] = ContextVar("xjobs_traceparent", default=None)


def current() -> str | None:
    """The `traceparent` to stamp on what is enqueued here, or None."""
    if "opentelemetry.trace" in sys.modules:
        from xjobs.integrations import opentelemetry

        found = opentelemetry.current_traceparent()
        if found is not None:
            return found
    return _running.get()


_NOTHING = nullcontext()


def attempt(job: ClaimedJob) -> AbstractContextManager[None]:
    """The surroundings in which a body runs: a span under the enqueuer's, where there are spans."""
    if job.traceparent is None and _running.get() is None and "opentelemetry.trace" not in sys.modules:
        return _NOTHING
    return _traced(job)


@contextmanager
def _traced(job: ClaimedJob) -> Iterator[None]:
    token = _running.set(job.traceparent)
    try:
        if "opentelemetry.trace" in sys.modules:
            from xjobs.integrations import opentelemetry

            with opentelemetry.span(job):
                yield
        else:
            yield
    finally:
        _running.reset(token)

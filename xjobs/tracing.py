"""Trace context (W3C Trace Context, section 3.2): carried from the enqueuer's request to the job's attempt.

With OpenTelemetry in the process, the span that is current at an enqueue is stamped on the job, and each attempt is a
span under it. Without it, what a body enqueues carries the trace context of the body's own job.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
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


def concerns(job: ClaimedJob) -> bool:
    """Whether the attempt of a job needs surroundings: there are spans, or a trace to carry on or to end."""
    return job.traceparent is not None or "opentelemetry.trace" in sys.modules or _running.get() is not None


@contextmanager
def attempt(job: ClaimedJob) -> Iterator[None]:
    """The surroundings in which a body runs: a span under the enqueuer's, where there are spans."""
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

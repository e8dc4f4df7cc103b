"""Spans of attempts, and the trace context of the current span; imported when OpenTelemetry is in the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from xjobs.records import ClaimedJob

_propagator = TraceContextTextMapPropagator()


def current_traceparent() -> str | None:
    """The current span as a `traceparent` value; None when there is none."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier.get("traceparent")


@contextmanager
def span(job: ClaimedJob) -> Iterator[None]:
    """A span for one attempt, a child of the enqueuer's when the job carries a `traceparent` that parses."""
    parent = _propagator.extract({"traceparent": job.traceparent}) if job.traceparent else None
    attributes: dict[str, str | int] = {"job.name": job.name, "job.id": str(job.id), "job.attempt": job.attempt}
    if job.enqueued_by is not None:
        attributes["job.enqueued_by"] = job.enqueued_by
    tracer = trace.get_tracer("xjobs")
    with tracer.start_as_current_span(
        f"job.{job.name}",
        context=parent,
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as current:
        try:
            yield
        except Exception as error:
            _record(current, error)
            raise


def _record(current: trace.Span, error: Exception) -> None:
    """Put an error on a span. One whose own text fails must not take the place of the error itself."""
    current.set_status(trace.StatusCode.ERROR, type(error).__name__)
    with suppress(Exception):
        current.record_exception(error)

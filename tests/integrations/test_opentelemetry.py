"""Spans: the attempt is a child of the span in which the job was enqueued, across processes by its traceparent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import xjobs
from pytest_xjobs import XjobsQueue

_provider = TracerProvider()
trace.set_tracer_provider(_provider)


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """Where finished spans are."""
    exporter = InMemorySpanExporter()
    processor = SimpleSpanProcessor(exporter)
    _provider.add_span_processor(processor)
    yield exporter
    processor.shutdown()


def _named(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    (span,) = [span for span in spans.get_finished_spans() if span.name == name]
    return span


@pytest.mark.parametrize("colour", ["def", "async def"])
def test_an_attempt_is_a_child_of_the_request(
    xjobs_queue: XjobsQueue, spans: InMemorySpanExporter, colour: str
) -> None:
    inside: list[int] = []

    @xjobs.job(key=xjobs.NO_KEY)
    def child() -> None:
        inside.append(trace.get_current_span().get_span_context().span_id)

    @xjobs.job(key=xjobs.NO_KEY)
    def plain() -> None:
        inside.append(trace.get_current_span().get_span_context().span_id)
        child.enqueue()

    @xjobs.job(key=xjobs.NO_KEY)
    async def awaited() -> None:
        inside.append(trace.get_current_span().get_span_context().span_id)
        await child.aenqueue()

    job = plain if colour == "def" else awaited
    with trace.get_tracer("app").start_as_current_span("request") as request:
        job.using(enqueued_by="user:7").enqueue()
    xjobs_queue.drain()
    attempt, nested = _named(spans, f"job.{job.name}"), _named(spans, "job.child")
    assert attempt.parent is not None
    assert nested.parent is not None
    assert attempt.parent.span_id == request.get_span_context().span_id
    assert nested.parent.span_id == attempt.get_span_context().span_id
    assert {span.get_span_context().trace_id for span in (attempt, nested)} == {request.get_span_context().trace_id}
    assert inside == [attempt.get_span_context().span_id, nested.get_span_context().span_id]
    assert (
        dict(attempt.attributes or {}).items()
        >= {"job.name": job.name, "job.attempt": 1, "job.enqueued_by": "user:7"}.items()
    )


def test_a_given_traceparent_goes_before_the_current_span(xjobs_queue: XjobsQueue, spans: InMemorySpanExporter) -> None:
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    @xjobs.job(key=xjobs.NO_KEY)
    def work() -> None: ...

    with trace.get_tracer("app").start_as_current_span("request"):
        work.using(traceparent=given).enqueue()
    (row,) = xjobs_queue.jobs()
    assert row.traceparent == given
    xjobs_queue.drain()
    attempt = _named(spans, "job.work")
    assert f"{attempt.get_span_context().trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"


def test_an_error_whose_text_fails_is_still_the_error(xjobs_queue: XjobsQueue, spans: InMemorySpanExporter) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    @xjobs.job(key=xjobs.NO_KEY)
    def fails() -> None:
        raise Mute

    fails.enqueue()
    (run,) = xjobs_queue.drain(errors="collect").runs
    assert isinstance(run.error, Mute)
    assert _named(spans, "job.fails").status.status_code is trace.StatusCode.ERROR


def test_a_failure_is_on_the_span_and_a_suspension_is_none(
    xjobs_queue: XjobsQueue, spans: InMemorySpanExporter
) -> None:
    @xjobs.job(key=xjobs.NO_KEY)
    def fails() -> None:
        raise OSError("down")

    @xjobs.job(key=xjobs.NO_KEY)
    def sleeps(ctx: xjobs.Context) -> None:
        ctx.step.sleep(60)

    @xjobs.job(key=xjobs.NO_KEY)
    def odd() -> None: ...

    fails.enqueue()
    sleeps.enqueue()
    odd.using(traceparent="no trace context").enqueue()
    xjobs_queue.drain(errors="collect")
    failed, asleep, rootless = (_named(spans, f"job.{name}") for name in ("fails", "sleeps", "odd"))
    assert failed.status.status_code is trace.StatusCode.ERROR
    (event,) = failed.events
    assert (event.attributes or {})["exception.message"] == "down"
    assert asleep.status.status_code is trace.StatusCode.UNSET
    assert rootless.parent is None

"""Context variables of bodies: neither the test's, nor another body's, as with a worker."""

from __future__ import annotations

import pytest
from inner_run import Inner

BODIES = """
import asyncio, pytest, xjobs
from contextvars import ContextVar

tenant = ContextVar("tenant", default="none")
tenant.set("of the module")
seen = []

def note(text):
    seen.append(f"{text} {tenant.get()}")
    tenant.set(text)

@xjobs.job(key="{n}")
def work(n: int):
    note(f"body {n}")

@work.on_settled
def ended(ending):
    note("hook")

@xjobs.job(key="{n}")
async def awork(n: int):
    await asyncio.sleep(0)
    note(f"body {n}")

@awork.on_settled
async def aended(ending):
    note("hook")

EXPECTED = ["body 1 of the module", "hook of the module", "body 2 of the module", "hook of the module"]

@pytest.fixture(autouse=True)
def fresh():
    seen.clear()
    token = tenant.set("of a fixture")
    yield
    tenant.reset(token)
"""
TESTS = """
@pytest.mark.parametrize("job", [work, awork])
def test_drain(xjobs_queue, job):
    tenant.set("of the test")
    job.enqueue(n=1), job.enqueue(n=2)
    xjobs_queue.drain()
    assert seen == EXPECTED
    assert tenant.get() == "of the test"

@pytest.mark.parametrize("job", [work, awork])
async def test_adrain(xjobs_queue, job):
    tenant.set("of the test")
    await job.aenqueue(n=1), await job.aenqueue(n=2)
    await xjobs_queue.adrain()
    assert seen == EXPECTED
    assert tenant.get() == "of the test"

def test_run_next(xjobs_queue):
    tenant.set("of the test")
    work.enqueue(n=1)
    xjobs_queue.run_next()
    assert seen == EXPECTED[:2]
"""


def test_bodies_and_hooks_see_what_modules_have_set_and_nothing_of_tests(inner: Inner) -> None:
    inner.file(BODIES + TESTS)
    inner.run(*inner.both).assert_outcomes(passed=10)


def test_a_worker_does_the_same(inner: Inner) -> None:
    inner.file(
        BODIES.replace('tenant.set("of the module")', "")
        + """
def test_it(xjobs_queue, xjobs_worker):
    tenant.set("of the test")
    jobs = [awork.enqueue(n=1), awork.enqueue(n=2)]
    worker = xjobs_worker.start(concurrency=1)
    worker.wait_for(jobs[1])
    worker.stop()
    assert sorted(seen) == ["body 1 none", "body 2 none", "hook none", "hook none"]
"""
    )
    inner.run(*inner.both).assert_outcomes(passed=2)


@pytest.mark.parametrize("drain", ["drain", "adrain"])
def test_what_a_body_enqueues_knows_its_parent_and_its_trace(inner: Inner, drain: str) -> None:
    inner.file(
        f"""
import pytest, xjobs
from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider

tracer = TracerProvider().get_tracer("app")
OF_ANOTHER = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
spans = []

@xjobs.job(key=xjobs.NO_KEY)
def outer():
    spans.append(trace.get_current_span().get_span_context())
    inner.enqueue()

@xjobs.job(key=xjobs.NO_KEY)
def inner():
    spans.append(trace.get_current_span().get_span_context())

async def run(queue):
    if "{drain}" == "drain":
        return queue.drain()
    return await queue.adrain()

{"async " if drain == "adrain" else ""}def test_it(xjobs_queue):
    spans.clear()
    outer.using(traceparent=OF_ANOTHER).enqueue()
    with tracer.start_as_current_span("of the test"):
        {"await xjobs_queue.adrain()" if drain == "adrain" else "xjobs_queue.drain()"}
    assert [span.trace_id for span in spans] == [int("1" * 32, 16)] * 2
    spans.clear()
    with tracer.start_as_current_span("of the test") as span:
        token = context.attach(trace.set_span_in_context(trace.INVALID_SPAN))
        outer.enqueue()  # with no trace
        context.detach(token)
        {"await xjobs_queue.adrain()" if drain == "adrain" else "xjobs_queue.drain()"}
    assert span.get_span_context().trace_id not in {{span.trace_id for span in spans}}
"""
    )
    inner.run(*inner.both).assert_outcomes(passed=2)

"""Contexts for calling a body alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import xjobs
from xjobs.registry import scope
from xjobs.testing import async_context, context


def test_a_body_is_called_with_a_context_and_without_a_queue() -> None:
    with scope():

        @xjobs.job(key="{n}")
        def work(ctx: xjobs.Context, n: int) -> tuple[int, bool, str | None, int]:
            return ctx.attempt, ctx.final_attempt, ctx.tenant, n

    assert work(context(attempt=3, tenant="acme"), n=7) == (3, True, "acme", 7)
    assert work(context(), n=7) == (1, False, None, 7)


async def test_an_async_body_too() -> None:
    with scope():

        @xjobs.job(key="{n}")
        async def work(ctx: xjobs.AsyncContext, n: int) -> datetime:
            return ctx.now()

    before = datetime.now(UTC)
    assert before <= await work(async_context(), n=7) <= datetime.now(UTC)


def test_each_context_is_of_another_job() -> None:
    assert context().job_id != context().job_id


class TestSteps:
    def test_steps_run_sleeps_are_over_and_waits_find_what_is_given(self) -> None:
        with scope():

            @xjobs.job(key=xjobs.NO_KEY)
            def work(ctx: xjobs.Context) -> list[object]:
                first = ctx.step.run("first", dict, a=1)
                ctx.step.sleep("month", timedelta(days=30))
                ctx.step.sleep(60)
                paid = ctx.step.wait_for_event("paid", "order.paid", match="7")
                never = ctx.step.wait_for_event("never", "order.lost")
                ctx.progress(1, 2)
                return [first, paid and (paid.payload, paid.correlation_key), never, ctx.cancelled]

        assert work(context(events={"order.paid": {"cents": 5}})) == [{"a": 1}, ({"cents": 5}, "7"), None, False]

    async def test_an_async_body_too(self) -> None:
        with scope():

            @xjobs.job(key=xjobs.NO_KEY)
            async def work(ctx: xjobs.AsyncContext) -> object:
                await ctx.step.sleep("month", timedelta(days=30))
                await ctx.step.wait_for_event("needed", "order.paid", required=True)
                return await ctx.step.run("last", int)

        assert await work(async_context(events={"order.paid": None})) == 0
        with pytest.raises(xjobs.JobTimeout, match="given none"):
            await work(async_context())

    def test_what_a_queue_would_refuse_is_refused(self) -> None:
        ctx = context()
        with pytest.raises(xjobs.InputInvalid, match="output"):
            ctx.step.run("a", lambda: {1, 2})
        with pytest.raises(xjobs.StepDuplicate):
            ctx.step.run("a", int)

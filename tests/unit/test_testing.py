"""Contexts for calling a body alone."""

from __future__ import annotations

from datetime import UTC, datetime

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

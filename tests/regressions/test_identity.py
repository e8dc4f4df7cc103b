"""Whose job is answered: keys belong to a job and a tenant, and ids to what they name."""

from __future__ import annotations

import itertools
from typing import Any

import psycopg
import pytest
from conformance.fixtures import Work, postgres_store
from conformance.stores import Store, Tables

import xjobs
from pytest_xjobs.clock import Clock
from xjobs.in_use import TestUse
from xjobs.queue import Drivers


async def test_one_key_under_every_job_and_tenant_is_as_many_jobs(queue: xjobs.AsyncQueue, tables: Tables) -> None:
    """Fault 1: the namespace was the key alone, then name and key: another job's or tenant's row was "yours"."""

    @xjobs.job(key="{n}")
    def first(n: int) -> None: ...

    @xjobs.job(key="{n}")
    def second(n: int) -> None: ...

    tenants = (None, "a", "b")
    made = {
        (job.name, tenant): await job.using(tenant=tenant).aenqueue(n=1)
        for job, tenant in itertools.product((first, second), tenants)
    }
    assert len({answer.id for answer in made.values()}) == len({answer.run_id for answer in made.values()}) == 6
    for job, tenant in itertools.product((second, first), reversed(tenants)):
        again = await job.using(tenant=tenant).aenqueue(n=1)
        assert again == made[job.name, tenant]._replace(deduped=True)
        row = await queue.job(again.id)
        assert row is not None
        assert (row.name, row.tenant_id) == (job.name, tenant)
    assert len(tables.jobs()) == 6


async def test_a_key_that_is_freed_under_an_enqueue_is_no_migration_error(
    store: Store, queue: xjobs.AsyncQueue, tables: Tables, work: Work
) -> None:
    """Fault 22: the holder settled between insert and lookup, and that was reported as a broken schema."""

    async def settle_all(session: xjobs.AsyncQueue) -> list[bool]:
        landed: list[bool] = []
        for _ in range(60):
            jobs = (await session.claim(queues=["default"], worker_id="w", limit=5)).jobs
            landed += [bool(await session.ack([xjobs.Ack(job)], worker_id="w")) for job in jobs]
        return landed

    async def enqueue_all(session: xjobs.AsyncQueue) -> list[bool]:
        return [(await session.enqueue(work.call(n=1))).deduped for _ in range(60)]

    roles = iter([settle_all, enqueue_all, enqueue_all])
    _, *enqueued = await store.at_once(3, lambda session: next(roles)(session))
    assert sum(not deduped for answers in enqueued for deduped in answers) == len(tables.jobs())


@pytest.mark.parametrize("option", ["id", "run_id"])
@pytest.mark.parametrize("wrong", ["ABCDEF00-0000-4000-8000-000000000000", "order-17", 17, "", "0" * 32])
def test_a_run_id_of_another_shape_does_not_break_the_callers_transaction(
    run: Any, clock: Clock, option: str, wrong: Any
) -> None:
    """Fault 55: a raw database error from inside the caller's transaction, which it had aborted."""

    @xjobs.job(key="{n}")
    def work(n: int) -> None: ...

    for store in postgres_store(run, clock, "blocking"):
        with (
            TestUse(Drivers(blocking=store.driver)),
            psycopg.connect(store.dsn) as connection,
        ):
            connection.execute("select 1")
            with pytest.raises(xjobs.IdInvalid, match=option):
                work.using(**{option: wrong}, connection=connection).enqueue(n=1)
            assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
            work.using(connection=connection).enqueue(n=1)
        assert len(store.tables.jobs()) == 1


async def test_what_a_body_may_not_touch_it_is_not_told(queue: xjobs.AsyncQueue, drain: Any) -> None:
    """Fault 57, as far as it is the queue's: a body ran without knowing its tenant."""
    seen: list[str | None] = []

    @xjobs.job(key="{n}", tenant=lambda n: f"org-{n}")
    async def work(ctx: xjobs.AsyncContext, n: int) -> None:
        seen.append(ctx.tenant)

    await queue.enqueue_many([work.call(n=1), work.using(tenant="given").call(n=2)])
    await drain()
    assert seen == ["org-1", "given"]

"""What an enqueue writes, and which row answers in place of a new one."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID, uuid4

import pytest

import xjobs
from conformance.fixtures import Work
from conformance.stores import PostgresStore, Store, Tables, queue_on
from pytest_xjobs.clock import Clock
from xjobs.states import FINISHED, LIVE

GIVEN = UUID("01890a5d-ac96-774b-bcce-b302099a8057")


async def _row(queue: xjobs.AsyncQueue, made: xjobs.Enqueued) -> xjobs.JobRow:
    row = await queue.job(made.id)
    assert row is not None
    return row


async def test_a_new_row_has_the_defaults_of_its_table(queue: xjobs.AsyncQueue, clock: Clock, work: Work) -> None:
    now = clock.freeze()
    made = await work.aenqueue(n=1)
    assert await _row(queue, made) == xjobs.JobRow(
        id=made.id,
        name="work",
        queue="default",
        state="ready",
        input={"n": 1},
        idempotency_key="1",
        run_id=made.run_id,
        attempt=0,
        max_attempts=3,
        claims=0,
        run_at=now,
        visible_at=None,
        claimed_by=None,
        last_error=None,
        last_error_stack=None,
        tenant_id=None,
        created_at=now,
        updated_at=now,
        traceparent=None,
        enqueued_by=None,
        progress=None,
    )
    assert made.deduped is False


async def test_the_declaration_goes_into_the_row(queue: xjobs.AsyncQueue) -> None:
    @xjobs.job(key=lambda user: f"u{user}", name="mail.welcome", queue="mail", tenant="org-{org}", retry=7)
    def welcome(user: int, org: str) -> None: ...

    row = await _row(queue, await welcome.aenqueue(user=4, org="a"))
    assert (row.name, row.queue, row.idempotency_key, row.tenant_id, row.max_attempts) == (
        "mail.welcome",
        "mail",
        "u4",
        "org-a",
        7,
    )


async def test_options_of_one_enqueue_win_over_the_declaration(queue: xjobs.AsyncQueue, work: Work) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    made = await work.using(
        queue="other", key="k", tenant="t", id=GIVEN, run_id=str(GIVEN), enqueued_by="ann", traceparent=trace
    ).aenqueue(n=1)
    row = await _row(queue, made)
    assert made == xjobs.Enqueued(GIVEN, GIVEN, False)
    assert (row.queue, row.idempotency_key, row.tenant_id, row.enqueued_by, row.traceparent) == (
        "other",
        "k",
        "t",
        "ann",
        trace,
    )
    assert (await _row(queue, await work.aenqueue(n=1))).queue == "default"


@pytest.mark.parametrize(
    ("delay", "state"),
    [
        (timedelta(microseconds=1), "delayed"),
        (90, "delayed"),
        (0.5, "delayed"),
        (timedelta(days=36_525), "delayed"),
        (0, "ready"),
        (-5, "ready"),
        (timedelta(days=-36_525), "ready"),
    ],
)
async def test_a_delay_counts_from_the_clock_of_the_store(
    queue: xjobs.AsyncQueue, clock: Clock, work: Work, delay: timedelta | float, state: str
) -> None:
    now = clock.freeze()
    row = await _row(queue, await work.using(delay=delay).aenqueue(n=1))
    span = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)
    assert (row.run_at, row.state) == (now + span, state)


@pytest.mark.parametrize("offset", [-3600, -0.000001, 0, 0.000001, 3600])
async def test_run_at_is_kept_to_the_microsecond_and_says_the_state(
    queue: xjobs.AsyncQueue, clock: Clock, work: Work, offset: float
) -> None:
    instant = clock.freeze() + timedelta(seconds=offset)
    elsewhere = instant.astimezone(timezone(timedelta(hours=5, minutes=45)))
    row = await _row(queue, await work.using(run_at=elsewhere).aenqueue(n=1))
    assert row.run_at == instant
    assert row.run_at.utcoffset() == timedelta(0)
    assert row.state == ("delayed" if offset > 0 else "ready")


@pytest.mark.parametrize("instant", [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
async def test_run_at_may_be_any_instant_that_python_has(
    queue: xjobs.AsyncQueue, work: Work, instant: datetime
) -> None:
    assert (await _row(queue, await work.using(run_at=instant).aenqueue(n=1))).run_at == instant


async def test_two_jobs_with_one_natural_key_are_two_rows(queue: xjobs.AsyncQueue) -> None:
    @xjobs.job(key="{n}")
    def one(n: int) -> None: ...

    @xjobs.job(key="{n}")
    def other(n: int) -> None: ...

    made = [await one.aenqueue(n=1), await other.aenqueue(n=1)]
    assert [answer.deduped for answer in made] == [False, False]
    assert {row.name for row in await queue.jobs()} == {"one", "other"}


@pytest.mark.parametrize("state", LIVE)
async def test_a_live_job_holds_its_key(queue: xjobs.AsyncQueue, tables: Tables, work: Work, state: str) -> None:
    first = await work.aenqueue(n=1)
    tables.change(first.id, state=state)
    before = tables.jobs()
    again = await work.using(queue="elsewhere", delay=60, run_id=uuid4()).aenqueue(n=1)
    assert again == xjobs.Enqueued(first.id, first.run_id, True)
    assert tables.jobs() == before


@pytest.mark.parametrize("state", FINISHED)
async def test_a_finished_job_frees_its_key_for_a_new_run(
    queue: xjobs.AsyncQueue, tables: Tables, work: Work, state: str
) -> None:
    first = await work.aenqueue(n=1)
    tables.change(first.id, state=state)
    again = await work.aenqueue(n=1)
    assert again.deduped is False
    assert again.run_id != first.run_id
    assert Counter(row.state for row in await queue.jobs()) == {state: 1, "ready": 1}


async def test_tenants_never_share_a_key(queue: xjobs.AsyncQueue, work: Work) -> None:
    made = {tenant: await work.using(tenant=tenant).aenqueue(n=1) for tenant in ("a", "b", None)}
    assert not any(answer.deduped for answer in made.values())
    for tenant in ("b", None, "a"):
        assert await work.using(tenant=tenant).aenqueue(n=1) == made[tenant]._replace(deduped=True)


async def test_a_tenant_and_a_key_are_not_run_together(queue: xjobs.AsyncQueue, work: Work) -> None:
    made = [await work.using(tenant=tenant, key=key).aenqueue(n=1) for tenant, key in [("a", "bc"), ("ab", "c")]]
    assert [answer.deduped for answer in made] == [False, False]


async def test_a_conflict_can_be_an_error_that_names_the_holder(queue: xjobs.AsyncQueue, work: Work) -> None:
    first = await work.aenqueue(n=1)
    with pytest.raises(xjobs.JobDuplicate, match=str(first.id)) as caught:
        await work.using(on_conflict="error").aenqueue(n=1)
    assert (caught.value.code, caught.value.id, caught.value.run_id) == ("X_JOB_DUPLICATE", first.id, first.run_id)
    assert len(await queue.jobs()) == 1


async def test_a_conflict_is_none_across_tenants_and_finished_jobs(
    queue: xjobs.AsyncQueue, tables: Tables, work: Work
) -> None:
    strict = work.using(on_conflict="error")
    first = await strict.aenqueue(n=1)
    assert (await work.using(on_conflict="error", tenant="a").aenqueue(n=1)).deduped is False
    tables.change(first.id, state="done")
    assert (await strict.aenqueue(n=1)).deduped is False


@pytest.mark.parametrize("state", [*LIVE, *FINISHED])
@pytest.mark.parametrize("on_conflict", ["dedupe", "error"])
async def test_a_given_id_that_a_row_has_answers_that_row(
    queue: xjobs.AsyncQueue, tables: Tables, work: Work, state: str, on_conflict: xjobs.jobs.OnConflict
) -> None:
    first = await work.using(id=GIVEN).aenqueue(n=1)
    tables.change(first.id, state=state)
    again = await work.using(id=GIVEN, on_conflict=on_conflict, run_id=uuid4()).aenqueue(n=1)
    assert again == xjobs.Enqueued(first.id, first.run_id, True)
    assert len(tables.jobs()) == 1


async def test_a_given_id_wins_over_the_key(queue: xjobs.AsyncQueue, work: Work) -> None:
    by_id = await work.using(id=GIVEN).aenqueue(n=1)
    await work.aenqueue(n=2)
    assert await work.using(id=GIVEN).aenqueue(n=2) == by_id._replace(deduped=True)


async def test_a_given_id_that_is_free_still_meets_the_key(queue: xjobs.AsyncQueue, work: Work) -> None:
    holder = await work.aenqueue(n=1)
    assert await work.using(id=GIVEN).aenqueue(n=1) == holder._replace(deduped=True)
    assert await queue.job(GIVEN) is None


@pytest.mark.parametrize("option", ["id", "run_id"])
@pytest.mark.parametrize("value", ["01890A5D-AC96-774B-BCCE-B302099A8057", "order-17", 17, "", b"x" * 16])
async def test_an_id_that_is_none_is_refused_before_anything_is_written(
    queue: xjobs.AsyncQueue, tables: Tables, work: Work, option: Any, value: Any
) -> None:
    with pytest.raises(xjobs.IdInvalid) as caught:
        work.using(**{option: value})
    assert (caught.value.code, tables.jobs()) == ("X_ID_INVALID", [])


async def test_without_a_key_every_enqueue_is_its_own(queue: xjobs.AsyncQueue) -> None:
    @xjobs.job(key=xjobs.NO_KEY)
    def ping() -> None: ...

    made = [await ping.aenqueue(), await ping.using(id=GIVEN).aenqueue()]
    assert [(await _row(queue, answer)).idempotency_key for answer in made] == [str(made[0].id), str(GIVEN)]


async def test_jobs_of_one_instant_run_in_the_order_of_their_enqueue(
    queue: xjobs.AsyncQueue, clock: Clock, work: Work
) -> None:
    clock.freeze()
    await work.aenqueue(n=1)
    await queue.enqueue_many([work.call(n=n) for n in (5, 2, 9)])
    await work.using(tenant="t").aenqueue(n=0)
    claimed = await queue.claim(queues=["default"], worker_id="w", limit=10)
    assert [job.input["n"] for job in claimed.jobs] == [1, 5, 2, 9, 0]


async def test_ids_follow_real_time_when_the_clock_goes_back(queue: xjobs.AsyncQueue, clock: Clock, work: Work) -> None:
    instants = [datetime(year, 1, 1, tzinfo=UTC) for year in (2030, 1990, 2024)]
    made = []
    for n, instant in enumerate(instants):
        clock.move_to(instant)
        made.append(await work.aenqueue(n=n))
    assert [answer.id for answer in made] == sorted(answer.id for answer in made)
    assert [(await _row(queue, answer)).created_at for answer in made] == instants


class TestMany:
    async def test_answers_are_in_the_order_of_the_calls(self, queue: xjobs.AsyncQueue, work: Work) -> None:
        numbers = [3, 1, 2]
        made = await queue.enqueue_many(work.call(n=n) for n in numbers)
        assert [(await _row(queue, answer)).input["n"] for answer in made] == numbers
        assert [answer.deduped for answer in made] == [False] * 3

    async def test_none_is_none(self, queue: xjobs.AsyncQueue) -> None:
        assert await queue.enqueue_many([]) == []

    async def test_two_calls_with_one_key_are_one_job(
        self, queue: xjobs.AsyncQueue, tables: Tables, work: Work
    ) -> None:
        standing = await work.aenqueue(n=1)
        made = await queue.enqueue_many([work.call(n=n) for n in (2, 1, 2, 2, 3)])
        assert [answer.deduped for answer in made] == [False, True, True, True, False]
        assert made[1] == standing._replace(deduped=True)
        assert made[2] == made[3] == made[0]._replace(deduped=True)
        assert len(tables.jobs()) == 3

    async def test_siblings_are_told_apart_by_job_and_tenant(self, queue: xjobs.AsyncQueue, work: Work) -> None:
        @xjobs.job(key="{n}")
        def other(n: int) -> None: ...

        calls = [work.call(n=1), other.call(n=1), work.using(tenant="a").call(n=1), work.using(tenant="b").call(n=1)]
        assert [answer.deduped for answer in await queue.enqueue_many(calls)] == [False] * 4

    async def test_calls_keep_their_options(self, queue: xjobs.AsyncQueue, clock: Clock, work: Work) -> None:
        now = clock.freeze()
        made = await queue.enqueue_many(
            [work.using(delay=5, queue="a").call(n=1), work.using(run_at=now, id=GIVEN).call(n=2), work.call(n=3)]
        )
        rows = [await _row(queue, answer) for answer in made]
        assert [(row.queue, row.state, row.run_at - now) for row in rows] == [
            ("a", "delayed", timedelta(seconds=5)),
            ("default", "ready", timedelta(0)),
            ("default", "ready", timedelta(0)),
        ]
        assert made[1].id == GIVEN

    async def test_a_given_id_that_stands_is_answered_among_new_ones(
        self, queue: xjobs.AsyncQueue, tables: Tables, work: Work
    ) -> None:
        first = await work.using(id=GIVEN).aenqueue(n=1)
        tables.change(GIVEN, state="done")
        made = await queue.enqueue_many([work.call(n=2), work.using(id=GIVEN).call(n=1), work.call(n=3)])
        assert made[1] == first._replace(deduped=True)
        assert [answer.deduped for answer in made] == [False, True, False]

    async def test_a_conflict_error_or_one_id_twice_is_refused_whole(
        self, queue: xjobs.AsyncQueue, tables: Tables, work: Work
    ) -> None:
        for calls in (
            [work.call(n=1), work.using(on_conflict="error").call(n=2)],
            [work.using(id=GIVEN).call(n=1), work.using(id=GIVEN).call(n=2)],
        ):
            with pytest.raises(xjobs.Invariant):
                await queue.enqueue_many(calls)
        assert tables.jobs() == []

    async def test_a_rule_that_refuses_one_call_refuses_all(self, queue: xjobs.AsyncQueue, tables: Tables) -> None:
        @xjobs.job(key="{name}")
        def greet(name: str) -> None: ...

        with pytest.raises(xjobs.Invariant, match="key"):
            await queue.enqueue_many([greet.call(name="a"), greet.call(name="")])
        assert tables.jobs() == []

    @pytest.mark.parametrize("wrong", ["work", None, 3])
    async def test_what_is_not_a_call_is_refused(self, queue: xjobs.AsyncQueue, work: Work, wrong: Any) -> None:
        with pytest.raises(xjobs.Invariant):
            await queue.enqueue_many([work.call(n=1), wrong])
        with pytest.raises(xjobs.Invariant):
            await queue.enqueue(wrong)

    async def test_many_thousand_go_in_at_once(self, queue: xjobs.AsyncQueue, work: Work) -> None:
        made = await queue.enqueue_many(work.call(n=n) for n in range(3_000))
        assert len({answer.id for answer in made}) == 3_000
        assert [stats.ready for stats in await queue.stats()] == [3_000]


async def test_many_sessions_at_once_make_one_row_of_one_key(store: Store, queue: xjobs.AsyncQueue, work: Work) -> None:
    made = await store.at_once(6, lambda session: session.enqueue(work.call(n=1)))
    assert sorted(answer.deduped for answer in made) == [False, True, True, True, True, True]
    assert len({(answer.id, answer.run_id) for answer in made}) == 1


async def test_sessions_that_enqueue_the_same_keys_in_any_order_do_not_fail(
    store: Store, queue: xjobs.AsyncQueue, tables: Tables, work: Work
) -> None:
    orders = iter([range(40), range(39, -1, -1), range(20, 60), range(59, 19, -1)])
    made = await store.at_once(4, lambda session: session.enqueue_many([work.call(n=n) for n in next(orders)]))
    assert sum(not answer.deduped for answers in made for answer in answers) == 60
    assert len(tables.jobs()) == 60


async def test_workers_run_a_deduplicated_job_once(store: Store, queue: xjobs.AsyncQueue, work: Work) -> None:
    made = {await work.aenqueue(n=1) for _ in range(3)}
    assert len({answer.id for answer in made}) == 1
    claims = await store.at_once(3, lambda session: session.claim(queues=["default"], worker_id="w", limit=3))
    assert sum(len(claimed.jobs) for claimed in claims) == 1


async def _blocked(store: PostgresStore) -> None:
    """Wait until a session waits for another one's transaction."""
    import psycopg

    waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    with psycopg.connect(store.dsn, autocommit=True) as control:
        async with asyncio.timeout(10):
            while control.execute(waiting).fetchone() == (0,):
                await asyncio.sleep(0.001)


class TestOnPostgres:
    @pytest.mark.parametrize("ending", ["commit", "rollback"])
    async def test_an_enqueue_waits_for_a_key_that_is_not_committed(self, postgres: PostgresStore, ending: str) -> None:
        """The holder shows up between the insert that it stops and the look at it: the second try finds it."""

        @xjobs.job(key="{n}")
        def work(n: int) -> None: ...

        other = await postgres.begin()
        first = await other.queue.enqueue(work.call(n=1))
        waits = asyncio.create_task(postgres.at_once(1, lambda session: session.enqueue(work.call(n=1))))
        await _blocked(postgres)
        assert not waits.done()
        await getattr(other, ending)()
        (made,) = await waits
        if ending == "commit":
            assert made == first._replace(deduped=True)
        else:
            assert made.deduped is False
        assert len(postgres.tables.jobs()) == 1

    async def test_a_key_that_frees_up_while_an_enqueue_waits_is_taken(self, postgres: PostgresStore) -> None:
        @xjobs.job(key="{n}")
        def work(n: int) -> None: ...

        queue = queue_on(postgres.driver)
        first = await queue.enqueue(work.call(n=1))
        other = await postgres.begin()
        (claimed,) = (await queue.claim(queues=["default"], worker_id="w")).jobs
        await other.queue.ack([xjobs.Ack(claimed)], worker_id="w")
        waits = asyncio.create_task(postgres.at_once(1, lambda session: session.enqueue(work.call(n=1))))
        await _blocked(postgres)
        await other.commit()
        (made,) = await waits
        assert made.deduped is False
        assert made.id != first.id

    async def test_an_index_that_disagrees_with_the_lookup_is_reported(self, postgres: PostgresStore) -> None:
        """Refused twice by a key that no live job holds, as by an index of an older version."""

        @xjobs.job(key="{n}")
        def work(n: int) -> None: ...

        queue = queue_on(postgres.driver)
        made = await queue.enqueue(work.call(n=1))
        postgres.tables.change(made.id, state="done")
        control = postgres.control
        control.execute("create unique index older on x_jobs (name, (coalesce(tenant_id, '')), idempotency_key)")
        try:
            with pytest.raises(xjobs.DriverUnavailable, match="xjobs schema") as caught:
                await queue.enqueue(work.call(n=1))
        finally:
            control.execute("drop index older")
        assert caught.value.code == "X_DRIVER_UNAVAILABLE"
        assert (await queue.enqueue(work.call(n=1))).deduped is False

"""The test's clock in Postgres: virtual time of a database, told by the clock, seen by every session."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import freezegun
import psycopg
import psycopg_pool
import pytest
import time_machine as tm

from pytest_xjobs.clock import SEARCH_PATH, Clock, ClockState, install_time, read_time, set_time
from pytest_xjobs.freezes import REAL, real_now
from pytest_xjobs.provision import Cluster, find_binaries
from xjobs.errors import Invariant
from xjobs.sql import SQL_JOBS_TABLE

FAR = datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
NEXT = FAR + timedelta(days=1)
FUNCTIONS = ("now", "transaction_timestamp", "statement_timestamp", "clock_timestamp")
Conn = psycopg.Connection[Any]


@pytest.fixture(scope="module")
def dsn() -> Iterator[str]:
    with Cluster.start(find_binaries()) as cluster:
        with psycopg.connect(cluster.dsn("postgres"), autocommit=True) as conn:
            conn.execute("create database clocked")
            conn.execute(f"alter database clocked set search_path = {SEARCH_PATH}")
            conn.execute("create role app login")
        dsn = cluster.dsn("clocked")
        with psycopg.connect(dsn, autocommit=True) as conn:
            install_time(conn)
            conn.execute(SQL_JOBS_TABLE.encode())
            conn.execute("create table stamped (id int, at timestamptz not null default now())")
            conn.execute("grant all on stamped to app")
        yield dsn


@pytest.fixture
def owner(dsn: str) -> Iterator[Conn]:
    """The connection over which time is set."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        yield conn


@pytest.fixture
def conn(dsn: str) -> Iterator[Conn]:
    """A session of the app."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        yield conn


@pytest.fixture
def clock(owner: Conn) -> Iterator[Clock]:
    clock = Clock()
    clock.subscribe(lambda state: set_time(owner, state))
    yield clock
    clock.close()
    assert read_time(owner) == REAL


def one(conn: Conn, query: str = "select now()", *args: Any, **kwargs: Any) -> Any:
    return conn.execute(query, *args, **kwargs).fetchone()[0]  # type: ignore[index]


def near(one: datetime, other: datetime) -> bool:
    return abs(one - other) < timedelta(seconds=5)


# The functions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_answer_the_state(owner: Conn, conn: Conn, function: str) -> None:
    query = f"select {function}()"
    assert near(one(conn, query), real_now())
    set_time(owner, ClockState.frozen(FAR))
    assert one(conn, query) == one(conn, query) == FAR
    set_time(owner, ClockState.shifted(timedelta(days=-400)))
    assert near(one(conn, query), real_now() - timedelta(days=400))
    set_time(owner, REAL)
    assert near(one(conn, query), real_now())


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_shift_is_exact(owner: Conn, conn: Conn, function: str) -> None:
    shift = timedelta(days=123, microseconds=-1)
    set_time(owner, ClockState.shifted(shift))
    query = f"select {function}() - pg_catalog.{function}() from generate_series(1, 2)"
    difference = one(conn, query)
    set_time(owner, REAL)
    # Between two calls of clock_timestamp a little time passes.
    assert abs(difference - shift) <= timedelta(milliseconds=20 if function == "clock_timestamp" else 0)


@pytest.mark.parametrize(
    "at",
    [
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(2300, 7, 8, 1, 2, 3, 999999, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    ],
)
def test_every_instant_of_python_is_exact(owner: Conn, conn: Conn, at: datetime) -> None:
    conn.execute("set timezone = 'UTC'")  # psycopg cannot load year 1 in a zone behind
    set_time(owner, ClockState.frozen(at))
    assert read_time(owner) == ClockState.frozen(at)
    found = one(conn)
    set_time(owner, REAL)
    assert found == at


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kathmandu"])
def test_the_sessions_time_zone_changes_no_instant(owner: Conn, conn: Conn, zone: str) -> None:
    conn.execute(f"set timezone = '{zone}'")
    for at in (datetime(2030, 3, 10, 7, 30, tzinfo=UTC), datetime(2030, 11, 3, 6, 30, tzinfo=UTC)):
        set_time(owner, ClockState.frozen(at))
        found = one(conn).astimezone(UTC)  # in an hour that comes twice, zones compare unequal (PEP 495)
        set_time(owner, REAL)
        assert found == at


def test_installing_again_keeps_what_depends_on_it_and_makes_time_real(owner: Conn, conn: Conn) -> None:
    set_time(owner, ClockState.frozen(FAR))
    install_time(owner)
    assert read_time(owner) == REAL
    assert near(one(conn, "insert into stamped values (0) returning at"), real_now())


def test_transactions_are_refused(dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        with pytest.raises(Invariant, match="outside of transactions: give a connection with autocommit"):
            install_time(conn)
        with pytest.raises(Invariant, match="outside of transactions"):
            set_time(conn, REAL)


def test_row_factories_of_the_connection_do_not_matter(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True, row_factory=psycopg.rows.dict_row) as conn:
        set_time(conn, ClockState.frozen(FAR))
        assert read_time(conn) == ClockState.frozen(FAR)
        set_time(conn, REAL)


def test_planner_facts(conn: Conn) -> None:
    rows = conn.execute(
        "select proname, provolatile, proparallel, procost from pg_proc"
        " where pronamespace = 'xjobs_time'::regnamespace order by proname"
    ).fetchall()
    assert rows == [(name, "v" if name == "clock_timestamp" else "s", "s", 1.0) for name in sorted(FUNCTIONS)]


# Who sees a move, and when -------------------------------------------------------------------------------------------


def test_a_transaction_sees_a_move_before_and_after_its_rollback(clock: Clock, conn: Conn) -> None:
    with conn.transaction(force_rollback=True):
        assert near(one(conn), real_now())
        clock.freeze(FAR)
        assert one(conn) == FAR
    assert one(conn) == FAR


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_snapshot_sees_a_move(clock: Clock, conn: Conn, level: str) -> None:
    conn.execute(f"begin isolation level {level}")
    conn.execute("select from x_jobs")
    clock.freeze(FAR)
    assert one(conn) == FAR
    clock.advance(days=1)
    assert one(conn) == NEXT
    conn.execute("rollback")


def test_a_rollback_of_the_movers_other_work_does_not_undo_it(clock: Clock, owner: Conn, conn: Conn) -> None:
    clock.freeze(FAR)
    with owner.transaction(force_rollback=True):
        owner.execute("insert into stamped values (1)")
    assert one(conn) == one(owner) == FAR


@pytest.mark.parametrize("mode", ["auto", "force_generic_plan", "force_custom_plan"])
def test_prepared_statements_see_moves(clock: Clock, conn: Conn, mode: str) -> None:
    conn.execute(f"set plan_cache_mode = {mode}")
    conn.execute("truncate stamped")
    conn.execute("insert into stamped select g, %s + g * interval '1 day' from generate_series(0, 19) g", (FAR,))
    for due in range(1, 21):
        clock.freeze(FAR) if due == 1 else clock.advance(days=1)
        query = "select count(*) from stamped where at <= now() and id >= %s"
        assert one(conn, query, (0,), prepare=True) == due


def test_another_role_sees_moves(clock: Clock, conn: Conn) -> None:
    conn.execute("set role app")
    clock.freeze(FAR)
    for function in FUNCTIONS:
        assert one(conn, f"select {function}()") == FAR
    assert one(conn, "insert into stamped values (2) returning at") == FAR
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        conn.execute("select setval('xjobs_time.clock', 0)")


def test_defaults_follow_also_without_the_path(clock: Clock, conn: Conn) -> None:
    conn.execute("set search_path = public")
    clock.freeze(FAR)
    assert one(conn, "insert into stamped values (3) returning at") == FAR
    with conn.cursor().copy("copy stamped (id) from stdin") as copy:
        copy.write_row((104,))
    assert one(conn, "select at from stamped where id = 104") == FAR
    # What this path costs: the statement's own now() is real.
    assert near(one(conn), real_now())


def test_triggers_and_functions_follow(clock: Clock, conn: Conn) -> None:
    conn.execute("create or replace function stamp() returns timestamptz language plpgsql as 'begin return now(); end'")
    assert near(one(conn, "select stamp()"), real_now())
    clock.freeze(FAR)
    assert one(conn, "select stamp()") == FAR


@pytest.mark.parametrize("state", [REAL, ClockState.frozen(FAR), ClockState.shifted(timedelta(days=1))])
def test_due_rows_are_found_by_the_index(owner: Conn, conn: Conn, state: ClockState) -> None:
    set_time(owner, state)
    with conn.transaction(force_rollback=True):
        conn.execute(
            "insert into x_jobs (id, name, input, idempotency_key, run_id, run_at)"
            " select gen_random_uuid(), 'j', '{}', g::text, gen_random_uuid(), now() + (g - 50) * interval '1 hour'"
            " from generate_series(1, 5000) g"
        )
        conn.execute("analyze x_jobs")
        plan = "\n".join(
            row[0]
            for row in conn.execute(
                "explain select id from x_jobs where queue = 'default'"
                " and state in ('ready', 'delayed', 'suspended') and run_at <= now() order by run_at limit 5"
            )
        )
    set_time(owner, REAL)
    assert "Index Cond: ((queue = 'default'::text) AND (run_at <= now()))" in plan
    assert "Filter" not in plan


def test_clones_of_a_template_start_in_real_time_once_installed(dsn: str, owner: Conn) -> None:
    set_time(owner, ClockState.frozen(FAR))
    owner.close()
    admin = dsn.replace("clocked", "postgres")
    with psycopg.connect(admin, autocommit=True) as conn:
        conn.execute("create database clone template clocked")
    with psycopg.connect(dsn.replace("clocked", "clone"), autocommit=True) as conn:
        assert read_time(conn) == ClockState.frozen(FAR)
        install_time(conn)
        assert read_time(conn) == REAL
        assert near(one(conn, "insert into stamped values (5) returning at"), real_now())
    with psycopg.connect(admin, autocommit=True) as conn:
        conn.execute("drop database clone")
    with psycopg.connect(dsn, autocommit=True) as conn:
        set_time(conn, REAL)


# Freezes of the test -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["freezegun", "time-machine"])
def test_a_frozen_test_is_followed(clock: Clock, conn: Conn, library: str) -> None:
    with freezegun.freeze_time(FAR) if library == "freezegun" else tm.travel(FAR, tick=False) as handle:
        clock.sync()
        assert one(conn) == FAR == datetime.now(UTC)
        handle.move_to(NEXT)
        clock.sync()
        assert one(conn) == NEXT
        clock.advance(days=1)
        assert one(conn) == datetime.now(UTC) == NEXT + timedelta(days=1)
    clock.sync()
    assert near(one(conn), real_now())


@pytest.mark.parametrize("library", ["freezegun", "time-machine"])
def test_a_ticking_test_is_followed(clock: Clock, conn: Conn, library: str) -> None:
    with freezegun.freeze_time(FAR, tick=True) if library == "freezegun" else tm.travel(FAR):
        clock.sync()
        earlier = datetime.now(UTC)
        between = one(conn, "select clock_timestamp()")
        assert earlier - timedelta(milliseconds=1) <= between <= datetime.now(UTC) + timedelta(milliseconds=1)
        assert near(between, FAR)
        assert one(conn, "select clock_timestamp()") > between
    clock.sync()
    assert near(one(conn), real_now())


def test_pytest_freezer_is_followed(clock: Clock, conn: Conn, freezer: Any) -> None:
    freezer.move_to(FAR)
    clock.sync()
    assert one(conn) == FAR


# What must keep working while time stands ----------------------------------------------------------------------------


@pytest.mark.parametrize("opened", ["before", "inside"])
def test_pools_work(clock: Clock, dsn: str, opened: str) -> None:
    if opened == "inside":
        clock.freeze(FAR)
    with psycopg_pool.ConnectionPool(dsn, min_size=1, max_size=1, open=True) as pool:
        pool.wait(5)
        clock.freeze(FAR)
        pids = set()
        for _ in range(10):
            clock.advance(days=365)
            with pool.connection(5) as conn:
                pids.add(conn.info.backend_pid)
                assert one(conn) == clock.now
                with pytest.raises(psycopg_pool.PoolTimeout):
                    pool.getconn(0.002)
        # A connection that looked a year old would be replaced.
        assert len(pids) == 1


def test_a_pool_may_outlive_the_freeze(clock: Clock, dsn: str) -> None:
    clock.freeze(FAR)
    with psycopg_pool.ConnectionPool(dsn, min_size=1, max_size=1, open=True) as pool:
        pool.wait(5)
        clock.resume()
        with pool.connection(5) as conn:
            assert near(one(conn), real_now())


@pytest.mark.parametrize("opened", ["before", "inside"])
def test_async_connections_and_pools_work(clock: Clock, dsn: str, opened: str) -> None:
    async def body() -> None:
        if opened == "inside":
            clock.freeze(FAR)
        async with psycopg_pool.AsyncConnectionPool(dsn, min_size=1, max_size=1, open=False) as pool:
            await pool.wait(5)
            clock.freeze(FAR)
            async with pool.connection(5) as conn:
                assert (await (await conn.execute("select now()")).fetchone()) == (FAR,)
                await asyncio.sleep(0.001)
                with pytest.raises(psycopg_pool.PoolTimeout):
                    await pool.getconn(0.002)
                await conn.execute("listen x")
                assert [note async for note in conn.notifies(timeout=0.002)] == []
        async with await psycopg.AsyncConnection.connect(dsn, connect_timeout=5) as conn:
            assert (await (await conn.execute("select now()")).fetchone()) == (FAR,)

    asyncio.run(asyncio.wait_for(body(), 20))


def test_notifications_time_out(clock: Clock, conn: Conn) -> None:
    clock.freeze(FAR)
    conn.execute("listen x")
    assert list(conn.notifies(timeout=0.002)) == []


def test_threads_with_connections_of_their_own(clock: Clock, dsn: str) -> None:
    def body() -> tuple[datetime, datetime]:
        clock.sync()
        with psycopg.connect(dsn) as conn:
            return one(conn), datetime.now(UTC)

    clock.freeze(FAR)
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        for answer in [threads.submit(body) for _ in range(8)]:
            assert answer.result(10) == (FAR, FAR)


def test_instants_of_a_freeze_go_there_and_back(clock: Clock, conn: Conn) -> None:
    clock.freeze(FAR)
    assert one(conn, "select %s::timestamptz", (datetime.now(UTC),)) == FAR
    assert one(conn, "select now() = %s", (datetime.now(UTC),))


def test_moves_in_one_thread_reach_statements_in_another(clock: Clock, dsn: str) -> None:
    moved, seen = threading.Event(), []

    def other() -> None:
        with psycopg.connect(dsn, autocommit=True) as conn:
            moved.wait(10)
            seen.append(one(conn))

    thread = threading.Thread(target=other)
    thread.start()
    clock.freeze(FAR)
    moved.set()
    thread.join(10)
    assert seen == [FAR]

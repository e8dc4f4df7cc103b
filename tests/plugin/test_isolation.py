"""What one test leaves for the next: nothing. And the moved time, which every session of a test's database sees."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from inner_run import Inner

from pytest_xjobs.clock import Clock
from pytest_xjobs.environment import Environment
from pytest_xjobs.queue import XjobsQueue
from xjobs import NO_KEY, Context, DrainReport, job

APP = """
import psycopg, xjobs

@xjobs.job(key="{number}")
def note(number: int):
    if number < 0:
        raise ValueError
"""
SETUP = """
import psycopg

def pytest_xjobs_database_setup(dsn):
    with psycopg.connect(dsn) as connection:
        connection.execute("create table orders (id int generated always as identity, at timestamptz default now())")
        connection.execute("create table lines (id int, order_id int)")
        connection.execute("create table countries (code text)")
        connection.execute("insert into countries values ('de')")
"""
Conn = psycopg.Connection[tuple[Any, ...]]
on_postgres = pytest.mark.parametrize("xjobs_environment", ["pg"], indirect=True)


def now(connection: Conn) -> datetime:
    row = connection.execute("select now()").fetchone()
    assert row is not None
    answer: datetime = row[0]
    return answer


def databases(inner: Inner) -> set[str]:
    """The databases on the server."""
    with psycopg.connect(inner.pg.partition("=")[2]) as connection:
        return {name for (name,) in connection.execute("select datname from pg_database").fetchall()}


@pytest.fixture
def connect(xjobs_environment: Environment) -> Iterator[Callable[..., Conn]]:
    """Opens sessions of the app on the test's database."""
    opened: list[Conn] = []

    def connect(**kwargs: Any) -> Conn:
        assert xjobs_environment.dsn is not None
        opened.append(psycopg.connect(xjobs_environment.dsn, **kwargs))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


# Rows ----------------------------------------------------------------------------------------------------------------


def test_nothing_of_one_test_is_in_the_next(inner: Inner) -> None:
    inner.file(APP, name="app")
    inner.file(
        """
        import pytest
        from datetime import timedelta
        from app import note

        @pytest.mark.parametrize("turn", range(3))
        def test_it(xjobs_queue, xjobs_clock, turn):
            assert xjobs_queue.jobs() == []
            assert xjobs_queue.stats() == []
            assert note.enqueue(number=1).deduped is False  # live in the test before
            note.using(delay=timedelta(days=1)).enqueue(number=2)
            note.enqueue(number=-1)
            xjobs_queue.drain(errors="collect")
            note.enqueue(number=3)
            assert xjobs_queue.claim(queues=["default"], worker_id="w").jobs
            xjobs_clock.advance(days=400)
        """
    )
    inner.run(*inner.both).assert_outcomes(passed=6)


def test_tests_that_fail_in_every_way_leave_nothing_either(inner: Inner) -> None:
    inner.file(APP, name="app")
    inner.file(
        """
        import datetime, pytest, threading
        from app import note

        YEAR = datetime.datetime.now().year

        @pytest.fixture
        def broken_setup(xjobs_queue, xjobs_clock):
            note.enqueue(number=1)
            xjobs_clock.advance(days=4000)
            raise RuntimeError("setup")

        @pytest.fixture
        def broken_teardown(xjobs_queue, xjobs_clock):
            yield
            xjobs_clock.advance(days=4000)
            raise RuntimeError("teardown")

        @pytest.fixture(autouse=True)
        def clean(xjobs_queue, xjobs_clock):
            assert (xjobs_queue.jobs(), xjobs_clock.now.year, datetime.datetime.now().year) == ([], YEAR, YEAR)

        def test_failing(xjobs_queue, xjobs_clock):
            xjobs_clock.advance(days=4000)
            note.enqueue(number=1)
            assert False

        def test_failing_in_a_body(xjobs_queue, xjobs_clock):
            xjobs_clock.advance(days=4000)
            note.enqueue(number=-1)
            xjobs_queue.drain()

        def test_skipped(xjobs_queue, xjobs_clock):
            note.enqueue(number=1)
            xjobs_clock.advance(days=4000)
            pytest.skip()

        def test_with_a_broken_setup(broken_setup): ...

        def test_with_a_broken_teardown(xjobs_queue, broken_teardown):
            note.enqueue(number=1)

        def test_at_last(xjobs_queue):
            note.enqueue(number=1)
            xjobs_queue.drain()
        """
    )
    # Each of them on memory, then on Postgres.
    inner.run(*inner.both).assert_outcomes(passed=4, failed=4, skipped=2, errors=4)


def test_the_apps_own_tables_are_made_by_the_hook_and_emptied(inner: Inner) -> None:
    inner.file(SETUP, name="conftest")
    inner.file(
        """
        import psycopg, pytest

        @pytest.mark.parametrize("turn", range(3))
        def test_it(xjobs_dsn, turn):
            with psycopg.connect(xjobs_dsn) as connection:
                for table in ("orders", "lines"):
                    assert connection.execute(f"select count(*) from {table}").fetchone() == (0,)
                connection.execute("insert into orders default values")
                connection.execute("insert into lines values (1, 1)")
        """
    )
    inner.run(inner.pg).assert_outcomes(passed=3)
    inner.run(inner.pg, "--xjobs-reset=truncate").assert_outcomes(passed=3)
    # Left alone, the rows of the first test are there in the second.
    inner.run(inner.pg, "--xjobs-reset=none").assert_outcomes(passed=1, failed=2)
    inner.run(inner.pg, "--xjobs-keep=lines").assert_outcomes(passed=1, failed=2)


def test_kept_tables_hold_what_the_setup_put_there(inner: Inner) -> None:
    inner.file(SETUP, name="conftest")
    inner.file(
        """
        import psycopg, pytest

        @pytest.mark.parametrize("turn", range(2))
        def test_it(xjobs_dsn, turn):
            with psycopg.connect(xjobs_dsn) as connection:
                assert connection.execute("select code from countries").fetchall() == [("de",)]
        """
    )
    inner.run(inner.pg, "--xjobs-keep=count*").assert_outcomes(passed=2)


def test_the_setup_runs_once_under_the_path_of_the_tests_clock(inner: Inner) -> None:
    inner.file(SETUP + "    print('set up')\n", name="conftest")
    inner.file(
        """
        import datetime, psycopg, pytest

        @pytest.mark.parametrize("isolation", [
            pytest.param(name, marks=pytest.mark.xjobs(isolation=name)) for name in ("delete", "database", "database")
        ])
        def test_it(xjobs_dsn, xjobs_clock, isolation):
            at = xjobs_clock.advance(days=7)
            with psycopg.connect(xjobs_dsn) as connection:
                connection.execute("insert into orders default values")
                assert connection.execute("select at from orders").fetchall() == [(at,)]
        """
    )
    result = inner.run(inner.pg, "-s")
    result.assert_outcomes(passed=3)
    assert result.stdout.str().count("set up") == 1


def test_a_setup_that_fails_is_the_error_of_each_test_and_leaves_nothing(inner: Inner) -> None:
    inner.file("def pytest_xjobs_database_setup(dsn):\n    raise RuntimeError('no migrations')\n", name="conftest")
    inner.file("def test_one(xjobs_queue): ...\ndef test_two(xjobs_queue): ...")
    before = databases(inner)
    result = inner.run(inner.pg)
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines("E*RuntimeError: no migrations")
    assert databases(inner) == before


def test_the_runs_databases_are_gone_after_it(inner: Inner) -> None:
    inner.file(
        """
        import pathlib, psycopg, pytest

        @pytest.mark.parametrize("isolation", [
            pytest.param(name, marks=pytest.mark.xjobs(isolation=name)) for name in ("delete", "database")
        ])
        def test_it(xjobs_dsn, isolation):
            with open("names", "a") as names:
                print(psycopg.conninfo.conninfo_to_dict(xjobs_dsn)["dbname"], file=names)
        """
    )
    inner.run(inner.pg).assert_outcomes(passed=2)
    used = inner.pytester.path.joinpath("names").read_text().split()
    run = used[0].rsplit("_", 1)[0]
    assert len(set(used)) == 2
    assert not [name for name in databases(inner) if name.startswith(run)]


# Transactions --------------------------------------------------------------------------------------------------------

LEAK = """
import psycopg, pytest
from app import note

kept = []

@pytest.mark.xjobs(backend="pg", isolation="{isolation}")
def test_that_leaks(xjobs_queue, xjobs_dsn):
    kept.append(psycopg.connect(xjobs_dsn))
    note.using(connection=kept[0]).enqueue(number=1)
    kept[0].execute("select 'the leaked statement'")

@pytest.mark.xjobs(backend="pg")
def test_after(xjobs_queue, xjobs_dsn):
    with pytest.raises(psycopg.OperationalError):
        kept[0].commit()
    assert xjobs_queue.jobs() == []
    assert not note.enqueue(number=1).deduped
    kept[0].close()
"""


@pytest.mark.parametrize("isolation", ["delete", "database"])
def test_a_leaked_transaction_is_named_and_ended(inner: Inner, isolation: str) -> None:
    inner.file(APP, name="app")
    inner.file(LEAK.format(isolation=isolation))
    result = inner.run(inner.pg, "-W", "default::pytest.PytestWarning")
    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines(
        [
            "test_it.py::test_that_leaks",
            "*XjobsWarning: the test left transactions open, which have been ended; commit or roll back:",
            "*pid *, idle in transaction for 0.* s, last statement: select 'the leaked statement'",
        ]
    )


def test_with_warnings_as_errors_the_test_that_leaked_fails_and_not_the_next(inner: Inner) -> None:
    inner.file(APP, name="app")
    inner.file(LEAK.format(isolation="delete"))
    result = inner.run(inner.pg)
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines("ERROR test_it.py::test_that_leaks*")


def test_a_failing_test_that_leaks_is_told_so_too(inner: Inner) -> None:
    inner.file(APP, name="app")
    inner.file(LEAK.format(isolation="delete").replace("    kept[0].execute", "    assert False\n    kept[0].execute"))
    result = inner.run(inner.pg, "-W", "default::pytest.PytestWarning")
    result.assert_outcomes(passed=1, failed=1, warnings=1)


def test_a_transaction_of_a_thread_that_is_still_at_work_is_found(inner: Inner) -> None:
    inner.file(APP, name="app")
    inner.file(
        """
        import psycopg, threading
        from app import note

        at_work, go_on, threads = threading.Event(), threading.Event(), []

        def work(dsn):
            with psycopg.connect(dsn) as connection:
                note.using(connection=connection).enqueue(number=1)
                at_work.set()
                go_on.wait(10)
                try:
                    connection.commit()
                except psycopg.OperationalError:
                    pass

        def test_that_leaves_a_thread(xjobs_queue, xjobs_dsn):
            threads.append(threading.Thread(target=work, args=[xjobs_dsn]))
            threads[0].start()
            assert at_work.wait(10)

        def test_after(xjobs_queue):
            go_on.set()
            threads[0].join()
            assert xjobs_queue.jobs() == []
        """
    )
    result = inner.run(inner.pg, "-W", "default::pytest.PytestWarning")
    result.assert_outcomes(passed=2, warnings=1)


def test_sessions_without_a_transaction_are_left_alone(inner: Inner) -> None:
    inner.file(
        """
        import psycopg

        kept = []

        def test_one(xjobs_dsn):
            kept.append(psycopg.connect(xjobs_dsn))
            kept[0].execute("select 1")
            kept[0].commit()

        def test_two(xjobs_dsn):
            assert kept[0].execute("select 2").fetchone() == (2,)
            kept[0].close()
        """
    )
    inner.run(inner.pg).assert_outcomes(passed=2)


# Time, as every session of the database sees it ----------------------------------------------------------------------


@on_postgres
def test_seven_days_on_a_second_connection(
    xjobs_queue: XjobsQueue, xjobs_clock: Clock, connect: Callable[..., Conn]
) -> None:
    second = connect(autocommit=True)
    assert abs(now(second) - datetime.now(UTC)) < timedelta(seconds=5)
    seen: list[datetime] = []

    @job(key=NO_KEY)
    def remind(ctx: Context) -> None:
        seen.extend([ctx.now(), now(second), datetime.now(UTC)])

    week = timedelta(days=7)
    start = xjobs_clock.freeze()
    answer = remind.using(delay=week).enqueue()
    assert xjobs_queue.drain().runs == ()
    target = xjobs_clock.advance(days=7)
    assert target == start + week
    # Open since before the move, and it was told nothing.
    assert now(second) == target
    (run,) = xjobs_queue.drain().runs
    assert (run.job_id, run.started_at, seen) == (answer.id, target, [target] * 3)
    stored = second.execute("select created_at, run_at, updated_at from x_jobs").fetchall()
    assert stored == [(start, target, target)]


@on_postgres
@pytest.mark.parametrize("isolation_level", ["READ_COMMITTED", "REPEATABLE_READ", "SERIALIZABLE"])
def test_a_rollback_does_not_bring_the_time_back(
    xjobs_clock: Clock, connect: Callable[..., Conn], isolation_level: str
) -> None:
    second, third = connect(), connect(autocommit=True)
    second.isolation_level = psycopg.IsolationLevel[isolation_level]
    second.execute("select count(*) from x_jobs")  # the transaction has its snapshot
    target = xjobs_clock.advance(days=7)
    assert now(second) == now(third) == target
    second.rollback()
    assert now(second) == now(third) == target
    second.rollback()
    with second.transaction(force_rollback=True):
        assert now(second) == target
        target = xjobs_clock.advance(days=7)
        assert now(second) == target
    assert now(second) == now(third) == target
    second.rollback()


@on_postgres
def test_a_savepoint_that_is_rolled_back_does_not_either(xjobs_clock: Clock, connect: Callable[..., Conn]) -> None:
    second = connect()
    with second.transaction():
        with second.transaction(force_rollback=True):
            target = xjobs_clock.advance(days=7)
            assert now(second) == target
        assert now(second) == target


@on_postgres
def test_sessions_of_threads_and_ones_opened_later_see_it_too(xjobs_clock: Clock, connect: Callable[..., Conn]) -> None:
    target = xjobs_clock.advance(days=7)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: now(connect(autocommit=True)), range(4))) == [target] * 4
    xjobs_clock.resume()
    assert abs(now(connect(autocommit=True)) - datetime.now(UTC)) < timedelta(seconds=5)


def test_the_next_test_starts_at_real_time_also_on_a_session_that_stayed_open(inner: Inner) -> None:
    inner.file(
        """
        import datetime, psycopg, pytest

        kept = []

        @pytest.fixture
        def second(xjobs_dsn):
            if not kept:
                kept.append(psycopg.connect(xjobs_dsn, autocommit=True))
            return kept[0]

        @pytest.mark.parametrize("turn", range(2))
        def test_it(xjobs_clock, second, turn):
            shown, = second.execute("select now()").fetchone()
            assert abs(shown - datetime.datetime.now(datetime.timezone.utc)) < datetime.timedelta(seconds=5)
            target = xjobs_clock.advance(days=7)
            assert second.execute("select now()").fetchone() == (target,)
            if turn:
                second.close()
        """
    )
    inner.run(inner.pg).assert_outcomes(passed=2)


@on_postgres
@pytest.mark.xjobs(isolation="database")  # a fault here would be one of its connection, which others share
def test_two_drains_at_once_do_not_run_a_job_twice(xjobs_queue: XjobsQueue) -> None:
    ran: list[int] = []
    both_running = threading.Barrier(2, timeout=10)

    @job(key="{number}")
    def note(number: int) -> None:
        if number < 2:
            both_running.wait()
        ran.append(number)

    for number in range(40):
        note.enqueue(number=number)
    reports: list[DrainReport] = []
    threads = [threading.Thread(target=lambda: reports.append(xjobs_queue.drain()), daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    assert sorted(ran) == list(range(40))
    assert sum(len(report.runs) for report in reports) == 40

"""On which backends a test runs, what its ids are, and that both give the same answer."""

from __future__ import annotations

import re

import pytest
from inner_run import Inner

APP = """
from datetime import timedelta
from uuid import UUID
import xjobs

sent = []

@xjobs.job(key="welcome:{user_id}", queue="mail", retry=3)
def welcome(user_id: int, token: UUID | None = None):
    sent.append((user_id, token))
    if user_id < 0:
        raise ValueError(f"no user {user_id}")

@xjobs.job(key=xjobs.NO_KEY)
def signup(user_id: int):
    welcome.using(delay=timedelta(days=2)).enqueue(user_id=user_id)
"""

# A test of every thing that a backend answers, written once and told nothing about where it runs.
TESTS = """
import pytest, xjobs
from datetime import timedelta
from uuid import UUID
from app import sent, signup, welcome

@pytest.fixture(autouse=True)
def _nothing_sent():
    sent.clear()

def test_enqueue_and_drain(xjobs_queue):
    answer = welcome.enqueue(user_id=7, token=UUID(int=9))
    row = xjobs_queue.assert_enqueued(welcome.call(user_id=7, token=UUID(int=9)), queue="mail")
    assert (row.id, row.state, row.attempt) == (answer.id, "ready", 0)
    report = xjobs_queue.drain()
    assert (report.reason, [run.outcome for run in report.runs]) == ("idle", ["completed"])
    assert sent == [(7, UUID(int=9))]
    xjobs_queue.assert_state(answer, "done")

def test_dedupe(xjobs_queue):
    first, second = welcome.enqueue(user_id=7), welcome.enqueue(user_id=7)
    assert (second.id, second.deduped) == (first.id, True)
    assert len(xjobs_queue.drain().runs) == 1

def test_delay_and_clock(xjobs_queue, xjobs_clock):
    signup.enqueue(user_id=7)
    assert xjobs_queue.drain().reason == "not due"
    assert sent == []
    xjobs_clock.advance(days=2)
    xjobs_queue.drain()
    assert sent == [(7, None)]

def test_retries_to_the_end(xjobs_queue):
    answer = welcome.enqueue(user_id=-1)
    report = xjobs_queue.drain(advance=True, errors="collect")
    assert [run.outcome for run in report.runs] == ["retried", "retried", "dead-lettered"]
    assert xjobs_queue.assert_state(answer, "dead").last_error == "ValueError: no user -1"

def test_strict_input(xjobs_queue):
    with pytest.raises(xjobs.InputInvalid) as refused:
        welcome.enqueue(user_id="7")
    assert refused.value.path == "input.user_id"

async def test_async(xjobs_queue):
    await welcome.aenqueue(user_id=7)
    await xjobs_queue.adrain()
    assert sent == [(7, None)]

def test_that_fails(xjobs_queue):
    xjobs_queue.assert_enqueued(welcome.call(user_id=7))
"""
NAMES = re.findall(r"def (test_\w+)", TESTS)
WHERE = """
import pytest

def test_it(xjobs_queue, xjobs_backend):
    print("ran on", xjobs_backend, xjobs_queue.backend)
"""


def outcomes(result: pytest.RunResult) -> dict[str, str]:
    """Outcome by test id, without the file's name."""
    pattern = re.compile(r"^test_it\.py::(\S+) (PASSED|FAILED|SKIPPED|ERROR)")
    found = (pattern.match(line) for line in result.outlines)
    return {match[1]: match[2] for match in found if match}


def test_the_same_file_has_the_same_outcomes_on_memory_and_on_postgres(inner: Inner) -> None:
    inner.file(APP, name="app")
    inner.file(TESTS)
    expected = dict.fromkeys(NAMES, "PASSED") | {"test_that_fails": "FAILED"}
    assert outcomes(inner.run("-v")) == expected
    assert outcomes(inner.run("-v", inner.pg)) == expected


def test_on_both_backends_each_test_runs_twice_and_its_id_says_where(inner: Inner) -> None:
    inner.file(APP, name="app")
    inner.file(TESTS)
    found = outcomes(inner.run("-v", *inner.both))
    assert sorted(found) == sorted(f"{name}[{backend}]" for name in NAMES for backend in ("memory", "pg"))
    for name in NAMES:
        assert found[f"{name}[memory]"] == found[f"{name}[pg]"] == ("FAILED" if "fails" in name else "PASSED")


def test_the_queue_and_the_backend_fixture_agree(inner: Inner) -> None:
    inner.file(WHERE)
    result = inner.run("-v", "-s", *inner.both)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*ran on memory memory*", "*ran on pg postgres*"])


def test_one_backend_of_two_is_chosen_by_its_id(inner: Inner) -> None:
    inner.file(WHERE)
    result = inner.run("-v", *inner.both, "-k", "pg")
    assert outcomes(result) == {"test_it[pg]": "PASSED"}


def test_tests_that_do_not_use_the_queue_run_once(inner: Inner) -> None:
    inner.file(
        """
        import pytest

        def test_plain(): ...

        @pytest.mark.parametrize("number", [1, 2])
        def test_parametrized(number, xjobs_clock): ...
        """
    )
    assert sorted(outcomes(inner.run("-v", *inner.both))) == [
        "test_parametrized[memory-1]",
        "test_parametrized[memory-2]",
        "test_parametrized[pg-1]",
        "test_parametrized[pg-2]",
        "test_plain",
    ]


def test_a_fixture_of_the_app_that_uses_the_queue_parametrizes_its_tests_too(inner: Inner) -> None:
    inner.file(
        """
        import pytest

        @pytest.fixture
        def shop(xjobs_queue):
            return xjobs_queue.backend

        def test_it(shop): ...
        """
    )
    assert sorted(outcomes(inner.run("-v", *inner.both))) == ["test_it[memory]", "test_it[pg]"]


MARKED = """
import pytest

@pytest.mark.xjobs(backend="memory")
def test_memory(xjobs_queue):
    assert xjobs_queue.backend == "memory"

@pytest.mark.xjobs(backend="pg")
def test_pg(xjobs_queue):
    assert xjobs_queue.backend == "postgres"

@pytest.mark.xjobs(backend="memory, pg")
def test_either(xjobs_queue): ...
"""


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        # A test for Postgres is skipped in memory; one for memory needs nothing and runs everywhere.
        ("memory", {"test_memory": "PASSED", "test_pg": "SKIPPED", "test_either": "PASSED"}),
        ("pg", {"test_memory": "PASSED", "test_pg": "PASSED", "test_either": "PASSED"}),
        (
            "memory,pg",
            {
                "test_memory": "PASSED",
                "test_pg": "PASSED",
                "test_either[memory]": "PASSED",
                "test_either[pg]": "PASSED",
            },
        ),
    ],
)
def test_a_marker_narrows_the_backends_of_a_test(inner: Inner, backend: str, expected: dict[str, str]) -> None:
    inner.file(MARKED)
    result = inner.run("-v", "-rs", inner.pg, f"--xjobs-backend={backend}")
    assert outcomes(result) == expected
    if backend == "memory":
        result.stdout.fnmatch_lines("SKIPPED*this test is for Postgres: run it with --xjobs-pg")


def test_the_dsn_is_that_of_the_queue_and_memory_has_none(inner: Inner) -> None:
    inner.file(
        """
        import psycopg, xjobs

        @xjobs.job(key=xjobs.NO_KEY)
        def nothing(): ...

        def test_it(xjobs_queue, xjobs_dsn):
            nothing.enqueue()
            with psycopg.connect(xjobs_dsn) as connection:
                assert connection.execute("select name from x_jobs").fetchall() == [("nothing",)]
        """
    )
    result = inner.run("-v", *inner.both)
    assert outcomes(result) == {"test_it[memory]": "ERROR", "test_it[pg]": "PASSED"}
    result.stdout.fnmatch_lines("xjobs_dsn has no database to name, since this test runs in memory: run it with *")


def test_isolation_database_gives_a_test_a_database_of_its_own_that_goes_with_it(inner: Inner) -> None:
    inner.file(
        """
        import psycopg, pytest

        names = {}

        def names_of(dsn):
            with psycopg.connect(dsn) as connection:
                return {name for (name,) in connection.execute("select datname from pg_database").fetchall()}

        def name_of(dsn):
            return psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]

        def test_shared(xjobs_dsn):
            names["shared"] = name_of(xjobs_dsn)

        @pytest.mark.xjobs(isolation="database")
        def test_own(xjobs_dsn):
            names["own"] = name_of(xjobs_dsn)
            assert names["own"] != names["shared"]

        @pytest.mark.xjobs(isolation="database")
        def test_own_again(xjobs_dsn):
            assert name_of(xjobs_dsn) not in names.values()
            assert names["own"] not in names_of(xjobs_dsn)

        def test_shared_again(xjobs_dsn):
            assert name_of(xjobs_dsn) == names["shared"]

        @pytest.mark.xjobs(isolation="delete")
        def test_shared_by_marker(xjobs_dsn):
            assert name_of(xjobs_dsn) == names["shared"]
        """
    )
    inner.run(inner.pg).assert_outcomes(passed=5)
    # With the option the other way round, only the marked test shares.
    result = inner.run("-v", inner.pg, "--xjobs-isolation=database")
    assert outcomes(result)["test_shared_again"] == "FAILED"

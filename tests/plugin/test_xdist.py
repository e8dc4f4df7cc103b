"""Parallel runs: one server and one template for all workers, a database each, and nothing left."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from inner_run import Inner

TESTS = """
import os, psycopg, pytest, xjobs
from pytest_xjobs.plugin import OPTIONS

@xjobs.job(key="{number}")
def note(number: int):
    if number:
        note.enqueue(number=number - 1)

@pytest.mark.parametrize("turn", range(40))
def test_it(xjobs_queue, xjobs_clock, xjobs_dsn, request, turn):
    assert xjobs_queue.jobs() == []
    target = xjobs_clock.advance(days=turn + 1)
    # One key in all tests of both workers, and a time of its own in each.
    assert not note.enqueue(number=5).deduped
    assert len(xjobs_queue.drain().runs) == 6
    with psycopg.connect(xjobs_dsn) as connection:
        rows = connection.execute("select distinct created_at from x_jobs").fetchall()
        assert rows == [(target,)]
        host, port = connection.info.host, connection.info.port
        name = connection.info.dbname
    worker = os.environ.get("PYTEST_XDIST_WORKER", "none")
    seed = request.config.stash[OPTIONS].seed.value
    with open(os.environ["SEEN"], "a") as seen:
        print(worker, f"{host}:{port}", name, seed, file=seen)

def test_failing(xjobs_queue, xjobs_clock):
    xjobs_clock.advance(days=4000)
    note.enqueue(number=5)
    assert False
"""


def seen(path: Path) -> tuple[set[str], ...]:
    """Workers, servers, databases and seeds of the tests of a run."""
    rows = [line.split() for line in path.read_text().splitlines()]
    assert len(rows) == 40
    return tuple(set(column) for column in zip(*rows, strict=True))


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the tests of the inner run say what they saw."""
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    return tmp_path / "seen"


def test_two_workers_share_one_server_that_is_gone_after_the_run(inner: Inner, log: Path) -> None:
    inner.file(TESTS)
    inner.subprocess("-n2", "--xjobs-pg").assert_outcomes(passed=40, failed=1)
    workers, servers, databases, seeds = seen(log)
    assert (len(workers), len(servers), len(databases), len(seeds)) == (2, 1, 2, 1)
    assert len({name.rsplit("_", 1)[0] for name in databases}) == 1
    # Its socket was in the directory of its data.
    (server,) = servers
    assert not Path(server.rpartition(":")[0]).exists()


def test_on_an_existing_server_the_runs_databases_are_dropped(inner: Inner, log: Path) -> None:
    inner.file(TESTS)
    inner.subprocess("-n2", inner.pg).assert_outcomes(passed=40, failed=1)
    workers, servers, databases, seeds = seen(log)
    assert (len(workers), len(servers), len(databases), len(seeds)) == (2, 1, 2, 1)
    run = databases.pop().rsplit("_", 1)[0]
    with psycopg.connect(inner.pg.partition("=")[2]) as connection:
        left = connection.execute("select datname from pg_database where starts_with(datname, %s)", [run]).fetchall()
    assert left == []


def test_both_backends_with_workers(inner: Inner) -> None:
    inner.file("def test_it(xjobs_queue): ...")
    inner.subprocess("-n2", *inner.both).assert_outcomes(passed=2)


def test_a_run_with_workers_in_memory_starts_no_server(
    inner: Inner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XJOBS_PG_BIN", str(tmp_path))  # where none is found
    inner.file("def test_it(xjobs_queue): ...")
    inner.subprocess("-n1").assert_outcomes(passed=1)

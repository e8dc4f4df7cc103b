"""docs/differences.md: each difference between memory and Postgres is shown here, and the page lists no others."""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

import xjobs
from conformance.fixtures import Work
from conformance.machine import LEFT_OUT
from conformance.stores import PostgresStore, queue_on
from xjobs.bridge import run_sync
from xjobs.drivers.base import Driver
from xjobs.drivers.memory import MemoryDriver
from xjobs.drivers.postgres import ConnectionDriver, PostgresDriver

PAGE = Path(__file__).parents[2] / "docs" / "differences.md"
OWN = "tests/conformance/test_differences.py"


@pytest.mark.parametrize("postgres", ["blocking"], indirect=True)
class TestShown:
    """One test for each row of the page: what memory does, then what Postgres does."""

    @pytest.fixture
    def memory(self) -> MemoryDriver:
        return MemoryDriver()

    @pytest.fixture
    def connection(self, postgres: PostgresStore) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(postgres.dsn) as connection:
            yield connection

    @staticmethod
    def enqueue(driver: Driver, call: xjobs.Call) -> xjobs.Enqueued:
        return run_sync(queue_on(driver).enqueue(call))

    def test_waiting(
        self, memory: MemoryDriver, postgres: PostgresStore, connection: psycopg.Connection[Any], work: Work
    ) -> None:
        other = memory.begin()
        self.enqueue(other, work.call(n=1))
        with pytest.raises(xjobs.WouldBlock):
            self.enqueue(memory, work.call(n=1))

        holder = self.enqueue(ConnectionDriver(connection), work.call(n=1))
        answers: list[xjobs.Enqueued] = []
        waiting = threading.Thread(target=lambda: answers.append(self.enqueue(postgres.driver, work.call(n=1))))
        waiting.start()
        blocked = "select count(*) from pg_locks where not granted"
        while postgres.control.execute(blocked).fetchone() == (0,):
            assert waiting.is_alive()
        connection.commit()
        waiting.join()
        assert answers == [holder._replace(deduped=True)]

    def test_snapshots(
        self, memory: MemoryDriver, postgres: PostgresStore, connection: psycopg.Connection[Any], work: Work
    ) -> None:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("select 1")
        with xjobs.use(xjobs.Queue.connect("memory://")):
            holder = work.enqueue(n=1)
            assert work.using(connection=connection).enqueue(n=1) == holder._replace(deduped=True)

        self.enqueue(postgres.driver, work.call(n=2))
        with pytest.raises(xjobs.TransactionConflict):
            self.enqueue(ConnectionDriver(connection), work.call(n=2))

    def test_the_present_instant_of_a_transaction(
        self, postgres: PostgresStore, connection: psycopg.Connection[Any], work: Work
    ) -> None:
        now = datetime(2030, 1, 1, tzinfo=UTC)
        memory = MemoryDriver(clock=lambda: now)
        other = memory.begin()
        made = [self.enqueue(other, work.call(n=1)).id]
        now += timedelta(seconds=1)
        made.append(self.enqueue(other, work.call(n=2)).id)
        first, second = (run_sync(queue_on(other).job(job_id)) for job_id in made)
        assert first is not None
        assert second is not None
        assert second.created_at - first.created_at == timedelta(seconds=1)

        driver = ConnectionDriver(connection)
        made = [self.enqueue(driver, work.call(n=1)).id]
        (before,) = connection.execute("select clock_timestamp()").fetchone() or ()
        made.append(self.enqueue(driver, work.call(n=2)).id)
        first, second = (run_sync(queue_on(driver).job(job_id)) for job_id in made)
        assert first is not None
        assert second is not None
        assert second.created_at == first.created_at < before

    def test_other_processes(self, postgres: PostgresStore, work: Work) -> None:
        queues = [xjobs.Queue.connect("memory://") for _ in range(2)]
        queues[0].enqueue(work.call(n=1))
        assert [len(queue.jobs()) for queue in queues] == [1, 0]

        with closing(xjobs.Queue.connect(postgres.dsn)) as one, closing(xjobs.Queue.connect(postgres.dsn)) as another:
            one.enqueue(work.call(n=1))
            assert [len(queue.jobs()) for queue in (one, another)] == [1, 1]

    def test_sql(
        self, memory: MemoryDriver, postgres: PostgresStore, connection: psycopg.Connection[Any], work: Work
    ) -> None:
        run_sync(memory.run_script("this is no SQL, and nothing reads it"))

        self.enqueue(postgres.driver, work.call(n=1))
        assert connection.execute("select count(*) from x_jobs").fetchone() == (1,)
        assert connection.execute("explain select from x_jobs").fetchone() is not None
        with pytest.raises(psycopg.errors.SyntaxError):
            run_sync(postgres.driver.run_script("this is no SQL, and somebody reads it"))

    def test_outages(self, memory: MemoryDriver, postgres: PostgresStore, work: Work) -> None:
        run_sync(memory.aclose())
        assert self.enqueue(memory, work.call(n=1)).deduped is False

        with pytest.raises(xjobs.DriverUnavailable):
            self.enqueue(PostgresDriver("host=/nowhere connect_timeout=1"), work.call(n=1))
        assert postgres.control.info.transaction_status == TransactionStatus.IDLE


def _shown() -> set[str]:
    (shown,) = (
        node
        for node in ast.parse(Path(__file__).read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == TestShown.__name__
    )
    return {node.name for node in shown.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_the_page_lists_what_is_shown_here_and_no_more() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?!difference |--)(.+) \|$", page.partition("\n## ")[0], re.MULTILINE)
    named = [row.split(" | ")[-1] for row in rows]
    assert sorted(named) == sorted(f"`{OWN}::{name}`" for name in _shown())


def test_the_page_lists_what_the_machine_leaves_out_and_no_more() -> None:
    listed = PAGE.read_text(encoding="utf-8").partition("\n## ")[2]
    assert tuple(re.findall(r"^- (.+)$", listed, re.MULTILINE)) == LEFT_OUT

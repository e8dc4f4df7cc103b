"""A statement of the test's queue that waits for a transaction which the test holds open: an error, and no hang."""

from __future__ import annotations

import pytest
from inner_run import Inner

from pytest_xjobs import drivers

JOBS = """
import asyncio, threading, psycopg, pytest, xjobs

@xjobs.job(key="w:{n}")
def work(n: int): ...

@xjobs.job(key="outer:{n}")
def outer(n: int):
    work.enqueue(n=n)

@xjobs.job(key="aouter:{n}")
async def aouter(n: int):
    await work.aenqueue(n=n)

@pytest.fixture
def held(xjobs_queue):
    with psycopg.connect(xjobs_queue.dsn) as connection:
        work.using(connection=connection).enqueue(n=1)
        connection.execute("select 'the last statement'")
        yield connection
        connection.rollback()
"""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "LOCK_TIMEOUT", 0.2)


@pytest.mark.usefixtures("impatient")
def test_who_is_waited_for_is_named(inner: Inner) -> None:
    inner.file(
        JOBS
        + """
        def test_enqueue(held):
            with pytest.raises(xjobs.WouldBlock) as refused:
                work.enqueue(n=1)
            lines = str(refused.value).splitlines()
            assert lines[0] == "SQL_ENQUEUE_ONE of the test's queue has waited 0.2 s for another open transaction:"
            assert lines[1].startswith(f"  pid {held.info.backend_pid}, idle in transaction for 0.")
            assert lines[1].endswith(" s, last statement: select 'the last statement'")
            assert "using(connection=...)" in lines[2] and len(lines) == 3
            held.commit()
            assert work.enqueue(n=1).deduped

        async def test_aenqueue(held):
            with pytest.raises(xjobs.WouldBlock, match=f"pid {held.info.backend_pid}, idle in transaction for 0"):
                await work.aenqueue(n=1)

        def test_of_another_thread(held):
            async def enqueue():
                with pytest.raises(xjobs.WouldBlock):
                    await work.aenqueue(n=1)

            threads = [threading.Thread(target=asyncio.run, args=[enqueue()])]
            threads[0].start()
            threads[0].join(10)
            assert not threads[0].is_alive()

        def test_drain(held, xjobs_queue):
            outer.enqueue(n=1)
            with pytest.raises(xjobs.WouldBlock, match="SQL_ENQUEUE_ONE"):
                xjobs_queue.drain()

        async def test_adrain(held, xjobs_queue):
            await aouter.aenqueue(n=1)
            with pytest.raises(xjobs.WouldBlock, match="SQL_ENQUEUE_ONE"):
                await xjobs_queue.adrain()

        def test_the_callers_connection_waits_as_it_is_set(xjobs_dsn, xjobs_worker):
            with psycopg.connect(xjobs_dsn) as connection:
                assert connection.execute("show lock_timeout").fetchone() == ("0",)
        """.replace("\n        ", "\n")
    )
    inner.run(inner.pg).assert_outcomes(passed=6)

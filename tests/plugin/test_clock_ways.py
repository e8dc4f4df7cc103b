"""Every way to move time in a test, on both backends: what bodies see, what the queue stores, what keeps working."""
# What naive and local calls show is part of this.
# ruff: noqa: DTZ003, DTZ011

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

import freezegun
import psycopg_pool
import pytest
import time_machine as tm

import xjobs
from pytest_xjobs import XjobsClock, XjobsQueue

Way = Callable[[pytest.FixtureRequest, datetime], AbstractContextManager[Callable[[datetime], Any]]]
FORWARDS = datetime(2063, 4, 5, 6, 7, 8, 123456, tzinfo=UTC)
BACKWARDS = datetime(1987, 6, 5, 4, 3, 2, 654321, tzinfo=UTC)


@contextlib.contextmanager
def by_our_clock(request: pytest.FixtureRequest, at: datetime) -> Iterator[Callable[[datetime], Any]]:
    clock: XjobsClock = request.getfixturevalue("xjobs_clock")
    clock.move_to(at)
    yield clock.move_to
    clock.resume()


@contextlib.contextmanager
def by_freezegun(request: pytest.FixtureRequest, at: datetime) -> Iterator[Callable[[datetime], Any]]:
    with freezegun.freeze_time(at) as freezer:
        yield freezer.move_to


@contextlib.contextmanager
def by_pytest_freezer(request: pytest.FixtureRequest, at: datetime) -> Iterator[Callable[[datetime], Any]]:
    freezer = request.getfixturevalue("freezer")
    freezer.move_to(at)
    yield freezer.move_to


@contextlib.contextmanager
def by_time_machine(request: pytest.FixtureRequest, at: datetime) -> Iterator[Callable[[datetime], Any]]:
    with tm.travel(at, tick=False) as traveller:
        yield traveller.move_to


@contextlib.contextmanager
def by_the_fixture_of_time_machine(request: pytest.FixtureRequest, at: datetime) -> Iterator[Callable[[datetime], Any]]:
    traveller = request.getfixturevalue("time_machine")
    traveller.move_to(at, tick=False)
    yield lambda to: traveller.move_to(to, tick=False)


WAYS: dict[str, Way] = {
    "xjobs_clock": by_our_clock,
    "freezegun": by_freezegun,
    "pytest-freezer": by_pytest_freezer,
    "time-machine": by_time_machine,
    "the time_machine fixture": by_the_fixture_of_time_machine,
}
# freezegun, begun by the test, stops `time.monotonic` as well, so whatever waits by it waits for ever.
WAITING = [name for name in WAYS if "freez" not in name]


def seen() -> dict[str, datetime]:
    """What each of Python's clocks shows, in UTC."""
    local = datetime.now().astimezone()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # since 3.12
        naive = datetime.utcnow().replace(tzinfo=UTC)
    zero = dt.time(tzinfo=UTC)
    return {
        "time.time": datetime.fromtimestamp(time.time(), UTC),
        "time.time_ns": datetime.fromtimestamp(round(time.time_ns() / 1000) / 1e6, UTC),
        "datetime.now(UTC)": datetime.now(UTC),
        "datetime.now": local,
        "datetime.utcnow": naive,
        "date.today": datetime.combine(dt.date.today(), zero),
        "time.gmtime": datetime(*time.gmtime()[:6], tzinfo=UTC),
        "time.strftime": datetime.fromisoformat(time.strftime("%Y-%m-%dT%H:00+00:00", time.gmtime())),
    }


def shown_at(at: datetime) -> dict[str, datetime]:
    """What they show at an instant, in as far as they tell it."""
    second = at.replace(microsecond=0)
    coarser = {
        "date.today": second.replace(hour=0, minute=0, second=0),
        "time.gmtime": second,
        "time.strftime": second.replace(minute=0, second=0),
    }
    names = ["time.time", "time.time_ns", "datetime.now(UTC)", "datetime.now", "datetime.utcnow"]
    return dict.fromkeys(names, at) | coarser


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("start", [FORWARDS, BACKWARDS], ids=["forwards", "backwards"])
def test_bodies_of_a_drain_and_the_queue_see_the_same_time(
    xjobs_queue: XjobsQueue, request: pytest.FixtureRequest, way: str, start: datetime
) -> None:
    found: list[dict[str, datetime]] = []

    @xjobs.job(key=xjobs.NO_KEY)
    def plain() -> None:
        found.append(seen())

    @xjobs.job(key=xjobs.NO_KEY)
    async def awaited() -> None:
        found.append(seen())

    with WAYS[way](request, start) as move_to:
        for at in (start, start + timedelta(days=400), start - timedelta(days=4000)):
            move_to(at)
            found.clear()
            jobs = [plain.enqueue(), awaited.enqueue()]
            report = xjobs_queue.drain()
            assert found == [shown_at(at)] * 2
            rows = [row for job in jobs if (row := xjobs_queue.job(job.id))]
            assert [(row.state, row.created_at, row.run_at) for row in rows] == [("done", at, at)] * 2
            assert {run.started_at for run in report.runs} == {at}
            later = plain.using(delay=timedelta(seconds=1)).enqueue()
            assert xjobs_queue.drain().runs == ()
            move_to(at + timedelta(seconds=1))
            assert [run.job_id for run in xjobs_queue.drain().runs] == [later.id]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("start", [FORWARDS, BACKWARDS], ids=["forwards", "backwards"])
async def test_bodies_in_threads_see_it_too(
    xjobs_queue: XjobsQueue, request: pytest.FixtureRequest, way: str, start: datetime
) -> None:
    found: list[tuple[bool, dict[str, datetime]]] = []
    main = threading.current_thread()

    @xjobs.job(key=xjobs.NO_KEY)
    def plain() -> None:
        found.append((threading.current_thread() is main, seen()))

    @xjobs.job(key=xjobs.NO_KEY)
    async def awaited() -> None:
        found.append((threading.current_thread() is main, seen()))

    with WAYS[way](request, start) as move_to:
        for at in (start, start - timedelta(days=4000)):
            move_to(at)
            found.clear()
            await plain.aenqueue()
            await awaited.aenqueue()
            await xjobs_queue.adrain()
            assert found == [(False, shown_at(at)), (True, shown_at(at))]


@pytest.mark.parametrize("way", WAITING)
@pytest.mark.parametrize("start", [FORWARDS, BACKWARDS], ids=["forwards", "backwards"])
async def test_what_waits_goes_by_real_time(
    xjobs_queue: XjobsQueue, request: pytest.FixtureRequest, way: str, start: datetime
) -> None:
    done: list[str] = []

    @xjobs.job(key=xjobs.NO_KEY)
    def plain() -> None:
        assert not threading.Event().wait(0.001)
        done.append("thread")

    @xjobs.job(key=xjobs.NO_KEY)
    async def awaited() -> None:
        await asyncio.sleep(0.001)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.001)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        done.append("loop")

    with WAYS[way](request, start) as move_to:
        for at in (start, start + timedelta(days=4000), start - timedelta(days=4000)):
            move_to(at)
            done.clear()
            await plain.aenqueue()
            await awaited.aenqueue()
            await asyncio.wait_for(xjobs_queue.adrain(), 30)
            assert done == ["thread", "loop"]


@pytest.mark.parametrize("way", WAITING)
def test_a_pool_of_the_app_goes_on(xjobs_queue: XjobsQueue, request: pytest.FixtureRequest, way: str) -> None:
    if xjobs_queue.dsn is None:
        pytest.skip("memory has no connections")
    with psycopg_pool.ConnectionPool(xjobs_queue.dsn, min_size=1, max_size=1, open=True) as pool:
        pool.wait(30)
        backends = set()
        with WAYS[way](request, FORWARDS) as move_to:
            for at in (FORWARDS, BACKWARDS, FORWARDS + timedelta(days=4000)):
                move_to(at)
                xjobs_queue.jobs()  # a statement of the queue is what notices a freeze of the test
                with pool.connection(30) as connection:
                    backends.add(connection.info.backend_pid)
                    assert connection.execute("select now()").fetchone() == (at,)
                    with pytest.raises(psycopg_pool.PoolTimeout):
                        pool.getconn(0.002)
        # A connection that looked years old would have been replaced.
        assert len(backends) == 1

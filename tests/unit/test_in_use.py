"""Which queue handles enqueue through."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import xjobs
from xjobs import in_use
from xjobs.bridge import run_sync
from xjobs.drivers.memory import MemoryDriver
from xjobs.in_use import TestUse
from xjobs.operations import inspect
from xjobs.queue import Drivers


@pytest.fixture(autouse=True)
def _nothing_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_use, "_stack", [])
    monkeypatch.setattr(in_use, "test_source", None)


@pytest.fixture
def ping() -> Any:
    @xjobs.job(key=xjobs.NO_KEY)
    def ping() -> None: ...

    return ping


def count(driver: MemoryDriver) -> int:
    return len(run_sync(inspect.jobs(driver)))


def queue_over(driver: MemoryDriver) -> xjobs.Queue:
    return xjobs.Queue(driver)


def source_over(driver: MemoryDriver) -> Drivers:
    return Drivers(blocking=driver, awaiting=driver)


def test_without_a_queue_nothing_is_dropped_silently(ping: Any) -> None:
    with pytest.raises(xjobs.DriverUnavailable, match="no queue is in use") as caught:
        ping.enqueue()
    assert caught.value.code == "X_DRIVER_UNAVAILABLE"
    with pytest.raises(xjobs.DriverUnavailable):
        xjobs.enqueue_many([ping.call()])


async def test_without_a_queue_async_calls_fail_too(ping: Any) -> None:
    with pytest.raises(xjobs.DriverUnavailable):
        await ping.aenqueue()
    with pytest.raises(xjobs.DriverUnavailable):
        await xjobs.aenqueue_many([ping.call()])


def test_uses_nest_and_end_in_any_order(ping: Any) -> None:
    outer, inner = MemoryDriver(), MemoryDriver()
    with xjobs.use(queue_over(outer)) as first:
        with xjobs.use(queue_over(inner)):
            ping.enqueue()
        ping.enqueue()
        second = xjobs.use(queue_over(inner))
        first.stop()
        ping.enqueue()
        second.stop()
        second.stop()
        with pytest.raises(xjobs.DriverUnavailable):
            ping.enqueue()
    assert (count(outer), count(inner)) == (1, 2)


def test_a_use_ends_when_its_block_fails(ping: Any) -> None:
    with pytest.raises(LookupError), xjobs.use(queue_over(MemoryDriver())):
        raise LookupError
    with pytest.raises(xjobs.DriverUnavailable):
        ping.enqueue()


def test_every_thread_sees_it(ping: Any) -> None:
    driver = MemoryDriver()
    with xjobs.use(queue_over(driver)):
        threads = [threading.Thread(target=ping.enqueue) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert count(driver) == 3


async def test_every_task_sees_it(ping: Any) -> None:
    driver = MemoryDriver()
    with xjobs.use(queue_over(driver)):
        await asyncio.gather(*(ping.aenqueue() for _ in range(3)))
    assert count(driver) == 3


async def test_each_colour_takes_the_topmost_queue_that_serves_it(ping: Any) -> None:
    blocking, awaiting = MemoryDriver(), MemoryDriver()
    with xjobs.use(xjobs.Queue(Drivers(blocking=blocking))), xjobs.use(xjobs.AsyncQueue(Drivers(awaiting=awaiting))):
        ping.enqueue()
        await ping.aenqueue()
        await ping.aenqueue()
    assert (count(blocking), count(awaiting)) == (1, 2)


async def test_a_queue_of_the_other_colour_is_named(ping: Any) -> None:
    blocking = xjobs.use(xjobs.Queue(Drivers(blocking=MemoryDriver())))
    with blocking, pytest.raises(xjobs.DriverUnavailable, match="this is an async call"):
        await ping.aenqueue()
    with xjobs.use(xjobs.AsyncQueue(Drivers(awaiting=MemoryDriver()))):
        with pytest.raises(xjobs.DriverUnavailable, match="this is a blocking call"):
            ping.enqueue()
        with pytest.raises(xjobs.DriverUnavailable):
            xjobs.Queue(Drivers(awaiting=MemoryDriver())).jobs()


@pytest.mark.parametrize("value", [None, "memory://", MemoryDriver()])
def test_only_a_queue_is_used(value: Any) -> None:
    with pytest.raises(xjobs.Invariant):
        xjobs.use(value)


class TestOfATest:
    def test_it_is_above_all_others(self, ping: Any) -> None:
        own, app = MemoryDriver(), MemoryDriver()
        with TestUse(source_over(own)), xjobs.use(queue_over(app)):
            ping.enqueue()
        assert (count(own), count(app)) == (1, 0)

    def test_what_the_app_connects_leads_to_it(self, ping: Any) -> None:
        own = MemoryDriver()
        with TestUse(source_over(own)):
            app = xjobs.Queue.connect("postgresql://nobody@192.0.2.1/production")
            app.enqueue(ping.call())
            with xjobs.use(app):
                ping.enqueue()
                xjobs.enqueue_many([ping.call()])
            app.close()
            assert app.backend == "memory"
        assert count(own) == 3

    def test_what_the_app_put_in_use_meanwhile_ends_with_it(self, ping: Any) -> None:
        own, before = MemoryDriver(), MemoryDriver()
        with xjobs.use(queue_over(before)):
            with TestUse(source_over(own)):
                xjobs.use(xjobs.Queue.connect("memory://"))
                ping.enqueue()
            ping.enqueue()
            assert (count(own), count(before)) == (1, 1)

    def test_a_queue_that_the_app_connected_is_its_own_again(self, ping: Any) -> None:
        own, app = MemoryDriver(), xjobs.Queue.connect("memory://")
        with TestUse(source_over(own)):
            app.enqueue(ping.call())
        app.enqueue(ping.call())
        assert (count(own), len(app.jobs())) == (1, 1)

    def test_one_inside_another_ends_first(self, ping: Any) -> None:
        outer, inner = MemoryDriver(), MemoryDriver()
        with TestUse(source_over(outer)):
            with TestUse(source_over(inner)):
                ping.enqueue()
            ping.enqueue()
        assert (count(outer), count(inner)) == (1, 1)
        with pytest.raises(xjobs.DriverUnavailable):
            ping.enqueue()

    async def test_a_colour_that_it_lacks_does_not_fall_through_to_the_app(self, ping: Any) -> None:
        app = MemoryDriver()
        own = TestUse(Drivers(blocking=MemoryDriver()))
        with own, xjobs.use(queue_over(app)), pytest.raises(xjobs.DriverUnavailable):
            await ping.aenqueue()
        assert count(app) == 0


@pytest.mark.parametrize(
    "address",
    ["", None, 7, "memory:", "memory:///x", "redis://localhost", "mysql://localhost/db", "sqlite:///x.db"],
)
@pytest.mark.parametrize("kind", [xjobs.Queue, xjobs.AsyncQueue])
def test_an_address_that_is_none_is_refused(kind: Any, address: Any) -> None:
    with pytest.raises(xjobs.Invariant, match="address of the queue"):
        kind.connect(address)


@pytest.mark.parametrize("kind", [xjobs.Queue, xjobs.AsyncQueue])
def test_a_connection_string_that_cannot_be_read_is_refused(kind: Any) -> None:
    with pytest.raises(xjobs.DriverUnavailable, match="cannot be read"):
        kind.connect("host=a port")


@pytest.mark.parametrize("size", [0, -1, 1.5, None])
@pytest.mark.parametrize("kind", [xjobs.Queue, xjobs.AsyncQueue])
def test_a_pool_size_that_is_none_is_refused(kind: Any, size: Any) -> None:
    with pytest.raises(xjobs.Invariant, match="pool_size"):
        kind.connect("memory://", pool_size=size)

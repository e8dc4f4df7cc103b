"""Connecting by an address: laziness, addresses that do not answer, and connections that the server has closed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool

import xjobs
from pytest_xjobs.runtime import Place, Runtime

Ask = Callable[[str], Awaitable[object]]


async def ask_blocking(url: str) -> object:
    queue = xjobs.Queue.connect(url)
    try:
        return queue.stats()
    finally:
        queue.close()


async def ask_async(url: str) -> object:
    queue = xjobs.AsyncQueue.connect(url)
    try:
        return await queue.stats()
    finally:
        await queue.close()


asks = pytest.mark.parametrize("ask", [ask_blocking, ask_async], ids=["blocking", "async"])


@pytest.fixture
def place(run: Runtime) -> Place:
    place = run.shared()
    place.database.reset(place.control)
    return place


@pytest.fixture
def mute() -> Iterator[int]:
    """The port of a server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@asks
async def test_a_refused_connection_says_where_and_for_how_long(ask: Ask) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(xjobs.DriverUnavailable) as caught:
        await ask(f"postgresql://ann:secret@127.0.0.1:{port}/shop")
    assert f"no Postgres answered at host=127.0.0.1 port={port} dbname=shop user=ann, tried for 0." in str(caught.value)
    assert "secret" not in str(caught.value)


@asks
async def test_a_server_that_does_not_answer_is_given_up_on(ask: Ask, mute: int) -> None:
    with pytest.raises(xjobs.DriverUnavailable, match=r"tried for [2-4]\.\d s"):
        await ask(f"host=127.0.0.1 port={mute} dbname=shop connect_timeout=2")


@asks
@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("", "the address of the queue is ''"),
        ("mysql://shop", "begins with 'mysql'"),
        ("memory://shop", "write memory:// and nothing behind it"),
        ("shop", "the connection string cannot be read"),
        ("postgresql://ann:se@cret@127.0.0.1/shop", "write an @ in the user name or password as %40"),
    ],
)
async def test_an_address_that_cannot_be_is_refused_before_anything_is_connected(ask: Ask, url: str, text: str) -> None:
    with pytest.raises(xjobs.Error) as caught:
        await ask(url)
    assert text in str(caught.value)
    assert "cret" not in str(caught.value)


@asks
async def test_a_database_without_the_schema_says_what_to_run(ask: Ask, run: Runtime) -> None:
    with pytest.raises(xjobs.SchemaMissing, match="run `xjobs schema install`"):
        await ask(run.server.dsn(run.server.maintenance_dbname))


@asks
async def test_sqlalchemys_url_is_understood(ask: Ask, place: Place) -> None:
    assert await ask(place.database.dsn.replace("postgresql://", "postgresql+psycopg://")) == []


async def test_memory_needs_nothing() -> None:
    assert await ask_blocking("memory://") == await ask_async("memory://") == []


def sever(place: Place, application: str) -> int:
    """End the sessions of an application on the server; how many there were."""
    ended = place.control.execute(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
        " where datname = current_database() and application_name = %s",
        [application],
    ).fetchall()
    return len(ended)


def test_a_connection_that_the_server_closed_is_replaced(place: Place) -> None:
    queue = xjobs.Queue.connect(f"{place.database.dsn}&application_name=severed")
    for _ in range(3):
        assert queue.stats() == []
        assert sever(place, "severed") >= 1
    assert queue.stats() == []
    queue.close()


async def test_an_async_connection_that_the_server_closed_is_replaced(place: Place) -> None:
    queue = xjobs.AsyncQueue.connect(f"{place.database.dsn}&application_name=severed")
    for _ in range(3):
        assert await queue.stats() == []
        assert await asyncio.to_thread(sever, place, "severed") >= 1
    assert await queue.stats() == []
    await queue.close()


@pytest.mark.parametrize("autocommit", [True, False])
async def test_a_queue_over_a_pool_of_the_app(place: Place, autocommit: bool) -> None:
    @xjobs.job(key="{n}")
    def work(n: int) -> None: ...

    options: dict[str, Any] = {"kwargs": {"autocommit": autocommit}, "min_size": 1, "open": True}
    with ConnectionPool(place.database.dsn, **options) as pool:
        xjobs.Queue.over(pool).enqueue(work.call(n=1))
        with pool.connection() as connection:
            assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            assert connection.execute("show enable_sort").fetchone() == ("on",), "nothing is set on it"
    async with AsyncConnectionPool(place.database.dsn, kwargs={"autocommit": autocommit}, open=False) as apool:
        await xjobs.AsyncQueue.over(apool).enqueue(work.call(n=2))
    assert place.control.execute("select count(*) from x_jobs").fetchone() == (2,)


TEXT = "é ü 日本"


async def _stored(queue: xjobs.Queue | xjobs.AsyncQueue, work: xjobs.JobHandle[Any, Any, Any]) -> object:
    """What came of a text, enqueued alone and among others, and claimed again."""
    calls = [work.call(text=TEXT), work.call(text="b"), work.call(text=TEXT)]
    if isinstance(queue, xjobs.AsyncQueue):
        made = [await queue.enqueue(calls[0]), *await queue.enqueue_many(calls)]
        jobs = (await queue.claim(queues=["default"], worker_id="w", limit=9)).jobs
    else:
        made = [queue.enqueue(calls[0]), *queue.enqueue_many(calls)]
        jobs = queue.claim(queues=["default"], worker_id="w", limit=9).jobs
    return [one.deduped for one in made], [(job.input["text"], job.idempotency_key) for job in jobs]


@pytest.fixture
def work() -> xjobs.JobHandle[Any, Any, Any]:
    @xjobs.job(key="key {text}")
    def work(text: str) -> None: ...

    return work


@pytest.mark.parametrize("named_by", ["address", "environment"])
@pytest.mark.parametrize("kind", [xjobs.Queue, xjobs.AsyncQueue])
async def test_text_is_utf_8_whatever_encoding_the_surroundings_ask_for(
    place: Place, monkeypatch: pytest.MonkeyPatch, work: xjobs.JobHandle[Any, Any, Any], kind: Any, named_by: str
) -> None:
    """Text was stored as another one, its key was another one, and no claim could be read any more."""
    url = place.database.dsn
    if named_by == "address":
        url = psycopg.conninfo.make_conninfo(url, client_encoding="latin1")
    else:
        monkeypatch.setenv("PGCLIENTENCODING", "latin1")
    queue = kind.connect(url)
    try:
        stored = await _stored(queue, work)
    finally:
        closing = queue.close()
        if closing is not None:
            await closing
    assert stored == ([False, True, False, True], [(TEXT, f"key {TEXT}"), ("b", "key b")])


async def test_a_connection_of_the_app_in_another_encoding_is_refused(
    place: Place, work: xjobs.JobHandle[Any, Any, Any]
) -> None:
    url = psycopg.conninfo.make_conninfo(place.database.dsn, client_encoding="latin1")
    refused = pytest.raises(xjobs.ConnectionUnsupported, match="client_encoding is LATIN1")
    with ConnectionPool(url, min_size=1, open=True) as pool, refused:
        xjobs.Queue.over(pool).stats()
    async with AsyncConnectionPool(url, min_size=1, open=False) as awaiting:
        with refused:
            await xjobs.AsyncQueue.over(awaiting).stats()
    with psycopg.connect(url) as connection, xjobs.use(xjobs.Queue.connect(place.database.dsn)):
        for enqueue in (work.using(connection=connection).enqueue, _many(connection, work)):
            with refused:
                enqueue(text=TEXT)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    async with await psycopg.AsyncConnection.connect(url) as other:
        with xjobs.use(xjobs.AsyncQueue.connect(place.database.dsn)), refused:
            await work.using(connection=other).aenqueue(text=TEXT)


def _many(connection: Any, work: xjobs.JobHandle[Any, Any, Any]) -> Callable[..., object]:
    return lambda text: xjobs.enqueue_many([work.call(text=text)], connection=connection)

"""The async Postgres drivers: one connection, a pool, and a caller's own connection."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from xjobs.drivers.arrays import wrap
from xjobs.drivers.base import Row
from xjobs.drivers.gate import POLL, ConnectGate
from xjobs.drivers.postgres import check_encoding, check_usable, explain
from xjobs.drivers.session import (
    POOL_TIMEOUT,
    SETUP,
    TAKEN_BACK,
    TRIES,
    AsyncCursor,
    complete,
    describe,
    still_open,
    translated,
    unreachable,
)
from xjobs.errors import DriverUnavailable
from xjobs.sql import Statement

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool

Connection = psycopg.AsyncConnection[Any]


async def connect(conninfo: str) -> Connection:
    """Open a session of ours, as `xjobs.drivers.postgres.connect` does.

    Raises:
        DriverUnavailable: nothing answered.
    """
    began = time.perf_counter()
    try:
        connection = await psycopg.AsyncConnection.connect(complete(conninfo), autocommit=True, prepare_threshold=0)
        try:
            await connection.execute(SETUP.encode())
        except BaseException:  # a task that is cancelled here leaves no connection behind
            connection.pgconn.finish()
            raise
    except psycopg.OperationalError as error:
        raise unreachable(error, conninfo, began) from error
    return connection


async def connect_through(gate: ConnectGate | None, conninfo: str) -> Connection:
    """Open a session of ours when the gate lets it through.

    Raises:
        DriverUnavailable: nothing answered, or did so a moment ago and the gate is closed.
    """
    if gate is None:
        return await connect(conninfo)
    while not gate.try_enter():  # noqa: ASYNC110
        await asyncio.sleep(POLL)  # it may be a thread's attempt that is under way
    failure: DriverUnavailable | None = None
    try:
        return await connect(conninfo)
    except DriverUnavailable as error:
        failure = error
        raise
    finally:
        gate.leave(failure)


async def fetch(connection: Connection, statement: Statement, values: tuple[Any, ...]) -> list[Row]:
    """Run one statement on a connection and answer its rows, in binary form on the wire."""
    async with AsyncCursor(connection) as cursor:
        await cursor.execute(statement.query, wrap(statement, values), binary=True)
        return await cursor.fetchall()


class AsyncPostgresDriver:
    """Runs statements on one connection of its own, opened at the first of them and again after it broke.

    Tasks may share it; their statements take turns. A connection belongs to the event loop that opened it: on another
    loop the driver opens a new one.

    Args:
        conninfo: a libpq connection string or URL.
        before: called before each statement.
        gate: what spaces out attempts to connect, shared with other drivers.
    """

    backend = "postgres"

    def __init__(
        self, conninfo: str, *, before: Callable[[], None] | None = None, gate: ConnectGate | None = None
    ) -> None:
        complete(conninfo)
        self.conninfo = conninfo
        self.before = before
        self.gate = gate
        self._connection: Connection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()

    async def connection(self) -> Connection:
        """The connection of the running loop, opened if need be.

        Raises:
            DriverUnavailable: nothing answered.
        """
        async with self._turn():
            return await self._opened()

    def _turn(self) -> asyncio.Lock:
        """The lock of the running loop, held for a statement.

        Without it the check for an open connection would take in the answer that another task waits for.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self.abandon()
            self._loop, self._lock = loop, asyncio.Lock()
        return self._lock

    async def _opened(self) -> Connection:
        if self._connection is None or not still_open(self._connection):
            self._connection = await connect_through(self.gate, self.conninfo)
        return self._connection

    async def run(self, statement: Statement, **parameters: Any) -> list[Row]:
        """Run one statement; a deadlock or serialization failure sends it again."""
        if self.before is not None:
            self.before()
        async with self._turn():
            return await run_again(await self._opened(), statement, statement.bind(**parameters), self.conninfo)

    async def run_script(self, text: str) -> None:
        """Run schema text in one transaction."""
        async with self._turn():
            await run_script(await self._opened(), text)

    async def aclose(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def abandon(self) -> None:
        """Close the connection without its event loop, which may be gone."""
        connection, self._connection = self._connection, None
        if connection is not None and not connection.closed:
            connection.pgconn.finish()


class AsyncPoolDriver:
    """Runs each statement on a connection of a pool.

    Args:
        pool: the pool, or a function that makes it (unopened), called at the first statement.
        conninfo: where the pool leads, for messages.
        owned: whether closing the driver closes the pool.
    """

    backend = "postgres"

    def __init__(
        self, pool: AsyncConnectionPool[Any] | Callable[[], AsyncConnectionPool[Any]], *, conninfo: str, owned: bool
    ) -> None:
        self.conninfo = conninfo
        self._make = pool if callable(pool) else None
        self._pool = None if callable(pool) else pool
        self._owned = owned
        self._opening: asyncio.Lock | None = None
        self._pid = os.getpid()

    async def pool(self) -> AsyncConnectionPool[Any]:
        """The pool, made and opened if need be."""
        self._opening = self._opening or asyncio.Lock()
        async with self._opening:
            if self._make is not None and (self._pool is None or self._pid != os.getpid()):
                await (await connect(self.conninfo)).close()  # a clear error now, and not from the background later
                self._pool, self._pid = self._make(), os.getpid()
                await self._pool.open()
            assert self._pool is not None  # noqa: S101 - it was given, or has just been made
            return self._pool

    async def run(self, statement: Statement, **parameters: Any) -> list[Row]:
        """Run one statement; a deadlock or serialization failure sends it again."""
        async with _checked_out(await self.pool(), self.conninfo) as connection:
            return await run_again(connection, statement, statement.bind(**parameters), self.conninfo)

    async def run_script(self, text: str) -> None:
        """Run schema text in one transaction."""
        async with _checked_out(await self.pool(), self.conninfo) as connection:
            await run_script(connection, text)

    async def aclose(self) -> None:
        """Close the pool when it is our own."""
        if self._owned and self._pool is not None:
            await self._pool.close()
            self._pool = None if self._make is not None else self._pool


class AsyncConnectionDriver:
    """Runs statements on a caller's connection, as `xjobs.drivers.postgres.ConnectionDriver` does."""

    backend = "postgres"

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def run(self, statement: Statement, **parameters: Any) -> list[Row]:
        """Run one statement.

        Raises:
            TransactionAborted: the caller's transaction has failed before.
            ConnectionUnsupported: the connection is closed.
        """
        check_usable(self._connection)
        try:
            return await fetch(self._connection, statement, statement.bind(**parameters))
        except psycopg.Error as error:
            ours = translated(error, describe(self._connection.info.dsn))
            if ours is None:
                raise
            raise ours from error

    async def run_script(self, text: str) -> None:
        """Run schema text in the caller's transaction."""
        check_usable(self._connection)
        await self._connection.execute(text.encode(), prepare=False)

    async def aclose(self) -> None:
        """Leave the connection to its owner."""


async def run_again(connection: Connection, statement: Statement, values: tuple[Any, ...], conninfo: str) -> list[Row]:
    """Run a statement that is a transaction of its own, again when a conflict took it back."""
    for tried in range(1, TRIES + 1):
        try:
            if connection.autocommit:
                return await fetch(connection, statement, values)
            async with connection.transaction():  # a pool of the caller's, whose connections we have checked out
                return await fetch(connection, statement, values)
        except TAKEN_BACK as error:
            if tried == TRIES:
                raise (explain(error, connection, conninfo) or error) from error
        except psycopg.Error as error:
            raise (explain(error, connection, conninfo) or error) from error
    raise AssertionError("unreachable")


async def run_script(connection: Connection, text: str) -> None:
    """Run schema text in one transaction."""
    async with connection.transaction():
        await connection.execute(text.encode(), prepare=False)


@asynccontextmanager
async def _checked_out(pool: AsyncConnectionPool[Any], conninfo: str) -> AsyncIterator[Connection]:
    """A connection of a pool for the length of a block; none within the pool's time is our error."""
    from psycopg_pool import PoolClosed, PoolTimeout

    began = time.perf_counter()
    try:
        connection = await pool.getconn()
    except PoolClosed as error:
        raise DriverUnavailable(f"the pool for {describe(conninfo)} is closed", "open a new queue") from error
    except PoolTimeout as error:
        raise unreachable(error, conninfo, began) from error
    try:
        check_encoding(connection)
        yield connection
    finally:
        await pool.putconn(connection)


def make_pool(conninfo: str, max_size: int) -> AsyncConnectionPool[Any]:
    """A pool of sessions of ours, not opened yet."""
    from psycopg_pool import AsyncConnectionPool

    return AsyncConnectionPool(
        complete(conninfo),
        kwargs={"autocommit": True, "prepare_threshold": 0},
        configure=_configure,
        min_size=0,
        max_size=max_size,
        timeout=POOL_TIMEOUT,
        open=False,
        check=_check,
        name="xjobs",
    )


async def _check(connection: Connection) -> None:
    if not still_open(connection):
        raise psycopg.OperationalError("the server has closed the connection")


async def _configure(connection: Connection) -> None:
    await connection.execute(SETUP.encode())

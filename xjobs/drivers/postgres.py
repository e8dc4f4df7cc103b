"""The blocking Postgres drivers: one connection, a pool, and a caller's own connection.

Their `async def` methods block and never suspend (see `xjobs.bridge`).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import TransactionStatus

from xjobs.drivers.arrays import wrap
from xjobs.drivers.base import Row
from xjobs.drivers.gate import POLL, ConnectGate
from xjobs.drivers.session import (
    POOL_TIMEOUT,
    SETUP,
    TAKEN_BACK,
    TRIES,
    Cursor,
    aborted,
    complete,
    describe,
    lost,
    still_open,
    translated,
    unreachable,
)
from xjobs.errors import ConnectionUnsupported, DriverUnavailable
from xjobs.sql import Statement

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

Connection = psycopg.Connection[Any]


def connect(conninfo: str) -> Connection:
    """Open a session of ours: autocommit, UTC, READ COMMITTED, every statement prepared at its first use.

    Raises:
        DriverUnavailable: nothing answered.
    """
    began = time.perf_counter()
    try:
        connection = psycopg.connect(complete(conninfo), autocommit=True, prepare_threshold=0)
        try:
            connection.execute(SETUP.encode())
        except BaseException:
            connection.close()
            raise
    except psycopg.OperationalError as error:
        raise unreachable(error, conninfo, began) from error
    return connection


def fetch(
    connection: Connection, statement: Statement, values: tuple[Any, ...], cursor: Cursor | None = None
) -> list[Row]:
    """Run one statement on a connection and answer its rows, in binary form on the wire.

    A cursor that is given is used again and again, which spares making one.
    """
    if cursor is None:
        with Cursor(connection) as once:
            return fetch(connection, statement, values, once)
    cursor.execute(statement.query, wrap(statement, values), binary=True)
    return cursor.fetchall()


class PostgresDriver:
    """Runs statements on one connection of its own, opened at the first of them and again after it broke.

    Threads may share it; their statements take turns. A forked child opens its own connection.

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
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._cursor: Cursor | None = None
        self._pid = 0

    def connection(self) -> Connection:
        """The connection, opened if need be.

        Raises:
            DriverUnavailable: nothing answered.
        """
        with self._lock:
            if self._connection is None or self._pid != os.getpid() or not still_open(self._connection):
                self._connection, self._pid = self._connect(), os.getpid()
                self._cursor = Cursor(self._connection)
            return self._connection

    def _connect(self) -> Connection:
        gate = self.gate
        if gate is None:
            return connect(self.conninfo)
        while not gate.try_enter():
            time.sleep(POLL)
        failure: DriverUnavailable | None = None
        try:
            return connect(self.conninfo)
        except DriverUnavailable as error:
            failure = error
            raise
        finally:
            gate.leave(failure)

    async def run(self, statement: Statement, **parameters: Any) -> list[Row]:
        """Run one statement; a deadlock or serialization failure sends it again."""
        if self.before is not None:
            self.before()
        # For the whole statement: the check of the connection would take in the answer that another thread waits for.
        with self._lock:
            connection = self.connection()
            return run_again(connection, statement, statement.bind(**parameters), self.conninfo, self._cursor)

    async def run_script(self, text: str) -> None:
        """Run schema text in one transaction."""
        with self._lock:
            run_script(self.connection(), text)

    async def aclose(self) -> None:
        """Close the connection."""
        with self._lock:
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
            self._connection = self._cursor = None


class PoolDriver:
    """Runs each statement on a connection of a pool.

    Args:
        pool: the pool, or a function that makes it, called at the first statement and again in a forked child.
        conninfo: where the pool leads, for messages.
        owned: whether closing the driver closes the pool.
    """

    backend = "postgres"

    def __init__(
        self, pool: ConnectionPool[Any] | Callable[[], ConnectionPool[Any]], *, conninfo: str, owned: bool
    ) -> None:
        self.conninfo = conninfo
        self._make = pool if callable(pool) else None
        self._pool = None if callable(pool) else pool
        self._owned = owned
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def pool(self) -> ConnectionPool[Any]:
        """The pool, made if need be."""
        with self._lock:
            if self._make is not None and (self._pool is None or self._pid != os.getpid()):
                self._pool, self._pid = self._make(), os.getpid()
            assert self._pool is not None  # noqa: S101 - it was given, or has just been made
            return self._pool

    async def run(self, statement: Statement, **parameters: Any) -> list[Row]:
        """Run one statement; a deadlock or serialization failure sends it again."""
        with _checked_out(self.pool(), self.conninfo) as connection:
            return run_again(connection, statement, statement.bind(**parameters), self.conninfo)

    async def run_script(self, text: str) -> None:
        """Run schema text in one transaction."""
        with _checked_out(self.pool(), self.conninfo) as connection:
            run_script(connection, text)

    async def aclose(self) -> None:
        """Close the pool when it is our own."""
        with self._lock:
            if self._owned and self._pool is not None and self._pid == os.getpid():
                self._pool.close()
                self._pool = None if self._make is not None else self._pool


class ConnectionDriver:
    """Runs statements on a caller's connection, inside whatever transaction is open on it.

    Nothing is committed, rolled back or set on it. On an idle connection that is not in autocommit, the statement opens
    the caller's transaction as any other statement would.
    """

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
            return fetch(self._connection, statement, statement.bind(**parameters))
        except psycopg.Error as error:
            ours = translated(error, describe(self._connection.info.dsn))
            if ours is None:
                raise
            raise ours from error

    async def run_script(self, text: str) -> None:
        """Run schema text in the caller's transaction."""
        check_usable(self._connection)
        self._connection.execute(text.encode(), prepare=False)

    async def aclose(self) -> None:
        """Leave the connection to its owner."""


def check_usable(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Refuse a connection that cannot take a statement.

    Raises:
        TransactionAborted: its transaction has failed.
        ConnectionUnsupported: it is closed, or its text is not in UTF-8.
    """
    if connection.closed:
        raise ConnectionUnsupported("the given connection is closed", "pass one that is open")
    if connection.info.transaction_status == TransactionStatus.INERROR:
        raise aborted()
    check_encoding(connection)


def check_encoding(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Refuse a connection on which text travels in another encoding than the one that arrays and JSON are written in.

    SQL_ASCII is none: what is sent stays as it is.

    Raises:
        ConnectionUnsupported: its client_encoding is another one.
    """
    encoding = connection.pgconn.parameter_status(b"client_encoding") or b"UTF8"
    if encoding not in (b"UTF8", b"SQL_ASCII"):
        raise ConnectionUnsupported(
            f"the connection's client_encoding is {encoding.decode()}, and the queue's text is UTF-8",
            "connect with client_encoding=utf8 (a database of another encoding converts it)",
        )


def run_again(
    connection: Connection,
    statement: Statement,
    values: tuple[Any, ...],
    conninfo: str,
    cursor: Cursor | None = None,
) -> list[Row]:
    """Run a statement that is a transaction of its own, again when a conflict took it back."""
    for tried in range(1, TRIES + 1):
        try:
            if connection.autocommit:
                return fetch(connection, statement, values, cursor)
            with connection.transaction():  # a pool of the caller's, whose connections we have checked out
                return fetch(connection, statement, values)
        except TAKEN_BACK as error:
            if tried == TRIES:
                raise (explain(error, connection, conninfo) or error) from error
        except psycopg.Error as error:
            raise (explain(error, connection, conninfo) or error) from error
    raise AssertionError("unreachable")


def explain(
    error: psycopg.Error, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], conninfo: str
) -> Exception | None:
    """Our error for a statement that failed on a connection of ours; None to let Postgres's own through."""
    if connection.closed and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return lost(error, conninfo)
    return translated(error, describe(conninfo))


def run_script(connection: Connection, text: str) -> None:
    """Run schema text in one transaction."""
    with connection.transaction():
        connection.execute(text.encode(), prepare=False)


@contextmanager
def _checked_out(pool: ConnectionPool[Any], conninfo: str) -> Iterator[Connection]:
    """A connection of a pool for the length of a block; none within the pool's time is our error."""
    from psycopg_pool import PoolClosed, PoolTimeout

    began = time.perf_counter()
    try:
        connection = pool.getconn()
    except PoolClosed as error:
        raise DriverUnavailable(f"the pool for {describe(conninfo)} is closed", "open a new queue") from error
    except PoolTimeout as error:
        raise unreachable(error, conninfo, began) from error
    try:
        check_encoding(connection)
        yield connection
    finally:
        pool.putconn(connection)


def make_pool(conninfo: str, max_size: int) -> ConnectionPool[Any]:
    """Open a pool of sessions of ours; nothing is connected before the first checkout.

    Raises:
        DriverUnavailable: nothing answers; asked once, before the pool would begin to try in the background.
    """
    from psycopg_pool import ConnectionPool

    connect(conninfo).close()
    return ConnectionPool(
        complete(conninfo),
        kwargs={"autocommit": True, "prepare_threshold": 0},
        configure=_configure,
        min_size=0,
        max_size=max_size,
        timeout=POOL_TIMEOUT,
        open=True,
        check=_check,
        name="xjobs",
    )


def _check(connection: Connection) -> None:
    if not still_open(connection):
        raise psycopg.OperationalError("the server has closed the connection")


def _configure(connection: Connection) -> None:
    connection.execute(SETUP.encode())

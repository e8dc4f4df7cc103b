"""Joining a SQLAlchemy 2 session or connection, blocking or async."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

from xjobs.drivers.async_postgres import AsyncConnectionDriver
from xjobs.drivers.base import Driver
from xjobs.drivers.memory import MemoryDriver, MemoryTransaction
from xjobs.drivers.postgres import ConnectionDriver
from xjobs.errors import ConnectionUnsupported


async def join(connection: Any) -> Driver:
    """A driver over the psycopg connection underneath; a session begins its transaction, as for any statement.

    Raises:
        ConnectionUnsupported: SQLAlchemy uses another driver than psycopg 3.
    """
    core = await _core(connection)
    raw = core.connection.driver_connection
    if isinstance(raw, psycopg.AsyncConnection):
        return AsyncConnectionDriver(raw)
    if isinstance(raw, psycopg.Connection):
        return ConnectionDriver(raw)
    raise ConnectionUnsupported(
        f"the session's engine is {core.engine.url.drivername}, and a queue on Postgres can only join psycopg 3",
        "create the engine with postgresql+psycopg://",
    )


async def follow(connection: Any, memory: MemoryDriver) -> Driver:
    """A memory transaction that ends as the transaction of the session or connection does, savepoints included."""
    core = await _core(connection)
    follower = _followers.get(core)
    if follower is None or not follower.transaction.open:
        follower = _followers[core] = _Follower(core, memory)
    return follower.transaction


async def _core(connection: Any) -> Connection:
    """The Core connection of a session, with its transaction begun."""
    if isinstance(connection, AsyncSession | async_scoped_session):
        connection = await connection.connection()
    if isinstance(connection, AsyncConnection):
        return connection.sync_connection or (await connection.start()).sync_connection  # type: ignore[return-value]
    if isinstance(connection, Connection):
        if not connection.in_transaction():
            connection.begin()
        return connection
    core: Connection = connection.connection()
    return core


class _Follower:
    """Ends a memory transaction when the root transaction of a Core connection ends.

    SQLAlchemy announces a commit before it is sent. So the announcement only marks it, and the next statement on memory
    looks whether the transaction has ended meanwhile; had the commit failed, a rollback would have been announced.
    """

    def __init__(self, core: Connection, memory: MemoryDriver) -> None:
        self.transaction: MemoryTransaction = memory.begin()
        self._core = core
        self._root = core.get_transaction()
        self._marks: dict[str, int] = {}
        self._committing = False
        self._memory = memory
        self._listeners: dict[str, Callable[..., Any]] = {
            "commit": self._commit,
            "rollback": self._rollback,
            "savepoint": self._savepoint,
            "rollback_savepoint": self._rollback_savepoint,
        }
        for name, listener in self._listeners.items():
            event.listen(core, name, listener)
        memory.store.followed.append(self._look)

    def _commit(self, _core: Connection) -> None:
        self._committing = True

    def _rollback(self, _core: Connection) -> None:
        self.transaction.rollback()
        self._stop()

    def _savepoint(self, _core: Connection, name: str) -> None:
        self._marks[name] = self.transaction.mark()

    def _rollback_savepoint(self, _core: Connection, name: str, _context: None) -> None:
        # A savepoint that is older than the first enqueue has no mark: everything came after it.
        self.transaction.rollback_to(self._marks.get(name, 0))

    def _look(self) -> None:
        if self._committing and (self._root is None or not self._root.is_active):
            self.transaction.commit()
            self._stop()

    def _stop(self) -> None:
        self._memory.store.followed.remove(self._look)
        for name, listener in self._listeners.items():
            event.remove(self._core, name, listener)


_followers: WeakKeyDictionary[Connection, _Follower] = WeakKeyDictionary()

"""Joining a SQLAlchemy 2 session or connection, blocking or async."""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakKeyDictionary, ref

import psycopg
from sqlalchemy import Connection, Engine, TwoPhaseTransaction, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.sql.expression import RollbackToSavepointClause, SavepointClause
from sqlalchemy.util import await_only
from sqlalchemy.util.concurrency import in_greenlet

from xjobs.drivers.base import Driver, Row
from xjobs.drivers.memory import MemoryDriver, MemoryTransaction
from xjobs.errors import ConnectionUnsupported
from xjobs.integrations.psycopg import follow as follow_psycopg, join as join_psycopg, two_phase
from xjobs.sql import Statement


async def join(connection: Any) -> Driver:
    """A driver over the psycopg connection underneath; a session begins its transaction, as for any statement.

    Raises:
        ConnectionUnsupported: SQLAlchemy uses another driver than psycopg 3, or the connection is what SQLAlchemy hides
            behind an async one and nothing runs it.
    """
    core = await _core(connection)
    raw = _psycopg(core)
    if raw is not None:
        driver = await join_psycopg(raw)
        return _Spawned(driver) if _hidden(connection) else driver
    raise ConnectionUnsupported(
        f"the session's engine is {core.engine.url.drivername}, and a queue on Postgres can only join psycopg 3",
        "create the engine with postgresql+psycopg://",
    )


async def follow(connection: Any, memory: MemoryDriver) -> Driver:
    """A memory transaction that ends as the transaction of the session or connection does, savepoints included.

    Where each statement commits by itself, at the isolation level AUTOCOMMIT, there is nothing to follow. On psycopg 3
    the server is asked; on other drivers what SQLAlchemy announces is all there is.

    Raises:
        TransactionAborted: on psycopg 3, the transaction has failed.
        ConnectionUnsupported: the connection is what SQLAlchemy hides behind an async one and nothing runs it.
    """
    core = await _core(connection)
    raw = _psycopg(core)
    if raw is not None:
        following = follow_psycopg(raw, memory)
        return await_only(following) if _hidden(connection) else await following
    if core._is_autocommit_isolation():  # noqa: SLF001 - what is public asks the database
        return memory
    follower = _followers.get(core)
    if follower is None:
        _listen(core)
    if follower is None or not follower.transaction.open or follower.memory is not memory:
        follower = _followers[core] = _Follower(core, memory)
    return follower.transaction


async def _core(connection: Any) -> Connection:
    """The Core connection of a session, with its transaction begun.

    Raises:
        ConnectionUnsupported: the transaction is a two-phase one, or the connection is what SQLAlchemy hides behind an
            async one and nothing runs it.
    """
    core = await _begun(connection)
    if isinstance(core.get_transaction(), TwoPhaseTransaction):
        raise two_phase()
    return core


async def _begun(connection: Any) -> Connection:
    if _is_async(connection):
        return await _core_of_async(connection)
    if _hidden(connection) and not in_greenlet():
        raise ConnectionUnsupported(
            f"the {type(connection).__name__} is on the async engine {_bind(connection).engine.url.drivername}, and is"
            " given outside of what SQLAlchemy runs on it",
            "await aenqueue() with the AsyncSession or AsyncConnection, or call enqueue() inside of run_sync()",
        )
    if isinstance(connection, Connection):
        if not connection.in_transaction():
            connection.begin()
        return connection
    core: Connection = connection.connection()
    return core


def _psycopg(core: Connection) -> psycopg.Connection[Any] | psycopg.AsyncConnection[Any] | None:
    """The psycopg 3 connection under a Core connection; None when it is on another driver."""
    raw = core.connection.driver_connection
    return raw if isinstance(raw, psycopg.Connection | psycopg.AsyncConnection) else None


def _is_async(connection: Any) -> bool:
    """Whether it is of `sqlalchemy.ext.asyncio`, which cannot be imported where greenlet is not installed."""
    return any(kind.__module__.startswith("sqlalchemy.ext.asyncio") for kind in type(connection).__mro__)


def _hidden(connection: Any) -> bool:
    """Whether it is the blocking session or connection inside an async one, as `run_sync` and listeners get it."""
    return not _is_async(connection) and _bind(connection).dialect.is_async


def _bind(connection: Any) -> Connection | Engine:
    """What a blocking session or connection is on."""
    bind: Connection | Engine = connection if isinstance(connection, Connection) else connection.get_bind()
    return bind


class _Spawned:
    """A driver over an async connection for blocking code that SQLAlchemy runs: it awaits as SQLAlchemy's own calls do,
    so that its coroutines never suspend.
    """

    def __init__(self, driver: Driver) -> None:
        self.backend = driver.backend
        self._driver = driver

    async def run(self, statement: Statement, **parameters: Any) -> list[Row]:
        """Run one statement."""
        return await_only(self._driver.run(statement, **parameters))

    async def run_script(self, text: str) -> None:
        """Run schema text in the caller's transaction."""
        await_only(self._driver.run_script(text))

    async def aclose(self) -> None:
        """Leave the connection to its owner."""


async def _core_of_async(connection: Any) -> Connection:
    from sqlalchemy.ext.asyncio import AsyncConnection

    started = connection if isinstance(connection, AsyncConnection) else await connection.connection()
    core = started.sync_connection or (await started.start()).sync_connection
    assert core is not None  # noqa: S101 - it is started
    if not core.in_transaction():
        await started.begin()
    return core


class _Follower:
    """A memory transaction that follows the root transaction of a Core connection.

    SQLAlchemy announces a commit before it is sent, and nothing when it has succeeded. So the announcement is kept, and
    the next statement on memory, or the next transaction of the connection, finds that it has. One that fails is
    announced as an error.
    """

    def __init__(self, core: Connection, memory: MemoryDriver) -> None:
        self.memory = memory
        self.transaction: MemoryTransaction = memory.begin()
        self.marks: dict[str, int] = {}
        self.committing = False
        # Not the connection itself, which is the key under which this object is held.
        self._core = ref(core)
        memory.store.followed.append(self.look)

    def look(self) -> None:
        """Commit when the connection has; roll back when it was dropped with its transaction open."""
        core = self._core()
        if self.transaction.open and (core is None or (self.committing and core.get_transaction() is None)):
            self.end()
        if not self.transaction.open and self.look in self.memory.store.followed:
            self.memory.store.followed.remove(self.look)

    def end(self, *, failed: bool = False) -> None:
        """End the memory transaction as announced; once ended, nothing more happens."""
        if not self.transaction.open:
            return
        if self.committing and not failed:
            self.transaction.commit()
        else:
            self.transaction.rollback()


_followers: WeakKeyDictionary[Connection, _Follower] = WeakKeyDictionary()


def _listen(core: Connection) -> None:
    """Have the functions below called for a connection, for as long as it lives.

    They are never removed: SQLAlchemy walks over a list of them while it calls them.
    """
    for name, listener in (
        ("begin", _ended),
        ("begin_twophase", _ended),
        ("rollback", _ended),
        ("commit", _committing),
        ("before_execute", _savepoint),
    ):
        event.listen(core, name, listener)
    if not event.contains(core.engine, "handle_error", _failed):
        event.listen(core.engine, "handle_error", _failed)


def _ended(core: Connection, *_: Any) -> None:
    _followers[core].end()


def _committing(core: Connection, *_: Any) -> None:
    _followers[core].committing = True


def _failed(context: ExceptionContext) -> None:
    follower = None if context.connection is None else _followers.get(context.connection)
    if follower is not None and follower.committing:
        follower.end(failed=not _carried_out(context))


def _carried_out(context: ExceptionContext) -> bool:
    """Whether a commit that ended in an error is carried out all the same.

    aiosqlite's thread has been given it: a task that is cancelled only does not wait for it.
    """
    cancelled = isinstance(context.original_exception, asyncio.CancelledError)
    return cancelled and context.dialect.driver == "aiosqlite"


def _savepoint(core: Connection, statement: Any, *_: Any) -> None:
    # Not by the events for savepoints: the one that begins it does not say the name that SQLAlchemy will give it.
    if not isinstance(statement, SavepointClause | RollbackToSavepointClause):
        return
    follower = _followers[core]
    if follower.transaction.open:
        if isinstance(statement, RollbackToSavepointClause):
            # A savepoint that is older than the first enqueue has no mark: everything came after it.
            follower.transaction.rollback_to(follower.marks.get(statement.ident, 0))
        else:
            follower.marks[statement.ident] = follower.transaction.mark()

"""Joining a psycopg 3 connection, blocking or async, and following one from memory."""

from __future__ import annotations

from itertools import count
from typing import Any
from weakref import WeakKeyDictionary, finalize, ref

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import PipelineStatus, TransactionStatus

from xjobs.drivers.async_postgres import AsyncConnectionDriver
from xjobs.drivers.base import Driver
from xjobs.drivers.memory import MemoryDriver
from xjobs.drivers.postgres import ConnectionDriver, check_usable
from xjobs.drivers.session import read_only
from xjobs.errors import ConnectionUnsupported
from xjobs.integrations.following import MarkedTransaction
from xjobs.sql import Statement

Connection = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]


async def join(connection: Connection) -> Driver:
    """A driver over the connection itself.

    Raises:
        ConnectionUnsupported: it is in a two-phase transaction.
    """
    if connection._tpc is not None:  # noqa: SLF001 - nothing public says so
        raise two_phase()
    if isinstance(connection, psycopg.AsyncConnection):
        return AsyncConnectionDriver(connection)
    return ConnectionDriver(connection)


async def follow(connection: Connection, memory: MemoryDriver) -> Driver:
    """A memory transaction that ends as the connection's does, savepoints included.

    In autocommit and outside of a transaction there is nothing to follow; what a pipeline sends up to its next sync is
    one.

    Raises:
        TransactionAborted: the connection's transaction has failed.
        ConnectionUnsupported: it is closed, may not write, or is in a two-phase transaction.
    """
    check_usable(connection)
    if _commits_each_statement(connection):
        if connection.info.parameter_status("default_transaction_read_only") == "on":
            raise read_only()
        return memory
    follower = _followers.get(connection)
    if follower is None or not follower.follows(memory):
        await join(connection)  # refuses what it refuses on Postgres
        follower = _followers[connection] = _Follower(connection, memory)
    await follower.mark(connection)
    if not follower.transaction.open:  # another task of an async connection has given it up meanwhile
        return await follow(connection, memory)
    return follower.transaction.driver


def two_phase() -> ConnectionUnsupported:
    """The error for a two-phase transaction: Postgres prepares none that has notified, and an enqueue notifies."""
    return ConnectionUnsupported(
        "the transaction on the given connection is a two-phase one, and Postgres prepares none that has sent a"
        " notification, as an enqueue does",
        "enqueue in a plain transaction, or after the commit without connection=",
    )


def _commits_each_statement(connection: Connection) -> bool:
    info = connection.info
    return (
        connection.autocommit
        and info.transaction_status == TransactionStatus.IDLE
        and info.pipeline_status == PipelineStatus.OFF
    )


_followers: WeakKeyDictionary[Connection, _Follower] = WeakKeyDictionary()
_numbers = count(1)

# Both are undone when the transaction, or the savepoint around them, rolls back: a notification is delivered by the
# commit and not otherwise, which tells the fate afterwards; a lock is released at once, which tells it meanwhile.
_MARK = Statement(
    """
select pg_notify($1, $2::text) as sent, pg_current_xact_id()::text::int8 as transaction,
       current_setting('transaction_read_only') = 'on' as read_only,
       pg_advisory_xact_lock_shared($3::int, $2::int) as locked,
       array(select l.objid::int from pg_locks l
              where l.locktype = 'advisory' and l.classid = $3::int::oid and l.pid = pg_backend_pid()) as standing
""",
    "SQL_FOLLOW",
    ("channel", "mark", "lock"),
    "Marks the caller's transaction, and answers which marks of it stand.",
)
_LOCK = 0x786A6F70

# What an insert would do there: the transaction has failed.
_REFUSE = Statement(
    "do $$ begin raise read_only_sql_transaction; end $$",
    "SQL_FOLLOW_READ_ONLY",
    (),
    "Fails as a write does in a read-only transaction.",
)


class _Follower:
    """Ends a memory transaction as the transaction of a psycopg connection has ended, which the server is asked."""

    def __init__(self, connection: Connection, memory: MemoryDriver) -> None:
        self._watcher = _Watcher(connection)
        finalize(self, self._watcher.close)
        # Not left to the next statement on memory: while the watcher is there, nobody can drop the database.
        self._last_look = finalize(connection, self._look_at_once)
        self._looking = False
        # Not the connection itself, which is the key under which this object is held.
        self._connection = ref(connection)
        self._xid: int | None = None
        self.transaction = MarkedTransaction(memory, self._look)

    def follows(self, memory: MemoryDriver) -> bool:
        """Whether the transaction is still open, as of now, and `memory` is where it writes."""
        if self.transaction.open:
            self._look()
        return self.transaction.open and self.transaction.memory is memory

    async def mark(self, connection: Connection) -> None:
        """Mark what the transaction is about to write, and undo what savepoints have taken back."""
        mark = self.transaction.next_mark()
        driver = await join(connection)
        try:
            ((_, xid, refuses_writes, _, standing),) = await driver.run(
                _MARK, channel=self._watcher.channel, mark=mark, lock=_LOCK
            )
            if refuses_writes:
                await driver.run(_REFUSE)
        except BaseException:
            if self._xid is None:  # nothing has been written under it, and nothing would ever end it
                self._end()
            raise
        self._xid = xid
        self.transaction.set_mark(mark, standing)

    def _look(self) -> None:
        """End as the connection's transaction has ended; one whose connection is gone has, in one way or the other."""
        if self._xid is None:
            return
        with self.transaction.memory.store.lock:
            if self.transaction.open and not self._looking:
                self._looking = True
                try:
                    self._ask(self._xid)
                finally:
                    self._looking = False

    def _look_at_once(self) -> None:
        """The connection is gone, which can be noticed anywhere; what is in use there is left to a later look."""
        lock = self.transaction.memory.store.lock
        if lock.acquire(blocking=False):
            try:
                self._look()
            finally:
                lock.release()

    def _ask(self, xid: int) -> None:
        connection = self._connection()
        closed = connection is None or connection.closed  # asked first: it can commit until then
        status, standing = self._watcher.fate(xid)
        if status == "in progress" and not closed:
            return
        if status == "committed":
            self.transaction.commit(standing)
        self._end()

    def _end(self) -> None:
        """Undo what has not been committed, and stop watching."""
        self.transaction.rollback()
        self._last_look.detach()
        self._watcher.close()


class _Watcher:
    """A connection beside the caller's, which learns what becomes of transactions there."""

    def __init__(self, connection: Connection) -> None:
        info = connection.info
        self.channel = f"xjobs_follow_{next(_numbers)}_{id(self)}"
        # Its own encoding: whatever the caller's is, a status comes as text.
        self._where = make_conninfo(
            info.dsn, password=info.password or None, client_encoding="utf8", application_name="xjobs follow"
        )
        self._session = self._connect()

    def fate(self, xid: int) -> tuple[str | None, list[int] | None]:
        """The status of a transaction, and the marks that stood when it committed; None when they are not known.

        A connection that broke is replaced once. Where no server answers the transaction has no status.
        """
        try:
            status = self._status(xid)
            # Not before the end: they all come with it, and are answered once.
            return status, self._marks() if status == "committed" else None
        except psycopg.Error:
            self.close()
        try:
            self._session = self._connect()
            # What was sent meanwhile is lost; what a transaction that is still in progress will send is not.
            return self._status(xid), None
        except psycopg.Error:
            return None, None

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def _connect(self) -> psycopg.Connection[Any]:
        session = psycopg.connect(self._where, autocommit=True)
        session.execute(f"listen {self.channel}".encode())
        return session

    def _status(self, xid: int) -> str | None:
        row = self._session.execute("select pg_xact_status(%s::text::xid8)", [xid]).fetchone()
        return row[0] if row is not None else None

    def _marks(self) -> list[int]:
        return [int(notice.payload) for notice in self._session.notifies(timeout=0)]

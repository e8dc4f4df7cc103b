"""The drivers of a test's queue on Postgres.

They wait for another transaction for a while only: one that the test itself holds open would never end. What the caller
joins, and what a worker does, is on other connections.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from psycopg import Connection, errors as pg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pytest_xjobs.atomic import name_blocks
from pytest_xjobs.leaks import sessions
from xjobs.drivers.async_postgres import AsyncPostgresDriver
from xjobs.drivers.base import Driver, Row
from xjobs.drivers.postgres import PostgresDriver
from xjobs.drivers.session import describe
from xjobs.errors import ConnectionUnsupported, WouldBlock
from xjobs.sql import Statement

LOCK_TIMEOUT = 10.0
"""Seconds, in real time, for which a statement of the queue waits for another transaction."""

Holders = Callable[[], list[str]]


def holders(conn: Connection[Any]) -> list[str]:
    """The open transactions of a database that others may have to wait for, one line each.

    Not by pg_blocking_pids, which knows nothing any more when the wait is over.
    """
    return name_blocks(
        sessions(
            conn,
            "a.xact_start is not null and exists (select from pg_catalog.pg_locks l where l.pid = a.pid and l.granted"
            " and (l.locktype in ('transactionid', 'advisory') or l.mode in ('ShareLock', 'ShareRowExclusiveLock',"
            " 'ExclusiveLock', 'AccessExclusiveLock') and l.locktype = 'relation'))",
        )
    )


class QueueDriver(PostgresDriver):
    """The blocking driver of a test's queue.

    Args:
        dsn: of the test's database.
        holders: answers who may be waited for.
    """

    def __init__(self, dsn: str, holders: Holders) -> None:
        super().__init__(_impatient(dsn))
        self._holders = holders

    async def run(self, statement: Statement, **parameters: Any) -> list[Row]:
        """Run one statement.

        Raises:
            WouldBlock: it has waited for another transaction for too long; the message names those that are open.
        """
        try:
            return await super().run(statement, **parameters)
        except pg.LockNotAvailable as error:
            raise _waited(statement, self._holders()) from error

    def joined(self, driver: Driver) -> Driver:
        """The driver for a connection that a caller gives.

        Raises:
            ConnectionUnsupported: it is to another database.
        """
        return _joined(driver, self.conninfo, self.before)


class AsyncQueueDriver(AsyncPostgresDriver):
    """The same for async callers.

    Args:
        dsn: of the test's database.
        holders: answers who may be waited for.
        before: called before each statement.
    """

    def __init__(self, dsn: str, holders: Holders, *, before: Callable[[], None] | None = None) -> None:
        super().__init__(_impatient(dsn), before=before)
        self._holders = holders

    async def run(self, statement: Statement, **parameters: Any) -> list[Row]:
        """Run one statement; see `QueueDriver.run`."""
        try:
            return await super().run(statement, **parameters)
        except pg.LockNotAvailable as error:
            raise _waited(statement, self._holders()) from error

    def joined(self, driver: Driver) -> Driver:
        """The driver for a connection that a caller gives; see `QueueDriver.joined`."""
        return _joined(driver, self.conninfo, self.before)

    def sibling(self) -> AsyncQueueDriver:
        """One more driver like this, for another thread."""
        return AsyncQueueDriver(self.conninfo, self._holders, before=self.before)


class _Joined:
    """A driver for a caller's connection: the database's time is moved before its statements too."""

    backend = "postgres"

    def __init__(self, driver: Driver, before: Callable[[], None]) -> None:
        self._driver = driver
        self._before = before

    async def run(self, statement: Statement, **parameters: Any) -> list[Row]:
        self._before()
        return await self._driver.run(statement, **parameters)

    async def run_script(self, text: str) -> None:
        self._before()
        await self._driver.run_script(text)

    async def aclose(self) -> None:
        await self._driver.aclose()


def _joined(driver: Driver, own: str, before: Callable[[], None] | None) -> Driver:
    connection = getattr(getattr(driver, "_driver", driver), "_connection", None)
    # By the name alone: it is made for the run, and a server has many addresses. A closed one is refused as such.
    if connection is not None and not connection.closed and connection.info.dbname != conninfo_to_dict(own)["dbname"]:
        raise ConnectionUnsupported(
            f"the given connection is to {describe(connection.info.dsn)}, and the test's queue is on {describe(own)},"
            " where the job would never appear",
            "connect to xjobs_dsn (or xjobs_queue.dsn) in the test",
        )
    return driver if before is None else _Joined(driver, before)


def _impatient(dsn: str) -> str:
    """The address, for sessions that wait for locks for a while only."""
    options = conninfo_to_dict(dsn).get("options") or os.environ.get("PGOPTIONS", "")
    return make_conninfo(dsn, options=f"{options} -c lock_timeout={LOCK_TIMEOUT * 1000:.0f}ms".strip())


def _waited(statement: Statement, found: list[str]) -> WouldBlock:
    listed = "".join(f"\n  {holder}" for holder in found) or "\n  unknown (it has ended since)"
    return WouldBlock(
        f"{statement.name} of the test's queue has waited {LOCK_TIMEOUT:g} s for another open transaction:{listed}",
        "commit or roll back first, or enqueue in that transaction, with using(connection=...)",
    )

"""What both Postgres drivers share: how a session of ours is set up, how values travel, and what errors mean."""

from __future__ import annotations

import os
import select
import time
from datetime import timedelta
from functools import cache
from typing import Any

import msgspec
import psycopg
from psycopg import AsyncRawCursor, RawCursor, errors as pg, postgres, pq
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap, Dumper, Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import tuple_row
from psycopg.types.array import register_all_arrays
from psycopg.types.json import set_json_loads

from xjobs.drivers import arrays
from xjobs.errors import (
    ConnectionUnsupported,
    DriverUnavailable,
    Error,
    SchemaMissing,
    TransactionAborted,
    TransactionConflict,
)

CONNECT_TIMEOUT = 5
"""Seconds to wait for a server, where the connection string and PGCONNECT_TIMEOUT do not say."""

POOL_TIMEOUT = 10
"""Seconds to wait for a connection of our own pool while all of them are in use."""

TRIES = 5
"""How often a statement is sent that a deadlock or a serialization failure took back."""

TAKEN_BACK = (pg.SerializationFailure, pg.DeadlockDetected, pg.UniqueViolation)
"""Conflicts with other transactions, after which the same statement finds another situation; a unique violation is an
id, or a key that a requeue brings back to life, which another transaction took in the same moment."""

# What every session of ours is set to. The planner settings pin each statement to the index ranges that it is written
# for: the claim of a table that has just been filled would otherwise sort all of it until statistics are taken, and the
# generic plan saves planning, which costs more than running them. docs/decisions/0003-plans.md has the figures.
SETTINGS = {
    "client_encoding": "UTF8",
    "TimeZone": "UTC",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "jit": "off",
}
SETUP = "select " + ", ".join(f"set_config('{name}', '{value}', false)" for name, value in SETTINGS.items())


UNREADABLE = "<JSON that is nested too deep to be read>"
"""What is read in place of a value that another hand wrote so; no job takes it, and no other row fails with it."""


class _Interval(Dumper):
    format = pq.Format.BINARY
    oid = postgres.types["interval"].oid

    def dump(self, obj: timedelta) -> Buffer | None:
        return arrays.interval(obj)


class _Jsonb(Loader):
    """psycopg's loader by half the time: `input` is what reading a claim costs most."""

    format = pq.Format.BINARY

    def load(self, data: Buffer) -> Any:
        try:
            return msgspec.json.decode(data[1:])  # behind the format's version, which has been 1 ever since
        except RecursionError:
            return UNREADABLE


@cache
def adapters() -> AdaptersMap:
    """How our cursors convert values, whatever the app has registered on its connections or for all of psycopg."""
    own = AdaptersMap(types=postgres.types)
    postgres.register_default_adapters(own)
    register_all_arrays(own)
    own.register_dumper(timedelta, _Interval)
    arrays.register(own)
    set_json_loads(msgspec.json.decode, own)
    own.register_loader("jsonb", _Jsonb)
    return own


class Cursor(RawCursor[Any]):
    """A cursor with our own conversions and plain tuples, also on a caller's connection."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        super().__init__(connection, row_factory=tuple_row)

    @property
    def adapters(self) -> AdaptersMap:  # noqa: D102 - psycopg describes it
        return adapters()


class AsyncCursor(AsyncRawCursor[Any]):
    """The same for async connections."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        super().__init__(connection, row_factory=tuple_row)

    @property
    def adapters(self) -> AdaptersMap:  # noqa: D102 - psycopg describes it
        return adapters()


def complete(conninfo: str) -> str:
    """A connection string with our defaults where it is silent.

    Raises:
        DriverUnavailable: it is not a connection string.
    """
    try:
        given = conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError as problem:
        raise DriverUnavailable(
            f"the connection string cannot be read: {str(problem).strip()}",
            "write it as postgresql://user@host:5432/dbname or as host=... dbname=...",
        ) from None
    if "@" in str(given.get("host", "")):
        raise DriverUnavailable(
            "the connection URL holds an @ that is not the one before the host",
            "write an @ in the user name or password as %40",
        )
    defaults: dict[str, Any] = {"application_name": "xjobs"}
    if "PGCONNECT_TIMEOUT" not in os.environ:
        defaults["connect_timeout"] = CONNECT_TIMEOUT
    return make_conninfo(**{**defaults, **{k: v for k, v in given.items() if v is not None}})


def address_of(pool: Any) -> str:
    """Where a caller's pool leads, for messages; a pool may compute that anew for each connection."""
    return pool.conninfo if isinstance(pool.conninfo, str) else ""


def describe(conninfo: str) -> str:
    """Where a connection string leads, without its password."""
    given = conninfo_to_dict(conninfo)
    parts = [f"{name}={given[name]}" for name in ("host", "hostaddr", "port", "dbname", "user") if given.get(name)]
    return " ".join(parts) or "the default server of this user"


def unreachable(error: psycopg.Error, conninfo: str, began: float) -> DriverUnavailable:
    """The error for a connection attempt that failed."""
    return DriverUnavailable(
        f"no Postgres answered at {describe(conninfo)}, tried for {time.perf_counter() - began:.1f} s:"
        f" {_first_line(error)}",
        "check the address and that the server runs and accepts this user",
    )


def lost(error: psycopg.Error, conninfo: str) -> DriverUnavailable:
    """The error for a connection that broke under a statement."""
    return DriverUnavailable(
        f"the connection to {describe(conninfo)} was lost during a statement ({_first_line(error)})",
        "the next call connects again; whether the statement took effect is not known",
    )


_MISSING = (pg.UndefinedTable, pg.UndefinedColumn, pg.InvalidColumnReference, pg.UndefinedObject)


def translated(error: psycopg.Error, where: str) -> Error | None:
    """Our error for one of Postgres, or None when it is not ours to explain."""
    if isinstance(error, _MISSING) and "x_" in str(error):
        return SchemaMissing(
            f"the queue's schema is missing or older than this version in {where} ({_first_line(error)})",
            "run `xjobs schema install` or queue.install_schema()",
        )
    if isinstance(error, pg.InvalidColumnReference):
        return SchemaMissing(
            f"the live index is missing in {where} ({_first_line(error)})", "run `xjobs schema install`"
        )
    if isinstance(error, pg.InFailedSqlTransaction):
        return aborted()
    if isinstance(error, TAKEN_BACK):
        return TransactionConflict(
            f"the statement met another transaction's work ({_first_line(error)})", "run the transaction again"
        )
    if isinstance(error, pg.ReadOnlySqlTransaction):
        return read_only()
    return None


def aborted() -> TransactionAborted:
    """The error for a caller's transaction that has failed before."""
    return TransactionAborted(
        "the transaction on the given connection has failed and takes no more statements",
        "roll it back (or to a savepoint) before enqueueing, and look for the first error in it",
    )


def read_only() -> ConnectionUnsupported:
    """The error for a caller's transaction that may not write."""
    return ConnectionUnsupported(
        "the transaction on the given connection is read-only, and a job is written in it",
        "give a connection whose transaction may write, or leave connection= out",
    )


def still_open(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Whether an idle connection is usable, asked of its socket and not by a round trip.

    A server that went away has left its last words there and then an end-of-file, which fails when it is read; notices
    that wait are taken in.
    """
    pgconn = connection.pgconn
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    while poll.poll(0):
        try:
            pgconn.consume_input()
        except psycopg.OperationalError:
            return False
    return pgconn.status == pq.ConnStatus.OK


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

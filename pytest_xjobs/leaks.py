"""Sessions that sit in a transaction on a test's database: finding and ending them, and which are not the test's own.

psycopg comes in when one is looked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, LiteralString

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.sql import Composed

__all__ = ["Earlier", "Leak", "fetch_rows", "leaked_transactions", "sessions", "terminate"]

_QUERY_SHOWN = 120  # characters


@dataclass(frozen=True)
class Leak:
    """A session that sits in a transaction which nobody is working on.

    Attributes:
        pid: of its backend.
        query: its last statement.
        state: `idle in transaction`, or the same with `(aborted)`.
        age: of the state, in seconds.
    """

    pid: int
    query: str
    state: str
    age: float

    def __str__(self) -> str:
        query = " ".join(self.query.split())
        query = query if len(query) <= _QUERY_SHOWN else f"{query[: _QUERY_SHOWN - 3]}..."
        return f"pid {self.pid}, {self.state} for {self.age:.1f} s, last statement: {query}"


@dataclass(frozen=True)
class Earlier:
    """What was open before a test began, so that it is not the test's to end.

    Attributes:
        since: when the test began, by the server's real clock: transactions that are older are not its own.
        pids: backends of connections on which a transaction had begun for the client and not yet for the server, which
            hears of it with the first statement.
    """

    since: datetime
    pids: frozenset[int]

    @classmethod
    def now(cls, conn: Connection[Any], pids: Iterable[int] = ()) -> Earlier:
        """What is open at this moment on the server of `conn`."""
        # By its full name: the database has a clock of its own before pg_catalog, and it may be moved.
        ((since,),) = fetch_rows(conn, "select pg_catalog.clock_timestamp()", ())
        return cls(since, frozenset(pids))


def leaked_transactions(conn: Connection[Any], earlier: Earlier | None = None) -> list[Leak]:
    """Other sessions of this connection's database that are idle in a transaction, oldest first.

    One round trip. Sessions of other roles are seen by a superuser or a member of pg_read_all_stats only.

    Args:
        conn: to the database.
        earlier: leaves out what was open before.
    """
    found = sessions(
        conn,
        "a.state in ('idle in transaction', 'idle in transaction (aborted)')",
        since=earlier.since if earlier is not None else None,
    )
    return [leak for leak in found if earlier is None or leak.pid not in earlier.pids]


def terminate(conn: Connection[Any], leaks: Iterable[Leak]) -> list[int]:
    """End sessions found by `leaked_transactions`, wait until they are gone, and answer their pids.

    One that has gone on or ended in the meantime is left alone.
    """
    pids = [leak.pid for leak in leaks]
    if not pids:
        return []
    rows = fetch_rows(
        conn,
        # Ended in the select list, since the conditions of a WHERE are tried in any order. With a timeout in
        # milliseconds it answers when the backend is gone, with its locks.
        "select a.pid, pg_catalog.pg_terminate_backend(a.pid, 2000) from pg_catalog.pg_stat_activity a "
        "where a.pid = any(%s) and a.datname = pg_catalog.current_database() "
        "and a.state like 'idle in transaction%%'",
        [pids],
    )
    return [pid for pid, gone in rows if gone]


def sessions(
    conn: Connection[Any], condition: LiteralString, database: str | None = None, since: datetime | None = None
) -> list[Leak]:
    """Other clients' sessions on one database that meet a condition, oldest transaction first.

    Args:
        conn: to any database of the server.
        condition: SQL on `pg_stat_activity a`.
        database: whose sessions; by default those of the connection's.
        since: leaves out transactions that began before it.
    """
    from psycopg import sql

    # Everything by its full name: the database has a clock of its own before pg_catalog.
    query = sql.SQL(
        "select a.pid, a.query, coalesce(a.state, ''), "
        "coalesce(extract(epoch from pg_catalog.clock_timestamp() - a.state_change), 0)::float8 "
        "from pg_catalog.pg_stat_activity a "
        "where a.datname = coalesce(%s, pg_catalog.current_database()) and a.pid <> pg_catalog.pg_backend_pid() "
        "and a.backend_type = 'client backend' and (a.xact_start < %s) is not true and {} order by a.xact_start"
    ).format(sql.SQL(condition))
    return [Leak(*row) for row in fetch_rows(conn, query, [database, since])]


def fetch_rows(conn: Connection[Any], query: LiteralString | Composed, values: Sequence[object]) -> list[Any]:
    """The rows of a query as tuples, whatever kind of cursor and rows the connection makes."""
    from psycopg import Cursor
    from psycopg.rows import tuple_row

    # Not the connection's own kind of cursor: it may read other placeholders, or make other rows.
    with Cursor(conn, row_factory=tuple_row) as cursor:
        return cursor.execute(query, values).fetchall()

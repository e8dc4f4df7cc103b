"""One database of a test run, and how it is emptied between tests.

psycopg comes in with the first connection.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from pytest_xjobs.leaks import fetch_rows, sessions
from pytest_xjobs.provision import ServerError

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.sql import Composed

__all__ = ["Database", "ResetBlocked", "ResetMode"]

QUEUE_TABLES = (
    "x_jobs",
    "x_job_steps",
    "x_backfills",
    "x_outbox",
    "x_scheduler_state",
    "x_scheduler_leader",
    "x_job_leases",
    "x_job_events",
    "x_job_pauses",
    "x_job_workers",
    "x_job_counters",
)
"""The tables of the queue; a reset empties those that exist, in every mode."""

KEPT_TABLES = (
    "alembic_version",
    "django_migrations",
    "schema_migrations",
    "yoyo_*",
    "_yoyo_*",
    "flyway_schema_history",
)
"""Tables of migration tools: what they say stays true when rows go. Names, or beginnings that end in `*`."""

ResetMode = Literal["delete", "truncate", "none"]
"""How a reset treats the app's own tables; see `Database.reset`."""

_RENEW_EVERY = 200  # resets


class ResetBlocked(ServerError):
    """A database could not be emptied because another session held a lock for too long."""


@dataclass
class Database:
    """One database of a run, and how it is emptied.

    Attributes:
        name: its name on the server.
        dsn: its URL.
        mode: what `reset` does with the app's tables.
        schemas: where the app's tables are.
        kept: tables that a reset leaves alone; names, or beginnings that end in `*`.
        lock_timeout: seconds that a reset waits for another session.
    """

    name: str
    dsn: str
    mode: ResetMode = "delete"
    schemas: Sequence[str] = ("public",)
    kept: Sequence[str] = KEPT_TABLES
    lock_timeout: float = 2.0
    _plan: _ResetPlan | None = field(default=None, repr=False, compare=False)
    _resets: int = field(default=0, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.mode not in get_args(ResetMode):
            raise ValueError(f"no reset mode {self.mode!r}: one of {', '.join(get_args(ResetMode))}")

    def refresh(self, conn: Connection[Any]) -> None:
        """Read again which tables there are; needed when a test made or dropped some."""
        self._plan = _plan_reset(conn, self)

    def reset(self, conn: Connection[Any]) -> None:
        """Empty the queue's tables and the app's, in one transaction and one round trip.

        The list of tables is read at the first call. Modes for the app's tables:

        - `delete`: fast for the few rows of a test; foreign keys and triggers do not fire. A role that may not switch
          them off (`session_replication_role` needs a superuser, or a grant on 15 and later) gets one TRUNCATE instead.
        - `truncate`: one TRUNCATE that also starts identity columns again; its time does not depend on rows.
        - `none`: the app empties its own.

        Tables of extensions and `kept` ones stay as they are; rows that the setup inserted elsewhere do not. Every
        200th call also gives the tables new files, since deleted rows otherwise make each next call slower: 100 rows a
        test took 21 ms instead of 0.6 after 6,000 calls. A VACUUM would do as well, in twice the time, but leaves
        statistics behind that change plans, and with them the order of rows, in the middle of a suite.

        Args:
            conn: an autocommit connection to this database, outside a transaction.

        Raises:
            ResetBlocked: another session held a lock for `lock_timeout`; the fact names the sessions.
            ValueError: the connection is not in autocommit, so the reset would not be complete on return.
        """
        from psycopg import errors

        if not conn.autocommit:
            raise ValueError("reset needs an autocommit connection: connect with autocommit=True")
        if self._plan is None:
            self.refresh(conn)
        assert self._plan is not None  # noqa: S101 - for the type checker
        try:
            _send(conn, self._plan.script)
        except (errors.LockNotAvailable, errors.DeadlockDetected) as error:
            raise self._blocked(conn, error) from None
        self._resets += 1
        if self._resets >= _RENEW_EVERY and self._plan.renewal:
            # It only saves time: when somebody is in the way now, the next call tries again; when a table that is
            # not emptied refers to one that is, there is nothing to try.
            with contextlib.suppress(errors.LockNotAvailable, errors.DeadlockDetected):
                with contextlib.suppress(errors.FeatureNotSupported):
                    _send(conn, self._plan.renewal)
                self._resets = 0

    def _blocked(self, conn: Connection[Any], error: Exception) -> ResetBlocked:
        rows = sessions(conn, "a.xact_start is not null")
        holders = "".join(f"\n  {row}" for row in rows) or " unknown (it has ended since)"
        return ResetBlocked(
            f"emptying database {self.name} failed after {self.lock_timeout:g} s "
            f"({str(error).splitlines()[0]}); open transactions:{holders}",
            "Commit or roll back in the test that opened them, or end them: leaked_transactions finds, terminate ends.",
        )


@dataclass(frozen=True)
class _ResetPlan:
    """The statements of a reset, ready to send; `renewal` is empty without tables."""

    script: bytes
    renewal: bytes


def _plan_reset(conn: Connection[Any], database: Database) -> _ResetPlan:
    from psycopg import sql

    tables = _tables(conn, database.schemas)
    queue = [_name(table) for table in tables if table[1] in QUEUE_TABLES]
    app = [_name(table) for table in tables if table[1] not in QUEUE_TABLES and not _is_kept(table[1], database.kept)]
    by_delete = database.mode == "delete" and _may_skip_triggers(conn)

    # One message is one transaction, so LOCAL ends with it, also after an error.
    steps: list[sql.Composable] = [
        sql.SQL("set local lock_timeout = {}").format(f"{database.lock_timeout * 1000:.0f}ms")
    ]
    if app and by_delete:
        steps.append(sql.SQL("set local session_replication_role = replica"))
        steps += [sql.SQL("delete from {}").format(table) for table in app]
    elif app and database.mode != "none":
        ending = sql.SQL(" restart identity" if database.mode == "truncate" else "")
        steps.append(sql.SQL("truncate {}{}").format(sql.SQL(", ").join(app), ending))
    # After the app's: its rows may refer to jobs.
    steps += [sql.SQL("delete from {}").format(table) for table in queue]

    deleted = sql.SQL(", ").join(queue + (app if by_delete else []))
    renewal = sql.SQL("set local lock_timeout = '100ms'; truncate {}").format(deleted)
    return _ResetPlan(sql.SQL("; ").join(steps).as_bytes(conn), renewal.as_bytes(conn) if queue or by_delete else b"")


def _tables(conn: Connection[Any], schemas: Sequence[str]) -> list[tuple[str, str]]:
    """The tables of the schemas as (schema, name); partitions are emptied through their parent."""
    # Those of an extension (spatial_ref_sys of PostGIS) are its data, not the app's.
    return fetch_rows(
        conn,
        "select n.nspname, c.relname "
        "from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace "
        "where n.nspname = any(%s) and c.relkind in ('r', 'p') and not c.relispartition and c.relpersistence <> 't' "
        "and not exists (select from pg_catalog.pg_depend d where d.classid = 'pg_catalog.pg_class'::regclass "
        "and d.objid = c.oid and d.deptype = 'e') order by 1, 2",
        [list(schemas)],
    )


def _may_skip_triggers(conn: Connection[Any]) -> bool:
    from psycopg import errors

    try:
        # The attempt is the answer on every version: the grant exists since 15 only.
        _send(conn, b"set local session_replication_role = replica; select 1")
    except errors.InsufficientPrivilege:
        return False
    return True


def _is_kept(table: str, kept: Iterable[str]) -> bool:
    return any(table.startswith(name[:-1]) if name.endswith("*") else table == name for name in kept)


def _name(table: tuple[str, str]) -> Composed:
    from psycopg import sql

    return sql.SQL("{}").format(sql.Identifier(*table))


def _send(conn: Connection[Any], script: bytes) -> None:
    from psycopg import Cursor

    with Cursor(conn) as cursor:
        cursor.execute(script, prepare=False)

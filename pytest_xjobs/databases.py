"""The databases of one test run on one server: a sealed template, clones of it, and emptying them between tests.

`RunDatabases` makes, drops and sweeps them; `Database` is one of them; `leaked_transactions` and `terminate` deal with
what a test left open in it. psycopg comes in when a connection is made.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, LiteralString, Self, get_args

from pytest_xjobs.provision import Server, ServerError

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.sql import Composed

__all__ = [
    "Database",
    "DatabaseRefused",
    "Leak",
    "ResetBlocked",
    "ResetMode",
    "RunDatabases",
    "TemplateUnsettled",
    "leaked_transactions",
    "terminate",
]

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

SEARCH_PATH = "public, xjobs_time, pg_catalog"
"""Makes the clock's `now()` come before the built-in one; new tables still go to public."""

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

PREFIX = "xjobs_test_"
_OURS = re.compile(rf"{PREFIX}(?P<run>[0-9]+_(?P<key>[0-9a-f]{{8}}))_[a-z0-9_]+")
_SUFFIX = re.compile(r"[a-z0-9_]+")
_NAME_BYTES = 63
_RUN_LOCK = 0x786A6F62  # first half of an advisory lock's key: a run is alive
_BUILD_LOCK = 0x786A6F63  # a template is being built
_RENEW_EVERY = 200  # resets
_QUERY_SHOWN = 120  # characters


class DatabaseRefused(ServerError):
    """The server did not let the plugin make a database."""


class TemplateUnsettled(ServerError):
    """The setup of the template left something undone: a transaction that was never committed."""


class ResetBlocked(ServerError):
    """A database could not be emptied because another session held a lock for too long."""


@dataclass(frozen=True)
class Leak:
    """A session that sits in a transaction which nobody is working on.

    Attributes:
        pid: of its backend.
        query: its last statement.
        state: `idle in transaction`, or the same with `(aborted)`.
        age: of the transaction, in seconds.
    """

    pid: int
    query: str
    state: str
    age: float

    def __str__(self) -> str:
        query = " ".join(self.query.split())
        query = query if len(query) <= _QUERY_SHOWN else f"{query[: _QUERY_SHOWN - 3]}..."
        return f"pid {self.pid}, {self.state} for {self.age:.1f} s, last statement: {query}"


# -------------------------------------------------------------------------------------------------- one database


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
        rows = _sessions(conn, "a.xact_start is not null")
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
    return _rows(
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


def _rows(conn: Connection[Any], query: LiteralString | Composed, values: Sequence[object]) -> list[Any]:
    from psycopg import Cursor
    from psycopg.rows import tuple_row

    # Not the connection's own kind of cursor: it may read other placeholders, or make other rows.
    with Cursor(conn, row_factory=tuple_row) as cursor:
        return cursor.execute(query, values).fetchall()


# ---------------------------------------------------------------------------------------------- open transactions


def leaked_transactions(conn: Connection[Any]) -> list[Leak]:
    """Other sessions of this connection's database that are idle in a transaction, oldest first.

    One round trip. Sessions of other roles are seen by a superuser or a member of pg_read_all_stats only.
    """
    return _sessions(conn, "a.state in ('idle in transaction', 'idle in transaction (aborted)')")


def terminate(conn: Connection[Any], leaks: Iterable[Leak]) -> list[int]:
    """End sessions found by `leaked_transactions`, wait until they are gone, and answer their pids.

    One that has gone on or ended in the meantime is left alone.
    """
    pids = [leak.pid for leak in leaks]
    if not pids:
        return []
    rows = _rows(
        conn,
        # Ended in the select list, since the conditions of a WHERE are tried in any order. With a timeout in
        # milliseconds it answers when the backend is gone, with its locks.
        "select a.pid, pg_catalog.pg_terminate_backend(a.pid, 2000) from pg_catalog.pg_stat_activity a "
        "where a.pid = any(%s) and a.datname = pg_catalog.current_database() "
        "and a.state like 'idle in transaction%%'",
        [pids],
    )
    return [pid for pid, gone in rows if gone]


def _sessions(conn: Connection[Any], condition: LiteralString, database: str | None = None) -> list[Leak]:
    from psycopg import sql

    # Everything by its full name: the database has a clock of its own before pg_catalog.
    query = sql.SQL(
        "select a.pid, a.query, coalesce(a.state, ''), "
        "coalesce(extract(epoch from pg_catalog.clock_timestamp() - a.xact_start), 0)::float8 "
        "from pg_catalog.pg_stat_activity a "
        "where a.datname = coalesce(%s, pg_catalog.current_database()) and a.pid <> pg_catalog.pg_backend_pid() "
        "and a.backend_type = 'client backend' and {} order by a.xact_start"
    ).format(sql.SQL(condition))
    return [Leak(*row) for row in _rows(conn, query, [database])]


# --------------------------------------------------------------------------------------------- the run's databases


class RunDatabases:
    """The databases that one test run makes on a server; `start` for a new run, `join` for a worker of a known one.

    Every name begins with `xjobs_test_<pid>_<token>_`. A connection that stays open for the run's length holds an
    advisory lock on the token, which tells everybody on the server that the run lives.

    Attributes:
        server: where they are.
        run: the run's id, to hand to workers.
        search_path: set on each database.
    """

    def __init__(self, server: Server, run: str, conn: Connection[Any], *, owner: bool, search_path: str) -> None:
        self.server = server
        self.run = run
        self.search_path = search_path
        self._conn = conn
        self._owner = owner
        self._made: dict[str, Database] = {}

    @classmethod
    def start(cls, server: Server, *, search_path: str = SEARCH_PATH) -> Self:
        """Begin a run.

        Args:
            server: where its databases go.
            search_path: as in a server's configuration; empty for the server's own.

        Raises:
            psycopg.OperationalError: the server does not answer.
        """
        return cls._open(server, f"{os.getpid()}_{secrets.token_hex(4)}", owner=True, search_path=search_path)

    @classmethod
    def join(cls, server: Server, run: str, *, search_path: str = SEARCH_PATH) -> Self:
        """Take part in a run that another process began, on the same server and maintenance database.

        Raises:
            ValueError: `run` is not the id of a run.
        """
        return cls._open(server, run, owner=False, search_path=search_path)

    @classmethod
    def _open(cls, server: Server, run: str, *, owner: bool, search_path: str) -> Self:
        import psycopg

        key = _lock_key(run)
        conn = psycopg.connect(
            server.dsn(server.maintenance_dbname), autocommit=True, application_name=f"pytest-xjobs {run}"
        )
        try:
            # Idle on purpose: a server that ends idle sessions would end the run's lock.
            conn.execute("set idle_session_timeout = 0")
            # Shared, since controller and workers each hold it.
            conn.execute("select pg_catalog.pg_advisory_lock_shared(%s, %s)", [_RUN_LOCK, key])
        except BaseException:
            conn.close()
            raise
        return cls(server, run, conn, owner=owner, search_path=search_path)

    def template(self, install: Callable[[str], None]) -> None:
        """Make sure that this run has its template; the first process that asks builds it, the others wait for that.

        Args:
            install: gets the DSN of an empty database and fills it; what it leaves connected is disconnected.

        Raises:
            TemplateUnsettled: it left a transaction open, whose work would be lost.
            DatabaseRefused: the role may not make databases.
            Exception: whatever `install` raises; no template is left then.
        """
        lock = [_BUILD_LOCK, _lock_key(self.run)]
        self._conn.execute("select pg_catalog.pg_advisory_lock(%s, %s)", lock)
        try:
            if not self._exists(self.name("template")):
                self._build(install)
        finally:
            if not self._conn.closed:
                self._conn.execute("select pg_catalog.pg_advisory_unlock(%s, %s)", lock)

    def _build(self, install: Callable[[str], None]) -> None:
        name = self.name("unfinished")
        self._drop(name)  # of a builder that died
        self._create("create database {}", name)
        try:
            self._set_search_path(name)
            install(self.server.dsn(name))
            # In this order nobody ever sees a template that is not complete and closed.
            self._execute("alter database {} with allow_connections false is_template true", name)
            self._disconnect(name)
            self._execute("alter database {} rename to {}", name, self.name("template"))
        except BaseException:
            self._drop(name)
            raise

    def _disconnect(self, name: str) -> None:
        """End the sessions that a setup left (a pool that was not closed), unless they hold work."""
        left = _sessions(self._conn, "a.xact_start is not null", name)
        if left:
            raise TemplateUnsettled(
                "the database setup left a transaction open, whose work would be lost:"
                + "".join(f"\n  {leak}" for leak in left),
                "Commit in the setup, and close what it opened.",
            )
        self._conn.execute(
            "select pg_catalog.pg_terminate_backend(pid, 2000) from pg_catalog.pg_stat_activity "
            "where datname = %s and backend_type = 'client backend'",
            [name],
        )

    def create(
        self,
        name_suffix: str,
        *,
        mode: ResetMode = "delete",
        schemas: Sequence[str] = ("public",),
        kept: Sequence[str] = KEPT_TABLES,
    ) -> Database:
        """Clone the template.

        Args:
            name_suffix: tells the databases of the run apart, such as a worker's id; lower-case letters, digits, `_`.
            mode: see `Database`.
            schemas: see `Database`.
            kept: see `Database`.

        Raises:
            ValueError: the suffix cannot be part of a name, or makes it longer than 63 bytes.
            DatabaseRefused: the name is taken, there is no template yet, or the role may not make databases.
        """
        if not _SUFFIX.fullmatch(name_suffix) or name_suffix in ("template", "unfinished"):
            raise ValueError(f"no database name suffix {name_suffix!r}: use lower-case letters, digits and _")
        name = self.name(name_suffix)
        # The log costs less than the checkpoint that copying files needs, except in memory; it exists since 15.
        strategy = " strategy wal_log" if self._conn.info.server_version >= 150000 else ""
        self._create("create database {} template {}" + strategy, name, self.name("template"))
        # A clone does not take over the settings of its template.
        self._set_search_path(name)
        database = Database(name, self.server.dsn(name), mode=mode, schemas=tuple(schemas), kept=tuple(kept))
        self._made[name] = database
        return database

    def drop(self, database: Database) -> None:
        """Remove a database of this run, with the sessions in it.

        Raises:
            ValueError: it is not one of this run.
        """
        if not database.name.startswith(self.name("")):
            raise ValueError(f"database {database.name!r} is not of run {self.run}: drop it where it was made")
        self._drop(database.name)
        self._made.pop(database.name, None)

    def sweep(self) -> list[str]:
        """Remove what dead runs left on this server, and answer the names.

        A database goes only if its name is of our form, this role owns it, no session is in it, and nobody holds its
        run's lock. Runs that are alive are never touched.
        """
        from psycopg import errors

        # Names first, locks after: a run takes its lock before it makes a database, so one without a lock is dead.
        rows = self._conn.execute(
            "select d.datname from pg_catalog.pg_database d join pg_catalog.pg_roles r on r.oid = d.datdba "
            "where r.rolname = current_user and pg_catalog.starts_with(d.datname, %s) "
            "and not exists (select from pg_catalog.pg_stat_activity a where a.datid = d.oid)",
            [PREFIX],
        ).fetchall()
        # Read from the view, since an attempt to lock sees only locks taken in the same database.
        held = self._conn.execute(
            "select objid::bigint from pg_catalog.pg_locks "
            "where locktype = 'advisory' and classid = %s and objsubid = 2",
            [_RUN_LOCK],
        ).fetchall()
        alive = {key for (key,) in held}
        swept = []
        for (name,) in rows:
            ours = _OURS.fullmatch(name)
            if ours is None or _lock_key(ours["run"]) in alive:
                continue
            # Another run may be sweeping, or somebody has just connected.
            with contextlib.suppress(errors.ObjectInUse, errors.InvalidCatalogName, errors.InternalError_):
                self._drop(name, force=False)
                swept.append(name)
        return swept

    def close(self) -> None:
        """Drop what this process made (a run's owner: everything of the run) and let go of the run's lock.

        On a server that goes away with the run only the latter. Safe to call twice.
        """
        if self._conn.closed:
            return
        with contextlib.closing(self._conn):
            if self.server.disposable:
                return
            names = list(self._made)
            if self._owner:
                rows = self._conn.execute(
                    "select datname from pg_catalog.pg_database where pg_catalog.starts_with(datname, %s)",
                    [self.name("")],
                ).fetchall()
                names = [name for (name,) in rows]
            for name in names:
                self._drop(name)
            self._made.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def name(self, suffix: str) -> str:
        """The name of a database of this run; `template` is the template's.

        Raises:
            ValueError: it would be longer than 63 bytes.
        """
        name = f"{PREFIX}{self.run}_{suffix}"
        if len(name) > _NAME_BYTES:
            raise ValueError(f"database name {name!r} is longer than {_NAME_BYTES} bytes: use a shorter suffix")
        return name

    def _exists(self, name: str) -> bool:
        return (
            self._conn.execute("select from pg_catalog.pg_database where datname = %s", [name]).fetchone() is not None
        )

    def _execute(self, statement: LiteralString, *names: str) -> None:
        from psycopg import sql

        text = sql.SQL(statement)
        self._conn.execute(text.format(*(sql.Identifier(name) for name in names)))

    def _create(self, statement: LiteralString, *names: str) -> None:
        from psycopg import errors

        try:
            self._execute(statement, *names)
        except errors.InsufficientPrivilege as error:
            raise DatabaseRefused(
                f"role {self.server.user!r} may not create databases on {self.server.host}:{self.server.port} "
                f"({error.diag.message_primary})",
                f'run ALTER ROLE "{self.server.user}" CREATEDB, or give a DSN with a role that has it',
            ) from None
        except errors.DuplicateDatabase:
            raise DatabaseRefused(
                f"database {names[0]!r} exists", "use another suffix, or drop it first: suffixes are unique in a run"
            ) from None
        except errors.InvalidCatalogName:
            raise DatabaseRefused(f"run {self.run} has no template", "call template() before create()") from None

    def _set_search_path(self, name: str) -> None:
        from psycopg import sql

        schemas = [part.strip().strip('"') for part in self.search_path.split(",") if part.strip()]
        if schemas:
            path = sql.SQL(", ").join(map(sql.Identifier, schemas))
            self._conn.execute(sql.SQL("alter database {} set search_path = {}").format(sql.Identifier(name), path))

    def _drop(self, name: str, *, force: bool = True) -> None:
        row = self._conn.execute(
            "select datistemplate from pg_catalog.pg_database where datname = %s", [name]
        ).fetchone()
        if row is None:
            return
        if row[0]:
            self._execute("alter database {} with is_template false", name)
        self._execute("drop database if exists {}" + (" with (force)" if force else ""), name)


def _lock_key(run: str) -> int:
    """The second half of a run's advisory lock, a positive 31-bit number."""
    if not re.fullmatch(r"[0-9]+_[0-9a-f]{8}", run):
        raise ValueError(f"no run {run!r}: it is the `run` of a RunDatabases")
    return int(run.rpartition("_")[2], 16) & 0x7FFFFFFF

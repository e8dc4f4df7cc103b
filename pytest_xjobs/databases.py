"""The databases of one test run on one server: a sealed template, clones of it, and removing what dead runs left.

psycopg comes in when a connection is made.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, LiteralString, Self

from pytest_xjobs.leaks import sessions
from pytest_xjobs.provision import Server, ServerError
from pytest_xjobs.reset import KEPT_TABLES, Database, ResetMode

if TYPE_CHECKING:
    from psycopg import Connection

__all__ = ["DatabaseRefused", "RunDatabases", "TemplateUnsettled"]

SEARCH_PATH = "public, xjobs_time, pg_catalog"
"""Makes the clock's `now()` come before the built-in one; new tables still go to public."""

PREFIX = "xjobs_test_"
_OURS = re.compile(rf"{PREFIX}(?P<run>[0-9]+_(?P<key>[0-9a-f]{{8}}))_[a-z0-9_]+")
_SUFFIX = re.compile(r"[a-z0-9_]+")
_NAME_BYTES = 63
_RUN_LOCK = 0x786A6F62  # first half of an advisory lock's key: a run is alive
_BUILD_LOCK = 0x786A6F63  # a template is being built


class DatabaseRefused(ServerError):
    """The server did not let the plugin make a database."""


class TemplateUnsettled(ServerError):
    """The setup of the template left something undone: a transaction that was never committed."""


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
        left = sessions(self._conn, "a.xact_start is not null", name)
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

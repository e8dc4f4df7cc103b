"""Owns the databases that a check makes on a server, works in and removes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import errors as pg, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from xjobs.drivers.session import complete, lost, unreachable
from xjobs.errors import DdlScratchRefused

__all__ = ["PREFIX", "Server", "connected"]

PREFIX: Final = "xjobs_ddl"


class Server:
    """A Postgres server on which scratch databases can be made.

    Args:
        target: a connection string, or a connection whose server and role are taken; it is not used itself.
        prefix: what the names of the databases begin with.

    Raises:
        DriverUnavailable: the target is not a connection string.
    """

    def __init__(self, target: str | psycopg.Connection[Any], prefix: str = PREFIX) -> None:
        self.dsn = complete(target if isinstance(target, str) else _address(target))
        self._prefix = prefix

    @contextmanager
    def database(self) -> Iterator[str]:
        """The connection string of a new, empty database, which is removed at the end with the sessions in it.

        Raises:
            DdlScratchRefused: the role may not make databases.
            DriverUnavailable: the server does not answer.
        """
        name = f"{self._prefix}_{uuid.uuid4().hex[:12]}"
        with connected(self.dsn) as maintenance:
            _create(maintenance, name)
            try:
                yield make_conninfo(self.dsn, dbname=name)
            finally:
                maintenance.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@contextmanager
def connected(dsn: str, search_path: str = "public") -> Iterator[psycopg.Connection[Any]]:
    """An autocommit connection with a search path that the role's and the database's settings do not decide.

    Raises:
        DriverUnavailable: no connection, or it was lost.
    """
    began = time.perf_counter()
    dsn = complete(dsn)
    try:
        connection = psycopg.connect(dsn, autocommit=True, application_name="xjobs ddl", client_encoding="utf8")
    except psycopg.OperationalError as error:
        raise unreachable(error, dsn, began) from None
    with connection:
        try:
            connection.execute("select set_config('search_path', %s, false)", [search_path])
            yield connection
        except psycopg.OperationalError as error:
            if connection.broken:
                raise lost(error, dsn) from None
            raise


def _create(connection: psycopg.Connection[Any], name: str) -> None:
    # template0, because nobody can be connected to it, and because it holds nothing of the site's.
    statement = sql.SQL("create database {} template template0").format(sql.Identifier(name))
    try:
        connection.execute(statement)
    except pg.InsufficientPrivilege as error:
        role = connection.info.user
        raise DdlScratchRefused(
            f"role {role!r} may not make a scratch database ({error.diag.message_primary})",
            f'run ALTER ROLE "{role}" CREATEDB, or name a server where the role has it',
        ) from None


def _address(connection: psycopg.Connection[Any]) -> str:
    given = conninfo_to_dict(connection.info.dsn)
    password = connection.info.password  # which the dsn leaves out
    return make_conninfo("", **{**given, **({"password": password} if password else {})})

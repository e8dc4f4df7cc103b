"""A server that somebody else runs, named by a connection string.

psycopg comes in when it is connected to.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Self

from pytest_xjobs.provision.errors import ServerUnreachable
from pytest_xjobs.provision.url import libpq_url
from pytest_xjobs.provision.waiting import seconds

OLDEST_SERVER = 14
"""The oldest major version that the plugin's statements run on."""

_CONNECT_TIMEOUT = 5  # seconds, where a DSN sets none


@dataclasses.dataclass(frozen=True)
class Existing:
    """A server that somebody else runs, as a connection string names it; it is never stopped.

    Attributes:
        parameters: libpq's keywords for it, without the database.
    """

    host: str
    port: int
    user: str
    password: str = dataclasses.field(repr=False)
    version: str
    source: str
    maintenance_dbname: str
    disposable: bool
    parameters: Mapping[str, str] = dataclasses.field(repr=False)

    @classmethod
    def from_dsn(cls, dsn: str, source: str = "--xjobs-dsn", *, disposable: bool = False) -> Self:
        """Connect once and take down what the server is.

        Args:
            dsn: a URL or keywords, as libpq reads them; PG* variables fill in what it leaves out.
            source: where the DSN was given, for messages.
            disposable: the server ends with this run (a worker's view of the cluster that its controller started).

        Raises:
            ServerUnreachable: it does not answer within the DSN's `connect_timeout` (5 s by default), refuses, is
                older than version 14, or the DSN cannot be read. The password is never part of the text.
        """
        import psycopg
        from psycopg.conninfo import conninfo_to_dict

        try:
            given = {name: str(value) for name, value in conninfo_to_dict(dsn).items() if value is not None}
        except psycopg.ProgrammingError:
            # libpq quotes the part that it stumbles over, which may be the password.
            raise _unreadable(source) from None
        started = seconds()
        try:
            connection = psycopg.connect(dsn, **_timeout(given), autocommit=True)
        except psycopg.OperationalError as error:
            if _may_split_password(dsn):
                raise _unreadable(source) from None
            raise _unreachable(given, source, seconds() - started, str(error)) from None
        with connection:
            info = connection.info
            version = (info.parameter_status("server_version") or "").split(" ")[0]
            if info.server_version < OLDEST_SERVER * 10000:
                raise ServerUnreachable(
                    f"the server of {source} at {info.host}:{info.port} is PostgreSQL {version}",
                    f"use version {OLDEST_SERVER} or later",
                )
            # A list of hosts stays as it is; one that came from the environment is written down, for child processes.
            pinned = {"host": info.host, "port": str(info.port)} if "," not in given.get("host", "") else {}
            parameters = {**given, **pinned, "user": info.user}
            if info.password:
                parameters["password"] = info.password
            parameters.pop("dbname", None)
            return cls(
                info.host, info.port, info.user, info.password, version, source, info.dbname, disposable, parameters
            )

    def dsn(self, dbname: str) -> str:
        """The URL of one database."""
        return libpq_url({**self.parameters, "dbname": dbname})

    def stop(self) -> None:
        """Nothing: the server is not ours."""


def _timeout(given: Mapping[str, str]) -> dict[str, Any]:
    if "connect_timeout" in given or "PGCONNECT_TIMEOUT" in os.environ:
        return {}
    return {"connect_timeout": _CONNECT_TIMEOUT}


def _unreadable(source: str) -> ServerUnreachable:
    return ServerUnreachable(
        f"the connection string of {source} cannot be read",
        "give postgresql://USER:PASSWORD@HOST:PORT/DBNAME, special characters percent-encoded, or keywords",
    )


def _may_split_password(dsn: str) -> bool:
    """Whether a password's own `@` or `/`, not encoded, may have put a part of it where host, port or database are."""
    scheme, _, rest = dsn.partition("?")[0].partition("://")
    authority, _, path = rest.partition("/")
    return scheme in ("postgresql", "postgres") and (authority.count("@") > 1 or "@" in path)


def _unreachable(given: Mapping[str, str], source: str, elapsed: float, said: str) -> ServerUnreachable:
    from psycopg.pq import Conninfo

    values = {
        option.keyword.decode(): option.val.decode() for option in Conninfo.get_defaults() if option.val is not None
    } | dict(given)
    tried = " ".join(f"{name}={values.get(name) or '(default)'}" for name in ("host", "port", "dbname", "user"))
    if password := values.get("password"):
        said = said.replace(password, "***")
    fact = f"no PostgreSQL connection by {source}: tried {tried} for {elapsed:.1f} s; the answer was: {said.strip()}"
    return ServerUnreachable(fact, "start that server, or correct the connection string")

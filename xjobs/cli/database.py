"""Owns how a command reaches its database, and how it says that it could not.

Messages name the server, the database and the user that were tried, and never the password: no text is shown in which a
driver may repeat the connection string.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from xjobs.cli.failure import Failure

if TYPE_CHECKING:
    import psycopg

__all__ = ["Target", "connected", "conninfo", "dsn_option", "refused"]

_VARIABLES = ("XJOBS_DSN", "DATABASE_URL")
_CONNECT_SECONDS = 10
_F = TypeVar("_F", bound=Callable[..., Any])

# What to do about a refusal, by the beginning of its SQLSTATE. `{target}` and `{user}` are filled in.
_REMEDIES = {
    "42501": "grant user {user} what is missing, or connect as the owner of the schema",
    "25006": "connect to the primary, this server takes no writes",
    "55P03": "try again when the transactions that use the queue's tables have ended, see pg_stat_activity",
    "3F000": "set a search_path whose first schema exists, such as `options=-csearch_path%3Dpublic` in the DSN",
    "57014": "raise the role's statement_timeout for this command",
    "08": "the connection was lost: see the server's log",
    "57P": "the server ended the connection: see its log",
}


def dsn_option(function: _F) -> _F:
    """The `--dsn` option of a command; the command gets it as `dsn`, None if it was not given."""
    return click.option(
        "--dsn",
        metavar="DSN",
        help="Connection string, such as postgresql://user@host:5432/name. "
        f"Default: ${_VARIABLES[0]}, then ${_VARIABLES[1]}.",
    )(function)


@dataclass(frozen=True)
class Target:
    """What a connection string leads to, with libpq's own defaults filled in."""

    host: str
    port: str
    dbname: str
    user: str

    def __str__(self) -> str:
        return f"host {self.host}, port {self.port}, dbname {self.dbname}, user {self.user}"


@contextmanager
def connected(dsn: str | None) -> Iterator[tuple[psycopg.Connection[Any], Target]]:
    """Connect by `--dsn` or the environment, outside of any transaction, and close at the end.

    What Postgres refuses inside the block becomes a `Failure`, too.

    Raises:
        Failure: no connection string, one that is not readable, or no connection.
    """
    import psycopg

    text, origin = _connection_string(dsn)
    parameters = _parsed(text, origin)
    target = _target(parameters)
    began = time.monotonic()
    try:
        connection = psycopg.connect(**parameters, autocommit=True)
    except psycopg.Error as error:
        raise _unreachable(error, target, origin, time.monotonic() - began, parameters) from error
    with connection:
        try:
            yield connection, target
        except psycopg.Error as error:
            raise refused(error, target, time.monotonic() - began) from error


def conninfo(dsn: str | None) -> str:
    """The connection string of `--dsn` or the environment, in libpq's form.

    Raises:
        Failure: none is given, or it is not readable.
    """
    from psycopg.conninfo import make_conninfo

    return make_conninfo(**_parsed(*_connection_string(dsn)))


def refused(error: psycopg.Error, target: Target, seconds: float) -> Failure:
    """The failure for a statement that Postgres refused after so many seconds."""
    state = error.sqlstate or "08000"
    remedy = next((remedy for code, remedy in _REMEDIES.items() if state.startswith(code)), "see the server's log")
    return Failure(
        f"Postgres refused after {seconds:.1f} s ({target}): {_first_line(error)} (SQLSTATE {state}): "
        f"{remedy.format(user=target.user)}"
    )


def _connection_string(dsn: str | None) -> tuple[str, str]:
    if dsn:
        return dsn, "--dsn"
    for variable in _VARIABLES:
        if text := os.environ.get(variable):
            return text, variable
    raise Failure(f"no database is named: give --dsn, or set {' or '.join(_VARIABLES)}")


def _parsed(text: str, origin: str) -> dict[str, Any]:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    # SQLAlchemy's URLs name a driver, libpq's do not.
    plain = re.sub(r"^postgres(?:ql)?\+\w+://", "postgresql://", text)
    try:
        parameters: dict[str, Any] = dict(conninfo_to_dict(plain))
    except psycopg.Error:
        # Neither the string nor libpq's message is shown, as both may hold the password; nor is the cause kept.
        raise Failure(
            f"{origin} is not a connection string that libpq reads: write postgresql://user:password@host:port/name, "
            "with special characters percent-encoded, or host=... port=... dbname=... user=..."
        ) from None
    if "PGCONNECT_TIMEOUT" not in os.environ:
        parameters.setdefault("connect_timeout", _CONNECT_SECONDS)
    parameters.setdefault("application_name", "xjobs")
    return parameters


def _target(parameters: dict[str, Any]) -> Target:
    from psycopg.pq import Conninfo

    defaults = {option.keyword.decode(): (option.val or b"").decode() for option in Conninfo.get_defaults()}

    def value(keyword: str) -> str:
        return str(parameters.get(keyword) or defaults.get(keyword) or "")

    user = value("user") or "(none)"
    host = value("host") or value("hostaddr") or "(local socket)"
    for secret in _secrets(parameters):
        host = host.replace(secret, "***")
    return Target(host, value("port") or "5432", value("dbname") or user, user)


def _unreachable(
    error: psycopg.Error, target: Target, origin: str, seconds: float, parameters: dict[str, Any]
) -> Failure:
    said = _first_line(error)
    for secret in _secrets(parameters):
        said = said.replace(secret, "***")
    return Failure(
        f"no connection after {seconds:.1f} s, tried {target} (from {origin}): {said}: check that the server runs "
        "there, and that the database and the user exist"
    )


def _secrets(parameters: dict[str, Any]) -> list[str]:
    # libpq reads a URL up to the first @, so the end of a password with an unencoded @ is taken for part of the host.
    # The password that it did read is in none of its messages.
    secrets = [part.rpartition("@")[0] for part in str(parameters.get("host") or "").split(",")]
    return [secret for secret in secrets if secret]


def _first_line(error: psycopg.Error) -> str:
    message = error.diag.message_primary or str(error)
    return (message.strip().splitlines() or [type(error).__name__])[0]

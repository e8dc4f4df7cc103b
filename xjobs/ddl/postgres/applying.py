"""Owns applying a DDL source to a database, up to what Postgres refuses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from xjobs.ddl.postgres.places import Place
from xjobs.ddl.sources import Source

__all__ = ["Refusal", "apply", "said"]


@dataclass(frozen=True)
class Refusal:
    """A statement that Postgres refused: where, and what Postgres says."""

    place: Place
    message: str


def apply(source: Source, connection: psycopg.Connection[Any]) -> Refusal | None:
    """Run the source's statements one by one, up to the first that is refused; answers that one.

    A transaction that the source begins and does not end is rolled back, as when psql runs it.

    Raises:
        DdlSyntaxInvalid: it is no SQL.
        psycopg.OperationalError: the connection was lost.
    """
    try:
        for statement in source.statements:
            try:
                connection.execute(statement.text.encode(), prepare=False)
            except psycopg.Error as error:
                if connection.broken:
                    raise
                position = error.diag.statement_position
                offset = statement.start + (int(position) - 1 if position else 0)
                return Refusal(Place(source, statement, offset), said(error))
        return None
    finally:
        _end(connection)


def _end(connection: psycopg.Connection[Any]) -> None:
    status = connection.info.transaction_status
    if status is TransactionStatus.ACTIVE:
        connection.close()  # a copy waits for data that nobody has
    elif not connection.closed and status is not TransactionStatus.IDLE:
        connection.rollback()


def said(error: psycopg.Error) -> str:
    """What Postgres says, on one line, without the position."""
    return error.diag.message_primary or (str(error).strip().splitlines() or [type(error).__name__])[0]

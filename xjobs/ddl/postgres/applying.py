"""Owns applying a DDL source to a database, and where in the source the things that it makes come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from xjobs.ddl.findings import Finding, Rule
from xjobs.ddl.lexer import Kind, Token
from xjobs.ddl.positions import shown
from xjobs.ddl.sources import Source
from xjobs.ddl.split import Statement

__all__ = ["Place", "Refusal", "apply", "origin", "said"]


@dataclass(frozen=True)
class Place:
    """A place of a source: an offset in its text, and the statement there; None for the source as a whole."""

    source: Source
    statement: Statement | None = None
    offset: int | None = None

    def finding(self, rule: Rule, message: str, fix: str | None = None) -> Finding:
        """A finding at this place; its fix is the rule's where no better one is known."""
        start = self.offset if self.offset is not None else self.statement.start if self.statement else 0
        line, column = self.source.position(start)
        text = self.statement.text if self.statement else self.source.text
        return Finding(self.source.name, line, column, rule.id, shown(text), message, fix or rule.fix)


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
        if not connection.closed and connection.info.transaction_status is not TransactionStatus.IDLE:
            connection.rollback()


def origin(sources: Sequence[Source], *names: str) -> Place:
    """The last statement that mentions these names in this order, at the last of them; else all of the last source.

    Drops do not count, as what they name is gone. Names are compared as the catalog has them.
    """
    for source in reversed(sources):
        for statement in reversed(source.statements):
            offset = _offset(statement, names)
            if offset is not None:
                return Place(source, statement, offset)
    return Place(sources[-1])


def _offset(statement: Statement, names: Sequence[str]) -> int | None:
    if statement.code[0].text.lower() == "drop":
        return None
    wanted = list(names)
    for token in statement.code:
        if _name(token) == wanted[0]:
            wanted.pop(0)
            if not wanted:
                return token.start
    return None


def _name(token: Token) -> str:
    """What a token names, as Postgres folds it; the text itself where it is no name."""
    if token.kind is Kind.NAME:
        return token.text.strip('"').replace('""', '"')
    return token.text.lower() if token.kind is Kind.WORD else token.text


def said(error: psycopg.Error) -> str:
    """What Postgres says, on one line, without the position."""
    return error.diag.message_primary or (str(error).strip().splitlines() or [type(error).__name__])[0]

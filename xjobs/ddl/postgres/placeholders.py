"""Owns turning the placeholders of Python libraries into the `$1` that Postgres reads."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

from xjobs.ddl.lexer import Kind
from xjobs.ddl.split import Statement

__all__ = ["Native", "native"]

_PSYCOPG: Final = re.compile(r"%(?:\((?P<name>[^()]+)\))?[sbt](?!\w)|%%")
_NAMED: Final = re.compile(r"(?<![\w\]:]):(?P<name>[A-Za-z_]\w*)")


@dataclass(frozen=True)
class Native:
    """A statement as Postgres takes it.

    Attributes:
        text: the statement, its parameters written `$1`, `$2`, ...
        moves: where in `text` a piece of the original begins, and the offset of that piece, in order of both.
    """

    text: str
    moves: tuple[tuple[int, int], ...]

    def offset(self, position: int) -> int:
        """The offset in the script of what is at an offset of `text`."""
        here, there = self.moves[bisect_right(self.moves, position, key=lambda move: move[0]) - 1]
        return there + position - here


def native(statement: Statement) -> Native:
    """A statement with `%s`, `%(name)s` (psycopg) or `:name` (SQLAlchemy) replaced; one with `$1` stays as it is."""
    if any(token.kind is Kind.PARAMETER for token in statement.code):
        return Native(statement.text, ((0, statement.start),))
    pieces: list[str] = []
    moves = [(0, statement.start)]
    numbers: dict[str, int] = {}
    taken = length = 0
    for start, end, name in _placeholders(statement):
        number = numbers.setdefault(name or f"%{start}", len(numbers) + 1)
        pieces += [statement.text[taken:start], f"${number}"]
        length += len(pieces[-2]) + len(pieces[-1])
        moves.append((length, statement.start + end))
        taken = end
    return Native("".join([*pieces, statement.text[taken:]]), tuple(moves))


def _placeholders(statement: Statement) -> list[tuple[int, int, str | None]]:
    """Where placeholders begin and end in the statement's text, and their names; strings and comments have none."""
    found = []
    for token in statement.code:
        form = _FORMS.get(token.text) if token.kind is Kind.SYMBOL else None
        match = form.match(statement.text, token.start - statement.start) if form else None
        if match is not None and match[0] != "%%":
            found.append((match.start(), match.end(), match["name"]))
    return found


_FORMS: Final = {"%": _PSYCOPG, ":": _NAMED}

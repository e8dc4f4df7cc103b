"""Owns places in DDL: where in the sources an object of the catalog comes from, and findings about that place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from xjobs.ddl.findings import Finding, Rule
from xjobs.ddl.lexer import Kind, Token
from xjobs.ddl.positions import shown
from xjobs.ddl.sources import Source
from xjobs.ddl.split import Statement

__all__ = ["Place", "origin"]


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


def origin(sources: Sequence[Source], noun: str, name: str) -> Place:
    """Where an object comes from: the last statement that says what it is, else what it hangs off, else everything.

    Args:
        noun: as `xjobs.catalog` has it: table, column, constraint, index, sequence, trigger, type or function.
        name: the object's, as the catalog has it; of a column, constraint or trigger `table.name`.
    """
    if noun == "function":
        name = name.partition("(")[0]
    table, _, part = name.rpartition(".")
    for source, statement in _backwards(sources):
        kind, at = _subject(statement.code)
        if _NOUNS.get(kind, kind) == noun and at is not None and _name(at) == part:
            return Place(source, statement, at.start)
        if kind == "table" and table and at is not None and _name(at) == table:
            member = _member(statement.code, part)
            if member is not None:
                return Place(source, statement, member.start)
    return origin(sources, "table", table) if table else Place(sources[-1])


def _backwards(sources: Sequence[Source]) -> Iterator[tuple[Source, Statement]]:
    for source in reversed(sources):
        for statement in reversed(source.statements):
            yield source, statement


# Kinds that the catalog has under another noun.
_NOUNS: Final = {"view": "table", "domain": "type", "procedure": "function"}
_VERBS: Final = frozenset({"create", "alter"})
# What may stand between the verb, the kind and the name.
_BETWEEN: Final = frozenset(
    {"or", "replace", "unique", "global", "local", "temporary", "temp", "unlogged", "foreign", "materialized"}
    | {"recursive", "constraint", "concurrently", "if", "not", "exists", "only"}
)


def _subject(code: Sequence[Token]) -> tuple[str, Token | None]:
    """What a statement makes or changes: its kind, and the token of its name without the schema."""
    words = [token for token in code if token.text.lower() not in _BETWEEN]
    if len(words) < _SHORTEST or words[0].text.lower() not in _VERBS:
        return "", None
    at = 2
    while at + 2 < len(words) and words[at + 1].text == ".":
        at += 2
    return words[1].text.lower(), words[at]


_SHORTEST: Final = 3  # create table t
_BEFORE_MEMBER: Final = frozenset({"(", ",", "column", "add", "alter", "exists", "constraint"})


def _member(code: Sequence[Token], name: str) -> Token | None:
    """The token where a table's statement begins to say what a column or constraint is."""
    for before, token in pairwise(code):
        if _name(token) == name and before.text.lower() in _BEFORE_MEMBER:
            return token
    return None


def _name(token: Token) -> str:
    """What a token names, as Postgres folds it; the text itself where it is no name."""
    if token.kind is Kind.NAME:
        return token.text.strip('"').replace('""', '"')
    return token.text.lower() if token.kind is Kind.WORD else token.text

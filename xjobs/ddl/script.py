"""Owns what a text rule looks at, and how it answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from xjobs.ddl.forms import Form, form_of
from xjobs.ddl.lexer import Kind, Token, tokenize
from xjobs.ddl.sources import Source
from xjobs.ddl.split import Statement
from xjobs.errors import DdlSyntaxInvalid

__all__ = ["Edit", "Found", "Placed", "Script"]


class Edit(NamedTuple):
    """A change of a source's text: what is from `start` to `end` becomes `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Found:
    """A place that breaks a rule: from `start` to `end` of a source's text, what is wrong, and edits that mend it."""

    source: Source
    start: int
    end: int
    message: str
    edits: tuple[Edit, ...] = ()


@dataclass(frozen=True)
class Placed:
    """A statement and the source it is of."""

    source: Source
    statement: Statement

    @property
    def code(self) -> tuple[Token, ...]:
        """The statement's tokens without spaces and comments."""
        return self.statement.code

    @cached_property
    def form(self) -> Form:
        """What the statement does."""
        return form_of(self.code)

    @cached_property
    def code_with_bodies(self) -> tuple[Token, ...]:
        """The code, with the tokens of dollar-quoted bodies of functions and `do` blocks in the place of those.

        A body in another language than SQL and PL/pgSQL need not be readable; nothing is then in its place.
        """
        if not self.code or self.code[0].text.lower() not in ("create", "do"):
            return self.code
        return tuple(inner for token in self.code for inner in _opened(token))

    def found(self, message: str, *tokens: Token, edits: tuple[Edit, ...] = ()) -> Found:
        """A finding about the tokens, first and last of a stretch, or about the whole statement."""
        if not tokens:
            return Found(self.source, self.statement.start, self.statement.end, message, edits)
        return Found(self.source, tokens[0].start, tokens[-1].end, message, edits)


@dataclass(frozen=True)
class Script:
    """What is checked together.

    Attributes:
        ddl: what makes the schema, in the order in which it is applied.
        queries: what is sent to that schema.
        baseline: the DDL as it was released.
        names: of all rules and groups.
    """

    ddl: tuple[Source, ...]
    queries: tuple[Source, ...] = ()
    baseline: tuple[Source, ...] = ()
    names: frozenset[str] = frozenset()

    @cached_property
    def statements(self) -> tuple[Placed, ...]:
        """The statements of the DDL, in order."""
        return tuple(_placed(self.ddl))

    @cached_property
    def query_statements(self) -> tuple[Placed, ...]:
        """The queries."""
        return tuple(_placed(self.queries))

    @cached_property
    def baseline_statements(self) -> tuple[Placed, ...]:
        """The statements of the released DDL."""
        return tuple(_placed(self.baseline))

    @property
    def everything(self) -> tuple[Placed, ...]:
        """The statements of the DDL and the queries."""
        return self.statements + self.query_statements


def _opened(token: Token) -> Iterator[Token]:
    if token.kind is not Kind.DOLLAR:
        yield token
        return
    opening = token.text.index("$", 1) + 1
    try:
        inside = [inner for inner in tokenize(token.text[opening:-opening]) if inner.is_code]
    except DdlSyntaxInvalid:
        inside = []
    for inner in inside:
        yield Token(inner.kind, inner.text, token.start + opening + inner.start)


def _placed(sources: tuple[Source, ...]) -> Iterator[Placed]:
    for source in sources:
        for statement in source.statements:
            yield Placed(source, statement)

"""Owns splitting a script into its statements, as Postgres itself would."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from xjobs.ddl.lexer import Kind, Token, syntax_error, tokenize
from xjobs.ddl.positions import Positions
from xjobs.errors import DdlSyntaxInvalid

__all__ = ["Statement", "split_statements", "statements_of"]


@dataclass(frozen=True)
class Statement:
    """One statement of a script.

    Attributes:
        text: from its first to its last character of code, as written, without the `;`. Comments before the first and
            after the last are not in it, those between are.
        start: offset of its first character in the script, from 0, in characters.
        line: line of its first character, from 1.
        column: column of its first character, from 1, in characters.
        tokens: all its tokens, the spaces and comments before and after its text included, without the `;`.
        semicolon: the `;` that ends it; None for the last statement of a script that does not end in one.
    """

    text: str
    start: int
    line: int
    column: int
    tokens: tuple[Token, ...]
    semicolon: Token | None

    @property
    def end(self) -> int:
        """Offset of the first character after its text."""
        return self.start + len(self.text)

    @cached_property
    def code(self) -> tuple[Token, ...]:
        """Its tokens without spaces and comments."""
        return tuple(token for token in self.tokens if token.is_code)

    @property
    def comments(self) -> tuple[Token, ...]:
        """The comments before, in and after it, up to its `;`."""
        return tuple(token for token in self.tokens if token.kind is Kind.COMMENT)


def split_statements(text: str) -> list[Statement]:
    """The statements of a script, in its order; empty ones and those of comments only are left out.

    A `;` ends a statement unless it is in a string, a dollar quote, a quoted name, a comment (which may be nested),
    parentheses, or the `begin atomic` body of a function: what psql does, and what Postgres sees.

    Raises:
        DdlSyntaxInvalid: a quote, comment, parenthesis or `begin atomic` that does not end, or what is not SQL (psql's
            own commands, NUL); `line` and `column` say where.
    """
    return statements_of(text, tokenize(text))


def statements_of(text: str, tokens: Iterable[Token]) -> list[Statement]:
    """The statements of a script whose tokens are known; see `split_statements`."""
    positions = Positions(text)
    return [_statement(text, of_one, semicolon, positions) for of_one, semicolon in _cut(text, tokens)]


def _statement(text: str, tokens: list[Token], semicolon: Token | None, positions: Positions) -> Statement:
    code = [token for token in tokens if token.is_code]
    start, end = code[0].start, code[-1].end
    return Statement(text[start:end], start, *positions.of(start), tuple(tokens), semicolon)


def _cut(text: str, all_tokens: Iterable[Token]) -> Iterator[tuple[list[Token], Token | None]]:
    tokens: list[Token] = []
    nesting = _Nesting(text)
    for token in all_tokens:
        if token.text == ";" and not nesting.is_open:
            if nesting.has_code:
                yield tokens, token
            tokens, nesting = [], _Nesting(text)
            continue
        tokens.append(token)
        if token.is_code:
            nesting.see(token)
    nesting.check_closed()
    if nesting.has_code:
        yield tokens, None


class _Nesting:
    """What is open at a place of a statement: parentheses, and the `begin atomic` of a function or procedure."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._open: list[Token] = []
        self._first_words: list[str] = []
        self._body: Token | None = None
        self._previous = ""

    @property
    def has_code(self) -> bool:
        return self._previous != ""

    @property
    def is_open(self) -> bool:
        return bool(self._open) or self._body is not None

    def see(self, token: Token) -> None:
        word = token.text.lower() if token.kind is Kind.WORD else token.text
        if len(self._first_words) < len(_LONGEST_START):
            self._first_words.append(word)
        if word in _CLOSER_OF:
            self._open.append(token)
        elif word in _CLOSER_OF.values():
            self._close(token)
        elif word == "atomic" and self._previous == "begin" and not self.is_open and self._creates_routine():
            self._body = token
        elif word == "end" and self._body is not None and not self._open and self._previous in (";", "atomic"):
            # Each statement of a body ends in a semicolon, so this `end` is of no `case` and no label.
            self._body = None
        self._previous = word

    def _close(self, token: Token) -> None:
        opener = self._open.pop() if self._open else None
        if opener is None or _CLOSER_OF[opener.text] != token.text:
            raise self._error(token, "closes nothing", "take it out, or open it before")

    def _creates_routine(self) -> bool:
        words = [word for word in self._first_words if word not in ("or", "replace")]
        return words[0] == "create" and words[1] in ("function", "procedure")

    def check_closed(self) -> None:
        for token in self._open:
            raise self._error(token, "is not closed", f"close it with {_CLOSER_OF[token.text]}")
        if self._body is not None:
            raise self._error(
                self._body, "has no end", "end the body with `end`, after the semicolon of its last statement"
            )

    def _error(self, token: Token, fact: str, remedy: str) -> DdlSyntaxInvalid:
        return syntax_error(self._text, token.start, f"{token.text} {fact}", remedy)


_LONGEST_START = ("create", "or", "replace", "function")
_CLOSER_OF = {"(": ")", "[": "]"}

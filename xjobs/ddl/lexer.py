"""Owns cutting SQL text into tokens, by the rules of Postgres' own scanner.

Every character belongs to exactly one token, so offsets are those of the text. Strings are read as under
`standard_conforming_strings`, Postgres' default since 9.1. docs/decisions/0011 says why this is not sqlparse.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from xjobs.ddl.positions import Positions, shown
from xjobs.errors import DdlSyntaxInvalid

__all__ = ["Kind", "Token", "syntax_error", "tokenize"]


class Kind(Enum):
    """What a token is; `WORD` is a keyword or a name without quotes, `NAME` one in quotes."""

    SPACE = "space"
    COMMENT = "comment"
    STRING = "string"
    DOLLAR = "dollar-quoted string"
    NAME = "quoted name"
    WORD = "word"
    NUMBER = "number"
    PARAMETER = "parameter"
    SYMBOL = "symbol"


class Token(NamedTuple):
    """A piece of the text: its kind, its text as written, and where it begins, counted in characters from 0."""

    kind: Kind
    text: str
    start: int

    @property
    def end(self) -> int:
        """Offset of the first character after it."""
        return self.start + len(self.text)

    @property
    def is_code(self) -> bool:
        """Whether Postgres would see it: neither space nor comment."""
        return self.kind is not Kind.SPACE and self.kind is not Kind.COMMENT


# Branches that only open something (a quote, a comment) are completed by `_CLOSERS`.
_TOKEN = re.compile(
    r"""
      (?P<SPACE>[ \t\n\r\f\v]+)
    | (?P<LINE>--[^\n\r]*)
    | (?P<BLOCK>/\*)
    | (?P<ESCAPED>[eE]')
    | (?P<PLAIN>(?:[bBxXnN]|[uU]&)?')
    | (?P<NAME>(?:[uU]&)?")
    | (?P<DOLLAR>\$(?:[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_\u0080-\U0010ffff]*)?\$)
    | (?P<WORD>[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_$\u0080-\U0010ffff]*)
    | (?P<NUMBER>(?:[0-9][0-9_]*(?:\.(?!\.)[0-9_]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<PARAMETER>\$[0-9]+)
    | (?P<SYMBOL>::|:=|=>|<=|>=|<>|!=|\|\||[-+*/<>=~!@\#%^&|`?;,.()\[\]:])
    """,
    re.VERBOSE,
)
_REST_OF_PLAIN = re.compile(r"[^']*+(?:''[^']*+)*+'")
_REST_OF_ESCAPED = re.compile(r"[^'\\]*+(?:(?:''|\\.)[^'\\]*+)*+'", re.DOTALL)
_REST_OF_NAME = re.compile(r'[^"]*+(?:""[^"]*+)*+"')
_COMMENT_EDGE = re.compile(r"/\*|\*/")

# Strings with a line break between them are one, of the kind of the first: in E'a' newline 'b\'' both have escapes.
_CONTINUES = re.compile(r"(?:[ \t\f\v]|--[^\n\r]*)*[\n\r](?:[ \t\n\r\f\v]|--[^\n\r]*[\n\r])*'")

_KINDS = {
    "SPACE": Kind.SPACE,
    "LINE": Kind.COMMENT,
    "BLOCK": Kind.COMMENT,
    "ESCAPED": Kind.STRING,
    "PLAIN": Kind.STRING,
    "NAME": Kind.NAME,
    "DOLLAR": Kind.DOLLAR,
    "WORD": Kind.WORD,
    "NUMBER": Kind.NUMBER,
    "PARAMETER": Kind.PARAMETER,
    "SYMBOL": Kind.SYMBOL,
}


def tokenize(text: str) -> Iterator[Token]:
    """Yield the tokens of a text; joined they are the text again.

    Raises:
        DdlSyntaxInvalid: a quote or comment that does not end, or a character that begins nothing in SQL (a backslash,
            as psql's own commands have it, or NUL); position named.
    """
    at, length, continued_at = 0, len(text), -1
    while at < length:
        match = _TOKEN.match(text, at)
        if match is None:
            raise _no_token(text, at)
        branch = "ESCAPED" if at == continued_at else match.lastgroup or ""
        end = _CLOSERS[branch](text, match) if branch in _CLOSERS else match.end()
        yield Token(_KINDS[branch], text[at:end], at)
        if branch == "ESCAPED" and (continued := _CONTINUES.match(text, end)) is not None:
            continued_at = continued.end() - 1
        at = end


def _end_of_comment(text: str, match: re.Match[str]) -> int:
    depth, at = 1, match.end()
    while depth:
        edge = _COMMENT_EDGE.search(text, at)
        if edge is None:
            raise _unclosed(text, match, "a comment", "*/")
        depth += 1 if edge[0] == "/*" else -1
        at = edge.end()
    return at


def _end_of_plain(text: str, match: re.Match[str]) -> int:
    return _end_of(_REST_OF_PLAIN, text, match, "a string", "'")


def _end_of_escaped(text: str, match: re.Match[str]) -> int:
    return _end_of(_REST_OF_ESCAPED, text, match, "a string", "'")


def _end_of_name(text: str, match: re.Match[str]) -> int:
    return _end_of(_REST_OF_NAME, text, match, "a quoted name", '"')


def _end_of(rest: re.Pattern[str], text: str, match: re.Match[str], noun: str, closer: str) -> int:
    closed = rest.match(text, match.end())
    if closed is None:
        raise _unclosed(text, match, noun, closer)
    return closed.end()


def _end_of_dollar(text: str, match: re.Match[str]) -> int:
    at = text.find(match[0], match.end())
    if at < 0:
        raise _unclosed(text, match, "a dollar-quoted string", match[0])
    return at + len(match[0])


_CLOSERS = {
    "BLOCK": _end_of_comment,
    "ESCAPED": _end_of_escaped,
    "PLAIN": _end_of_plain,
    "NAME": _end_of_name,
    "DOLLAR": _end_of_dollar,
}


def _unclosed(text: str, match: re.Match[str], noun: str, closer: str) -> DdlSyntaxInvalid:
    return syntax_error(
        text, match.start(), f"{noun} does not end: {shown(text[match.start() :])}", f"close it with {closer}"
    )


_REMEDIES = {
    "\\": "commands of psql are not SQL, take them out",
    "\0": "Postgres takes no NUL, take it out",
    "{": "check the text that the template gives, not the template",
    "}": "check the text that the template gives, not the template",
    "$": "a dollar quote is $$ or $tag$, a parameter is $1",
}


def _no_token(text: str, at: int) -> DdlSyntaxInvalid:
    fact = f"{text[at]!r} begins nothing in SQL: {shown(text[at:])}"
    return syntax_error(text, at, fact, _REMEDIES.get(text[at], "take it out"))


def syntax_error(text: str, offset: int, problem: str, remedy: str) -> DdlSyntaxInvalid:
    """The error about what is at `offset` of a text; `problem` is the fact without the position."""
    line, column = Positions(text).of(offset)
    fact = f"line {line}, column {column}: {problem}"
    return DdlSyntaxInvalid(fact, remedy, problem=problem, line=line, column=column)

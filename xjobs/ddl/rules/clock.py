"""Owns the rules about the clock: tests move now(), so DDL and queries have to ask it and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator

from xjobs.ddl.findings import Rule
from xjobs.ddl.lexer import Kind, Token
from xjobs.ddl.script import Edit, Found, Placed, Script

__all__ = ["RULES"]

# Keywords, so no function of a schema searched earlier can stand in for them; and what is equal where something is.
_KEYWORDS = {
    "current_timestamp": "now()",
    "current_date": "now()::date",
    "current_time": None,
    "localtime": None,
    "localtimestamp": None,
}
_MOVED = ("now", "transaction_timestamp", "statement_timestamp", "clock_timestamp")
_LITERAL = re.compile(r"'\s*(now|today|tomorrow|yesterday)\s*'", re.IGNORECASE)
_TYPES = frozenset({"timestamptz", "timestamp", "date", "time", "timetz"})


def _keywords(script: Script) -> Iterator[Found]:
    for placed, code, at in _tokens(script):
        token = code[at]
        word = token.text.lower()
        if token.kind is Kind.WORD and word in _KEYWORDS and not _is_qualified(code, at):
            instead = None if _text(code, at + 1) == "(" else _KEYWORDS[word]
            edits = (Edit(token.start, token.end, instead),) if instead else ()
            yield placed.found(
                f"{word} is a keyword, which the clock of a test database cannot move", token, edits=edits
            )


def _is_qualified(code: tuple[Token, ...], at: int) -> bool:
    return at > 0 and code[at - 1].text == "."


def _functions(script: Script) -> Iterator[Found]:
    for placed, code, at in _tokens(script):
        token = code[at]
        word = token.text.lower()
        if token.kind is not Kind.WORD or _text(code, at + 1) != "(":
            continue
        if word == "timeofday" or (word == "age" and _has_one_argument(code, at + 1)):
            yield placed.found(f"{word}() asks the real clock, also in a test database", token)
        elif word in _MOVED and _text(code, at - 1) == "." and _text(code, at - 2) == "pg_catalog":
            edits = (Edit(code[at - 2].start, token.start, ""),)
            yield placed.found(f"pg_catalog.{word}() is the real clock by name", code[at - 2], token, edits=edits)


def _has_one_argument(code: tuple[Token, ...], opening: int) -> bool:
    depth = 0
    for token in code[opening:]:
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if depth == 0:
            return True
        if depth == 1 and token.text == ",":
            return False
    return True


def _literals(script: Script) -> Iterator[Found]:
    for placed, code, at in _tokens(script):
        token = code[at]
        if token.kind is Kind.STRING and _LITERAL.fullmatch(token.text) and _is_an_instant(code, at):
            yield placed.found(f"{token.text} is read once, when the statement is parsed, and is the real time", token)


def _is_an_instant(code: tuple[Token, ...], at: int) -> bool:
    if _text(code, at - 1) == "default":
        return _type_before(code, at - 1) in _TYPES
    return _text(code, at - 1) in _TYPES or (_text(code, at + 1) in ("::", "as") and _text(code, at + 2) in _TYPES)


def _type_before(code: tuple[Token, ...], at: int) -> str:
    """The type of the column whose default begins at a token: the first of a known one, back to the comma."""
    while at > 0 and _text(code, at) != ",":
        at -= 1
        if _text(code, at) in _TYPES:
            return _text(code, at)
    return ""


def _text(code: tuple[Token, ...], at: int) -> str:
    return code[at].text.lower() if 0 <= at < len(code) else ""


def _tokens(script: Script) -> Iterator[tuple[Placed, tuple[Token, ...], int]]:
    for placed in script.everything:
        code = placed.code_with_bodies
        for at in range(len(code)):
            yield placed, code, at


_GROUP = "clock"

RULES = (
    Rule(
        id="clock-keyword",
        group=_GROUP,
        reason="The clock of a test database stands in for functions such as now(), and cannot for keywords.",
        fix="Use now(), and now()::date for the date.",
        fixable=True,
        find=_keywords,
    ),
    Rule(
        id="clock-function",
        group=_GROUP,
        reason="A function that the clock of a test database does not stand in for answers the real time.",
        fix="Use now() without a schema, and age() with two arguments.",
        fixable=True,
        find=_functions,
    ),
    Rule(
        id="clock-literal",
        group=_GROUP,
        reason="A literal such as 'now' is turned into an instant once: as a default it is when the table was made.",
        fix="Use now().",
        find=_literals,
    ),
)

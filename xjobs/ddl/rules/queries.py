"""Owns the rules about queries alone."""

from __future__ import annotations

from collections.abc import Iterator

from xjobs.ddl.findings import Rule
from xjobs.ddl.lexer import Token
from xjobs.ddl.script import Found, Script

__all__ = ["RULES"]

_MESSAGE = "every column of a row, whatever columns there are"
_AFTER_STAR = frozenset({",", ")", "from", "into", "where", "union", "order", "limit"})

# A star behind these, or behind a dot, is every column; elsewhere it multiplies, or is that of count(*).
_BEFORE_STAR = frozenset({"select", "returning", "distinct", "all", ","})


def _stars(script: Script) -> Iterator[Found]:
    for placed in script.everything:
        depth_of_call = _inside_calls([token.text.lower() for token in placed.code])
        for at, token in enumerate(placed.code[1:], 1):
            before = placed.code[at - 1]
            if token.text != "*" or depth_of_call[at]:
                continue
            if before.text == ".":
                yield placed.found(_MESSAGE, placed.code[max(at - 2, 0)], token)
            elif before.text.lower() in _BEFORE_STAR and _ends_an_item(placed.code, at):
                yield placed.found(_MESSAGE, before, token)


def _ends_an_item(code: tuple[Token, ...], at: int) -> bool:
    return at + 1 == len(code) or code[at + 1].text.lower() in _AFTER_STAR


def _inside_calls(words: list[str]) -> list[bool]:
    """For each word whether the nearest parenthesis around it is that of a call such as count(*)."""
    answer, opened = [], [False]
    for at, word in enumerate(words):
        answer.append(opened[-1])
        if word == "(":
            before = words[at - 1] if at else ""
            opened.append(before.isidentifier() and before not in _NOT_CALLED)
        elif word == ")" and len(opened) > 1:
            opened.pop()
    return answer


_NOT_CALLED = frozenset(
    """
    in exists any some all array as from lateral join select where and or not union with then
    """.split()  # noqa: SIM905 - one word per line would fill a page
)

RULES = (
    Rule(
        id="select-star",
        group="queries",
        reason="A query for every column answers something else after the next alter, and reads what nobody needs.",
        fix="Name the columns.",
        find=_stars,
    ),
)

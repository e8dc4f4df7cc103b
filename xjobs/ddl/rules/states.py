"""Owns the rule that a state of a job named in SQL is one that jobs have."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from xjobs.ddl.findings import Rule
from xjobs.ddl.lexer import Kind, Token
from xjobs.ddl.script import Found, Placed, Script
from xjobs.states import ALL

__all__ = ["RULES"]

_TABLE = "x_jobs"
_COLUMN = "state"
_COMPARISONS = frozenset({"=", "<>", "!=", "is"})
# What may stand between `state =` and the literals it is compared with, or set to.
_BETWEEN = frozenset(
    """
    not in any some all array distinct from ( [ , text :: ] coalesce lower
    """.split()  # noqa: SIM905 - one word per line would fill a page
)


def _unknown_states(script: Script) -> Iterator[Found]:
    for placed in script.everything:
        code = placed.code
        if not any(token.text.lower() == _TABLE for token in code):
            continue
        for at, token in enumerate(code):
            if token.text.lower() == _COLUMN:
                for literal in _literals(code, at + 1):
                    yield from _unknown(placed, literal)


def _literals(code: tuple[Token, ...], at: int) -> Iterator[Token]:
    """The strings that a column is compared with, set to or defaults to, from the token behind its name on."""
    rest = code[at:]
    for index, token in enumerate(rest):
        word = token.text.lower()
        if token.kind is Kind.STRING:
            yield token
        elif word == "case" and index <= 1:
            yield from _results_of_case(rest[index:])
            return
        elif word not in _BETWEEN and word not in _COMPARISONS and not _is_definition(rest, index):
            return
        if word == ")" or (token.kind is Kind.STRING and not _goes_on(rest, index + 1)):
            return


def _is_definition(rest: tuple[Token, ...], index: int) -> bool:
    """Whether a column is being defined: `state text not null default 'ready'`."""
    return rest[0].text.lower() == "text" and rest[index].text.lower() in ("null", "default")


def _goes_on(rest: tuple[Token, ...], index: int) -> bool:
    return index < len(rest) and rest[index].text in (",", "::")


def _results_of_case(code: tuple[Token, ...]) -> Iterator[Token]:
    for before, token in pairwise(code):
        if token.kind is Kind.STRING and before.text.lower() in ("then", "else"):
            yield token
        if token.text.lower() == "end":
            return


def _unknown(placed: Placed, literal: Token) -> Iterator[Found]:
    value = literal.text[literal.text.index("'") + 1 : -1]
    states = value[1:-1].split(",") if value.startswith("{") else [value]
    for state in states:
        if state.strip() not in ALL:
            yield placed.found(f"{state.strip()!r} is no state of a job, those are {', '.join(ALL)}", literal)


RULES = (
    Rule(
        id="unknown-state",
        group="states",
        reason="A predicate with a state that no job has is true of nothing, and nobody is told.",
        fix="Write one of the states in xjobs.states.",
        find=_unknown_states,
    ),
)

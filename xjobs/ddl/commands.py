"""Owns which words begin a statement of Postgres: what begins with others is prose, or misspelt."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

from xjobs.ddl.split import Statement

__all__ = ["misspelt"]

# Up to Postgres 18.
_COMMANDS: Final = frozenset(
    """
    abort alter analyse analyze begin call checkpoint close cluster comment commit copy create deallocate declare delete
    discard do drop end execute explain fetch grant import insert listen load lock merge move notify prepare reassign
    refresh reindex release reset revoke rollback savepoint security select set show start table truncate unlisten
    update vacuum values with (
    """.split()  # noqa: SIM905 - one word per line would fill a page
)
# What follows `create`, `alter` and `drop`: kinds of objects, and what may stand before them.
_KINDS: Final = frozenset(
    """
    access aggregate cast collation constraint conversion database default domain event extension foreign function
    global group index language large local mapping materialized operator or owned policy procedural procedure
    publication recursive role routine rule schema sequence server statistics subscription system table tablespace temp
    temporary text transform trigger trusted type unique unlogged user view
    """.split()  # noqa: SIM905 - one word per line would fill a page
)


def misspelt(statement: Statement) -> tuple[int, str, str] | None:
    """The word that keeps a statement from being one: its offset, what is wrong with it, and a remedy.

    None for a statement that begins as statements do; what follows is for a server to judge.
    """
    code = statement.code
    words = [token.text.lower() for token in code[:2]]
    if words[0] not in _COMMANDS:
        return code[0].start, f"{code[0].text} begins no statement of Postgres", _remedy(words[0], _COMMANDS)
    if words[0] in ("create", "alter", "drop") and words[1:2] and words[1] not in _KINDS:
        problem = f"{code[1].text} is nothing that Postgres can {words[0]}"
        return code[1].start, problem, _remedy(words[1], _KINDS)
    return None


def _remedy(word: str, known: frozenset[str]) -> str:
    close = get_close_matches(word, known, n=1)
    return f"perhaps {close[0]} is meant" if close else "correct it, or put it in a comment"

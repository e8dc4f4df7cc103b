"""Owns the rules about the types and names that a schema chooses."""

from __future__ import annotations

import re
from collections.abc import Iterator

from xjobs.ddl.findings import Rule
from xjobs.ddl.forms import AlterTable, Column, CreateTable, name_of, words
from xjobs.ddl.lexer import Kind
from xjobs.ddl.script import Found, Placed, Script

__all__ = ["RULES"]

_NAME_BYTES = 63

_WITHOUT_ZONE = re.compile(r"timestamp( \( \d+ \))?( without time zone)?( \[.*)?")
_CHAR = re.compile(r"(char|character|bpchar|nchar|national char|national character)( \( \d+ \))?( \[.*)?")
_VARCHAR = re.compile(r"(varchar|(national )?(char|character) varying) \( \d+ \)( \[.*)?")
_SMALL = frozenset({"int", "integer", "int4", "smallint", "int2"})
_SERIAL = frozenset({"serial", "serial4", "smallserial", "serial2"})


def _columns(script: Script) -> Iterator[tuple[Placed, Column]]:
    for placed in script.statements:
        form = placed.form
        if isinstance(form, CreateTable):
            for column in form.columns:
                yield placed, column
        elif isinstance(form, AlterTable):
            for action in form.actions:
                if action.column is not None:
                    yield placed, action.column


def _of_type(script: Script, pattern: re.Pattern[str], message: str) -> Iterator[Found]:
    for placed, column in _columns(script):
        if pattern.fullmatch(column.type):
            yield placed.found(f"column {column.name} {message}", column.tokens[0], column.type_tokens[-1])


def _without_zone(script: Script) -> Iterator[Found]:
    return _of_type(script, _WITHOUT_ZONE, "holds a wall clock's reading, not an instant")


def _char(script: Script) -> Iterator[Found]:
    return _of_type(script, _CHAR, "is padded with spaces")


def _varchar(script: Script) -> Iterator[Found]:
    return _of_type(script, _VARCHAR, "has a limit that only an alter under an exclusive lock can change")


def _narrow_keys(script: Script) -> Iterator[Found]:
    for placed, column in _columns(script):
        kind = column.type
        if kind in _SERIAL or (kind in _SMALL and (column.has("generated") or _is_key(placed, column))):
            message = f"key {column.name} of type {kind} ends at {_maximum(kind)}"
            yield placed.found(message, column.tokens[0], column.type_tokens[-1])


def _is_key(placed: Placed, column: Column) -> bool:
    if column.has("primary", "key"):
        return True
    form = placed.form
    alone = ("primary", "key", "(", column.name, ")")
    return isinstance(form, CreateTable) and any(words(each)[-5:] == alone for each in form.constraints)


def _maximum(kind: str) -> str:
    return "32,767" if kind in ("smallint", "int2", "smallserial", "serial2") else "2,147,483,647"


def _long_names(script: Script) -> Iterator[Found]:
    for placed in script.everything:
        for token in placed.code:
            if token.kind in (Kind.WORD, Kind.NAME):
                size = len(name_of(token).encode())
                if size > _NAME_BYTES:
                    yield placed.found(f"a name of {size} bytes, of which Postgres keeps {_NAME_BYTES}", token)


_GROUP = "types"

RULES = (
    Rule(
        id="timestamp-without-zone",
        group=_GROUP,
        reason="What a timestamp without time zone means depends on the settings of whoever wrote it.",
        fix="Use timestamptz.",
        find=_without_zone,
    ),
    Rule(
        id="narrow-key",
        group=_GROUP,
        reason="Keys of 32 bits run out, and to widen one rewrites its table and every table that refers to it.",
        fix="Use bigint or uuid.",
        find=_narrow_keys,
    ),
    Rule(
        id="char-type",
        group=_GROUP,
        reason="char(n) pads with spaces, compares without them, and saves nothing.",
        fix="Use text.",
        find=_char,
    ),
    Rule(
        id="varchar-limit",
        group=_GROUP,
        reason="A length in the type is hard to change once the table is large.",
        fix="Use text, and a check constraint where a limit matters.",
        find=_varchar,
    ),
    Rule(
        id="long-name",
        group=_GROUP,
        reason="Postgres cuts names at 63 bytes with no more than a notice, and two cut names may be one.",
        fix="Choose a shorter name.",
        find=_long_names,
    ),
)

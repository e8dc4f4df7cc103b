"""Owns the form of a named statement: how it is written in a `.sql` file and what it is in Python.

A file holds statements, each under a header of exactly two lines:

    -- name: SQL_ACK (ids, worker_id, claims)
    -- One line that says what the statement guarantees.
    update ...

Lines before the first header are comments that say what the file owns. Parameters are `$1`, `$2`, ... in the header's
order, which is what Postgres itself reads, so the text in the file is the text that runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any, Self

__all__ = ["Statement", "parse"]

_HEADER_LIKE = re.compile(r"^[ \t]*--[ \t]*name[ \t]*:.*$", re.IGNORECASE | re.MULTILINE)
_HEADER = re.compile(r"-- name: (?P<name>SQL_[A-Z0-9_]+) \((?P<parameters>[^()]*)\)")
_PARAMETER_NAME = re.compile(r"[a-z][a-z0-9_]*")
_FORM = "-- name: SQL_NAME (first, second)"

# What may hold a `$1` that is not a parameter comes first, so that it is consumed before the last branch can see it.
_PARAMETER = re.compile(
    r"""--[^\n]* | /\*.*?\*/ | '(?:[^']|'')*' | "(?:[^"]|"")*" | (?<![\w$])\$(?P<number>[0-9]+)""",
    re.DOTALL | re.VERBOSE,
)


class Statement(str):
    """The text of one statement, ready to be sent, with what its header says.

    Attributes:
        name: the constant's name, such as `SQL_ACK`.
        parameters: names of `$1`, `$2`, ... in that order.
        query: the text as bytes, as psycopg takes it.
        guarantee: one line that says what the statement guarantees.
    """

    __slots__ = ("_ordered", "guarantee", "name", "parameters", "query")

    name: str
    parameters: tuple[str, ...]
    guarantee: str
    query: bytes
    _ordered: Callable[[dict[str, Any]], tuple[Any, ...]]

    def __new__(cls, text: str, name: str, parameters: tuple[str, ...], guarantee: str) -> Self:  # noqa: D102 - the class describes it
        self = super().__new__(cls, text)
        self.name = name
        self.parameters = parameters
        self.guarantee = guarantee
        self.query = text.encode()
        self._ordered = _reader(parameters)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.name, self.parameters, self.guarantee)

    def bind(self, /, **values: Any) -> tuple[Any, ...]:
        """Order the values for `$1`, `$2`, ...

        Raises:
            TypeError: a parameter is missing, or a value is for none of them; both are named.
        """
        if len(values) == len(self.parameters):
            try:
                return self._ordered(values)
            except KeyError:
                pass
        raise TypeError(self._mismatch(values))

    def _mismatch(self, values: dict[str, Any]) -> str:
        missing = [name for name in self.parameters if name not in values]
        unknown = [name for name in values if name not in self.parameters]
        faults = [f"missing {', '.join(missing)}"] * bool(missing) + [f"unknown {', '.join(unknown)}"] * bool(unknown)
        return f"{self.name}: {'; '.join(faults)}; its parameters are ({', '.join(self.parameters)})"


def _reader(parameters: tuple[str, ...]) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    """What orders a dict's values: `itemgetter`, which answers a tuple only from two names on."""
    if not parameters:
        return lambda _values: ()
    if len(parameters) == 1:
        only = parameters[0]
        return lambda values: (values[only],)
    return itemgetter(*parameters)


def parse(text: str, origin: str) -> Iterator[Statement]:
    """Yield the statements of one file's text, in its order.

    Args:
        text: the file's text.
        origin: the file's name, for messages.

    Raises:
        ValueError: a header is malformed, a statement is empty, or its parameters and its text disagree. The message
            begins with the file and the line.
    """
    headers = list(_HEADER_LIKE.finditer(text))
    before = text[: headers[0].start()] if headers else text
    if _without_comment_lines(before):
        raise ValueError(f"{origin}:1: SQL before the first header: begin each statement with `{_FORM}`")
    ends = [header.start() for header in headers[1:]] + [len(text)]
    for header, end in zip(headers, ends, strict=True):
        place = f"{origin}:{text.count(chr(10), 0, header.start()) + 1}"
        yield _statement(header[0], text[header.end() : end], place)


def _statement(header: str, body: str, place: str) -> Statement:
    match = _HEADER.fullmatch(header)
    parameters = tuple(match["parameters"].split(", ")) if match and match["parameters"] else ()
    if match is None or not all(map(_PARAMETER_NAME.fullmatch, parameters)):
        raise ValueError(f"{place}: malformed header {header.strip()!r}: write `{_FORM}`")
    name = match["name"]
    if len(set(parameters)) < len(parameters):
        raise ValueError(f"{place}: {name} names a parameter twice: ({', '.join(parameters)})")
    guarantee, _, sql = body.removeprefix("\n").partition("\n")
    if not guarantee.startswith("-- ") or not guarantee[3:].strip():
        raise ValueError(f"{place}: {name} lacks its second line: write `-- ` and what the statement guarantees")
    sql = sql.strip()
    if not _without_comment_lines(sql):
        raise ValueError(f"{place}: {name} has no SQL under its header")
    _check_parameters(sql, parameters, f"{place}: {name}")
    return Statement(sql, name, parameters, guarantee[3:].strip())


def _check_parameters(sql: str, parameters: tuple[str, ...], place: str) -> None:
    used = {int(match["number"]) for match in _PARAMETER.finditer(sql) if match["number"]}
    beyond = sorted(number for number in used if not 1 <= number <= len(parameters))
    if beyond:
        raise ValueError(f"{place} uses ${beyond[0]}, and its header names {len(parameters)} parameters")
    unused = [name for number, name in enumerate(parameters, 1) if number not in used]
    if unused:
        raise ValueError(f"{place} does not use its parameters {', '.join(unused)}")


def _without_comment_lines(sql: str) -> str:
    return "\n".join(line for line in sql.splitlines() if not line.lstrip().startswith("--")).strip()

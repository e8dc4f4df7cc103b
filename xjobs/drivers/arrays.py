"""How lists travel to Postgres: as binary arrays of the element type that the statement casts the parameter to.

The cast in the statement's text (`$1::uuid[]`) is the only declaration. It spares psycopg the search for a type that
fits every element, which costs more than the statement itself, and keeps the prepared statement the same when a list
happens to hold only None.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from psycopg import postgres, pq
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap, Dumper

from xjobs.sql import Statement

MICROSECOND = timedelta(microseconds=1)

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_HEADER = struct.Struct("!iiIii")
_LENGTH = struct.Struct("!i")
_NULL = _LENGTH.pack(-1)
_NONE_ID = id(None)
_CAST = re.compile(r"\$(\d+)::(\w+)\[\]")


class Array(list[Any]):
    """A list on its way to Postgres; there is a subclass for each element type."""


def _fixed(form: str, value: Callable[[Any], Any]) -> Callable[[Any], bytes]:
    """An encoder for elements of one size, with that size in front."""
    pack, size = struct.Struct(f"!i{form}").pack, struct.calcsize(f"!{form}")
    return lambda element: pack(size, value(element))


def interval(value: timedelta) -> bytes:
    """A timedelta as microseconds alone: a day of it is 24 hours in every time zone of the session."""
    return _INTERVAL.pack(value // MICROSECOND, 0, 0)


_INTERVAL = struct.Struct("!qii")


def _sized(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


_RAW: dict[str, Callable[[Any], bytes]] = {
    "text": str.encode,
    "uuid": lambda element: element.int.to_bytes(16, "big"),
}
"""Encoders of an element without its size, of the types that long lists are of."""

_ELEMENTS: dict[str, tuple[str, Callable[[Any], bytes]]] = {
    "bool": ("bool", _fixed("?", bool)),
    "int": ("int4", _fixed("i", int)),
    "bigint": ("int8", _fixed("q", int)),
    "text": ("text", lambda element: _sized(_RAW["text"](element))),
    "uuid": ("uuid", lambda element: _sized(_RAW["uuid"](element))),
    "timestamptz": ("timestamptz", _fixed("q", lambda element: (element - _EPOCH) // MICROSECOND)),
    "interval": ("interval", lambda element: _sized(interval(element))),
}
"""By the name in the cast: the type's name in psycopg, and the encoder of one element."""


def _joined(raw: Callable[[Any], bytes], elements: Sequence[Any]) -> bytes:
    """All elements with their sizes; as keys and ids, they are mostly of one size."""
    data = list(map(raw, elements))
    sizes = set(map(len, data))
    if len(sizes) == 1:
        size = _LENGTH.pack(sizes.pop())
        return size + size.join(data)
    pack = _LENGTH.pack
    return b"".join([part for each in data for part in (pack(len(each)), each)])


_KINDS: dict[str, type[Array]] = {name: type(f"Array_{name}", (Array,), {}) for name in _ELEMENTS}


def _dumper(name: str) -> type[Dumper]:
    type_name, encode = _ELEMENTS[name]
    raw = _RAW.get(name)
    info = postgres.types[type_name]

    def dump(_self: Dumper, elements: Sequence[Any]) -> Buffer:
        if not elements:
            return _HEADER.pack(0, 0, info.oid, 0, 0)[:12]
        first = elements[0]
        # As names, queues and what nobody has set: one value for the whole batch.
        if first == elements[-1] and elements.count(first) == len(elements):
            nulls = first is None
            body = (_NULL if nulls else encode(first)) * len(elements)
        else:
            nulls = _NONE_ID in map(id, elements)  # no comparison, which is slow for ids
            if nulls:
                body = b"".join([_NULL if element is None else encode(element) for element in elements])
            else:
                body = _joined(raw, elements) if raw is not None else b"".join(map(encode, elements))
        return _HEADER.pack(1, nulls, info.oid, len(elements), 1) + body

    return type(f"{name}_dumper", (Dumper,), {"format": pq.Format.BINARY, "oid": info.array_oid, "dump": dump})


def register(adapters: AdaptersMap) -> None:
    """Teach a set of adapters the arrays."""
    for name, kind in _KINDS.items():
        adapters.register_dumper(kind, _dumper(name))


@cache
def _wrappers(statement: Statement) -> tuple[type[Array] | None, ...]:
    casts = {int(number): _KINDS[kind] for number, kind in _CAST.findall(statement)}
    return tuple(casts.get(number) for number in range(1, len(statement.parameters) + 1)) if casts else ()


def wrap(statement: Statement, values: Sequence[Any]) -> Sequence[Any]:
    """The values of a statement with their lists marked by element type."""
    kinds = _wrappers(statement)
    if not kinds:
        return values
    return [value if kind is None or value is None else kind(value) for kind, value in zip(kinds, values, strict=True)]

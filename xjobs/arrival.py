"""Whether the body would receive what the caller passed: the same types, and nothing less."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from xjobs.errors import InputInvalid
from xjobs.fields import extra_of, is_model, shape_of
from xjobs.refusals import short

_PLAIN = (str, int, float, bool, type(None), dict, list)
# Whatever their JSON form gives back is equal; comparing would fail for a datetime in an hour that comes twice.
_LEAVES = (str, int, float, bool, type(None), UUID, datetime, date, time, timedelta, Decimal)


def check_arrival(given: Any, rebuilt: Any, path: str) -> None:
    """Refuse a value that the body would receive as another type, or as less, than the caller passed.

    A tuple for an unannotated parameter would arrive as a list, a datetime as text: the annotation is what brings the
    type back, so the error asks for it.

    Raises:
        InputInvalid: it would; `path` names the place.
    """
    if type(given) is type(rebuilt) and type(given) in _LEAVES:
        return
    shape = shape_of(given)
    if shape is not None:
        if type(given) is not type(rebuilt):
            raise _other_type(given, rebuilt, path)
        _check_fields(given, rebuilt, shape.names, path)
    elif type(given) is dict:
        _check_keys(given, rebuilt, path)
    elif isinstance(given, type(rebuilt)) or (isinstance(given, _PLAIN) and isinstance(rebuilt, type(given))):
        _check_inside(given, rebuilt, path)
    elif type(given) not in _PLAIN:  # the annotation says what becomes of plain JSON values
        raise _other_type(given, rebuilt, path)
    elif isinstance(rebuilt, datetime) and rebuilt.utcoffset() is None:
        raise naive_datetime(rebuilt, path)


def _check_inside(given: Any, rebuilt: Any, path: str) -> None:
    """What a value of the right type holds."""
    if isinstance(given, list | tuple):
        _check_items(given, rebuilt, path)
    elif isinstance(given, dict):
        _check_keys(given, rebuilt, path)
    elif isinstance(given, set | frozenset) and len(given) == len(rebuilt):
        if given != rebuilt:
            _check_items(sorted(given, key=repr), sorted(rebuilt, key=repr), path)
    elif not isinstance(given, (*_LEAVES, enum.Enum)) and given != rebuilt:
        raise InputInvalid(
            f"{path} is {short(given)}, but would arrive as {short(rebuilt)}",
            "pass a value that JSON keeps",
            path=path,
        )


def _check_items(given: Iterable[Any], rebuilt: Any, path: str) -> None:
    for index, (before, after) in enumerate(zip(given, rebuilt, strict=True)):
        check_arrival(before, after, f"{path}[{index}]")


def naive_datetime(value: datetime, path: str) -> InputInvalid:
    """The refusal of a datetime without a time zone."""
    return InputInvalid(
        f"{path} is the naive datetime {value.isoformat()}",
        "attach its time zone, for example value.replace(tzinfo=UTC)",
        path=path,
    )


def _other_type(given: Any, rebuilt: Any, path: str) -> InputInvalid:
    return InputInvalid(
        f"{path} is {short(given)} of type {type(given).__name__}, but would arrive as {type(rebuilt).__name__}",
        f"annotate the parameter with {type(given).__name__}, or pass the plain value",
        path=path,
    )


def _check_fields(given: Any, rebuilt: Any, names: Mapping[str, str], path: str) -> None:
    for name, out in names.items():
        check_arrival(getattr(given, name), getattr(rebuilt, name), path if out == "root" else f"{path}.{out}")
    _check_keys(dict(extra_of(given)), dict(extra_of(rebuilt)), path)
    if getattr(given, "__pydantic_private__", None) != getattr(rebuilt, "__pydantic_private__", None):
        raise InputInvalid(
            f"{path} is {short(given)} with private attributes, which JSON does not carry",
            "make them fields, or have them worked out anew",
            path=path,
        )


def _check_keys(given: dict[str, Any], rebuilt: Any, path: str) -> None:
    """A mapping: for one, or for an object whose fields it names. pydantic has rules of its own for further keys."""
    shape = shape_of(rebuilt)
    if shape is not None and is_model(type(rebuilt)):
        return
    names = {out: getattr(rebuilt, name) for name, out in shape.names.items()} if shape else rebuilt
    if not isinstance(names, dict):
        return
    if shape is not None and shape.tag is not None:
        names[shape.tag[0]] = shape.tag[1]
    for key, before in given.items():
        if key not in names:
            raise InputInvalid(
                f"{path} has the key {key!r}, which would not arrive",
                f"the keys of its type are {', '.join(map(repr, names)) or 'none'}",
                path=f"{path}.{key}",
            )
        check_arrival(before, names[key], f"{path}.{key}")

"""Whether the body would receive what the caller passed: an equal value of the same type, and nothing less."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from xjobs.errors import InputInvalid
from xjobs.fields import extra_of, is_model, shape_of
from xjobs.refusals import short

_PLAIN = (str, int, float, bool, type(None), dict, list)
_LEAVES = (str, int, float, bool, type(None), UUID, datetime, date, time, timedelta, Decimal)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_distance = datetime.__sub__  # subclasses answer with classes of their own
_MISSING = object()


def check_arrival(given: Any, rebuilt: Any, path: str) -> bool:
    """Refuse a value that the body would receive as another one, as another type, or as less than the caller passed.

    A tuple for an unannotated parameter would arrive as a list, a datetime as text: the annotation is what brings the
    type back, so the error asks for it. Inside an object with fields every value is compared, since what makes the
    object anew may change it: a validator, a `__post_init__`, a field of several types.

    Returns:
        Whether a plain value became an object with fields somewhere, which may have brought in values of its own.

    Raises:
        InputInvalid: it would; `path` names the place.
    """
    arrival = _Arrival()
    arrival.check(given, rebuilt, path)
    return arrival.made_fields


class _Arrival:
    """One comparison.

    Attributes:
        made_fields: whether a plain value became an object with fields.
    """

    def __init__(self) -> None:
        self.made_fields = False
        self._objects = 0  # how many objects with fields are around

    def check(self, given: Any, rebuilt: Any, path: str) -> None:
        kind = type(given)
        if kind is type(rebuilt) and kind in _LEAVES:
            # Elsewhere their JSON form gives back an equal one.
            if self._objects and not _equal(given, rebuilt):
                raise _changed(given, rebuilt, path)
            return
        shape = shape_of(given)
        if shape is not None:
            if kind is not type(rebuilt):
                raise self._other_type(given, rebuilt, path)
            self._check_fields(given, rebuilt, shape.names, path)
        elif kind is int and type(rebuilt) is float:
            if given != rebuilt:
                raise _changed(given, rebuilt, path)
        elif isinstance(given, type(rebuilt)):
            self._check_inside(given, rebuilt, path)
        elif self._objects or kind not in _PLAIN:
            raise self._other_type(given, rebuilt, path)
        elif isinstance(given, dict | list) and isinstance(rebuilt, kind):
            self._check_inside(given, rebuilt, path)
        else:
            self._check_made(given, rebuilt, path)

    def _check_inside(self, given: Any, rebuilt: Any, path: str) -> None:
        """What a value of the right type holds."""
        if isinstance(given, list | tuple):
            self._check_items(given, rebuilt, path)
        elif isinstance(given, dict):
            self._check_keys(given, rebuilt, path)
        elif isinstance(given, set | frozenset):
            if self._objects or given != rebuilt:
                self._check_items(*_paired(given, rebuilt), path)
        elif (self._objects or not isinstance(given, (*_LEAVES, enum.Enum))) and not _equal(given, rebuilt):
            raise _changed(given, rebuilt, path)

    def _check_items(self, given: Any, rebuilt: Any, path: str) -> None:
        if len(given) != len(rebuilt):
            raise _changed(given, rebuilt, path)
        for index, (before, after) in enumerate(zip(given, rebuilt, strict=True)):
            self.check(before, after, f"{path}[{index}]")

    def _check_keys(self, given: dict[str, Any], rebuilt: Mapping[str, Any], path: str) -> None:
        for key, before in given.items():
            if key not in rebuilt:
                raise InputInvalid(
                    f"{path} has the key {key!r}, which would not arrive",
                    f"the keys of its type are {', '.join(map(repr, rebuilt)) or 'none'}",
                    path=f"{path}.{key}",
                )
            self.check(before, rebuilt[key], f"{path}.{key}")
        if self._objects and len(given) != len(rebuilt):
            raise _changed(given, rebuilt, path)

    def _check_fields(self, given: Any, rebuilt: Any, names: Mapping[str, str], path: str) -> None:
        self._objects += 1
        for name, out in names.items():
            self.check(
                getattr(given, name), getattr(rebuilt, name, _MISSING), path if out == "root" else f"{path}.{out}"
            )
        self._check_keys(dict(extra_of(given)), dict(extra_of(rebuilt)), path)
        self._objects -= 1
        if getattr(given, "__pydantic_private__", None) != getattr(rebuilt, "__pydantic_private__", None):
            raise InputInvalid(
                f"{path} is {short(given)} with private attributes, which JSON does not carry",
                "make them fields, or have them worked out anew",
                path=path,
            )

    def _check_made(self, given: Any, rebuilt: Any, path: str) -> None:
        """What the annotation made of a plain value, or of one in a set, which is not known to be made of which."""
        shape = shape_of(rebuilt)
        if shape is not None:
            self.made_fields = True
            # pydantic has rules of its own for further keys.
            if isinstance(given, dict) and not is_model(type(rebuilt)):
                names = {out: getattr(rebuilt, name, _MISSING) for name, out in shape.names.items()}
                self._check_keys(given, names if shape.tag is None else {**names, shape.tag[0]: shape.tag[1]}, path)
        elif isinstance(rebuilt, tuple) and isinstance(given, list):
            self._check_items(given, rebuilt, path)
        elif isinstance(rebuilt, list | tuple | set | frozenset):
            for item in rebuilt:
                self._check_made(_MISSING, item, path)
        elif isinstance(rebuilt, datetime) and rebuilt.utcoffset() is None:
            raise naive_datetime(rebuilt, path)

    def _other_type(self, given: Any, rebuilt: Any, path: str) -> InputInvalid:
        kind = type(given).__name__
        if rebuilt is _MISSING:
            return InputInvalid(
                f"{path} is {short(given)}, but would not arrive", "have its class set it anew", path=path
            )
        if self._objects:
            arrives = f"{short(rebuilt)} of type {type(rebuilt).__name__}"
            remedy = f"annotate the field with {kind}, or give it what its annotation says"
        else:
            arrives = type(rebuilt).__name__
            remedy = f"annotate the parameter with {kind}, or pass the plain value"
        return InputInvalid(
            f"{path} is {short(given)} of type {kind}, but would arrive as {arrives}", remedy, path=path
        )


def naive_datetime(value: datetime, path: str) -> InputInvalid:
    """The refusal of a datetime without a time zone."""
    return InputInvalid(
        f"{path} is the naive datetime {value.isoformat()}",
        "attach its time zone, for example value.replace(tzinfo=UTC)",
        path=path,
    )


def _changed(given: Any, rebuilt: Any, path: str) -> InputInvalid:
    return InputInvalid(
        f"{path} is {short(given)}, but would arrive as {short(rebuilt)}",
        "pass a value that JSON keeps, and that its class keeps when it is made of it anew",
        path=path,
    )


def _equal(given: Any, rebuilt: Any) -> bool:
    if isinstance(given, datetime) and isinstance(rebuilt, datetime):
        # Datetimes of two zones are never equal in an hour that comes twice; the distances to a third are.
        return rebuilt.utcoffset() is not None and _distance(given, _EPOCH) == _distance(rebuilt, _EPOCH)
    return bool(given == rebuilt)


def _paired(given: Iterable[Any], rebuilt: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """The items of two sets in one order: those that are equal beside each other, or else all by their spelling."""
    before = sorted(given, key=repr)
    after = {item: item for item in rebuilt}
    if len(before) == len(after) and all(item in after for item in before):
        return before, [after[item] for item in before]
    return before, sorted(after, key=repr)

"""The types that annotations stand for when input is rebuilt: what is put in their place, and who rebuilds the rest.

A frozen clock puts classes of its own in the place of `datetime` and `date`. An annotation that is resolved meanwhile
names those, and a class keeps what its annotations were resolved to for as long as the process lives, so both ways lead
back to the real ones: `settled` for the parameters' own annotations, `rebuild_other` for those inside classes.
"""

from __future__ import annotations

import enum
import functools
import operator
import types
import typing
from collections import abc
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Union
from uuid import UUID

from xjobs.fields import is_model

_SCALARS = (str, int, float, types.NoneType, date, time, timedelta, Decimal, UUID, enum.Enum, types.UnionType)
_CONTAINERS = (
    *(list, dict, tuple, set, frozenset, abc.Iterable, abc.Collection),
    *(abc.Sequence, abc.MutableSequence, abc.Set, abc.MutableSet, abc.Mapping, abc.MutableMapping),
)


def settled(hint: Any) -> Any:
    """An annotation with real classes for those of a frozen clock, and datetimes that must have a time zone."""
    import msgspec

    hint = _named(hint)
    real = _real_class(hint)
    if real is datetime:
        return Annotated[datetime, msgspec.Meta(tz=True)]
    if real is not None:
        return real
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        inner, *notes = arguments
        # Said of a datetime it is said already, and msgspec wants it once.
        tz_is_said = _real_class(_named(inner)) is datetime
        metas = [note for note in notes if isinstance(note, msgspec.Meta) and not (tz_is_said and note.tz is not None)]
        return Annotated[(settled(inner), *metas)] if metas else settled(inner)
    if origin is Union or origin is types.UnionType:
        return functools.reduce(operator.or_, map(settled, arguments))
    if origin in _CONTAINERS:
        made: Any = origin
        return made[tuple(part if part is Ellipsis else settled(part) for part in arguments)]
    return hint


def has_fields(hint: Any) -> bool:
    """Whether an annotation may make objects with named fields of mappings, whose further keys are lost then."""
    hint = _named(hint)
    if typing.get_origin(hint) is Annotated:
        hint = _named(typing.get_args(hint)[0])
    made = typing.get_origin(hint) or hint
    if isinstance(made, type) and made not in _CONTAINERS and made is not Any and not issubclass(made, _SCALARS):
        return made is not object
    return any(map(has_fields, typing.get_args(hint)))


def holds_floats(hint: Any) -> bool:
    """Whether an annotation may make floats of integers, by its own words and not those of its classes."""
    hint = _named(hint)
    return hint is float or any(map(holds_floats, typing.get_args(hint)))


def _named(hint: Any) -> Any:
    """What a NewType or a `type` statement gives a name to."""
    while True:
        generic = typing.get_origin(hint)
        if hasattr(generic, "__value__"):
            kinds = dict(zip(generic.__type_params__, typing.get_args(hint), strict=False))
            named = generic.__value__
            parameters = tuple(kinds.get(kind, Any) for kind in getattr(named, "__parameters__", ()))
            hint = named[parameters] if parameters else named
        elif hasattr(hint, "__supertype__") or hasattr(hint, "__value__"):
            hint = getattr(hint, "__supertype__", None) or hint.__value__
        else:
            return hint


def rebuild_other(kind: Any, value: Any) -> Any:
    """Rebuild from JSON what msgspec does not know; a value of an unknown type is answered as it is, and refused there.

    Raises:
        ValueError: the value does not fit.
    """
    import msgspec

    real = _real_class(kind)
    if real is not None and real is not kind:
        try:
            return msgspec.convert(value, real)
        except msgspec.ValidationError as problem:
            raise ValueError(str(problem)) from None  # this kind gets its path
    if is_model(kind):
        return kind.model_validate_json(msgspec.json.encode(value))  # by JSON's rules also where the model is strict
    return value


def _real_class(hint: Any) -> type | None:
    """`datetime` or `date`, where a hint is that or what a frozen clock has put in its place."""
    if not isinstance(hint, type) or not issubclass(hint, date):
        return None
    real = next(base for base in hint.__mro__ if base.__module__ == "datetime")
    return real if hint is real or hint.__module__.startswith("freezegun") else None

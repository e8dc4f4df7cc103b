"""Objects with named fields that input may hold: what their fields are called in JSON, and pydantic's own rebuilding.

Dataclasses, attrs classes, `msgspec.Struct` and pydantic models are told by what their classes carry, so that none of
these libraries is imported here, or needed.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Shape(NamedTuple):
    """How an object with fields is written down.

    Attributes:
        names: the JSON name of each attribute, in order.
        tag: what is written before the fields: the name and value that tell the members of a union apart.
        is_array: whether it is an array of the values, without names.
        unnamed: the attributes that no one name stands for, by what their class takes them in from; such an object
            cannot be made anew.
    """

    names: Mapping[str, str]
    tag: tuple[str, Any] | None = None
    is_array: bool = False
    unnamed: Mapping[str, str] = MappingProxyType({})


def shape_of(value: Any) -> Shape | None:
    """The shape of an object with fields; None for every other value, classes too."""
    kind: Any = type(value)  # mypy holds classes of metaclasses to be unhashable
    return _shape_of_kind(kind)


@functools.lru_cache(maxsize=1000)
def _shape_of_kind(kind: Any) -> Shape | None:
    for recognised, shape in _KINDS:
        if hasattr(kind, recognised):
            return shape(kind)
    return None


def _of_dataclass(kind: Any) -> Shape:
    return Shape({field.name: field.name for field in dataclasses.fields(kind)})


def _of_struct(kind: Any) -> Shape:
    config = kind.__struct_config__
    tag = None if config.tag is None else (config.tag_field, config.tag)
    names = dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
    return Shape(names, tag, config.array_like)


def _of_attrs(kind: Any) -> Shape:
    return Shape({attribute.name: attribute.name for attribute in kind.__attrs_attrs__})


def _of_model(kind: Any) -> Shape:
    names = {name: _validated_name(name, field, kind.model_config) for name, field in kind.model_fields.items()}
    unnamed = {name: repr(kind.model_fields[name].validation_alias) for name, out in names.items() if out is None}
    return Shape({name: out or name for name, out in names.items()}, unnamed=unnamed)


def _validated_name(name: str, field: Any, config: Mapping[str, Any]) -> str | None:
    """The name under which the model takes the field in; the one it is put out with may differ.

    None when it takes it in from a place inside another value only.
    """
    alias = field.validation_alias
    if alias is None or not config.get("validate_by_alias", True):
        return name
    choices = [alias] if isinstance(alias, str) else getattr(alias, "choices", [])
    own = name if config.get("populate_by_name") or config.get("validate_by_name") else None
    return next((choice for choice in choices if isinstance(choice, str)), own)


_KINDS: tuple[tuple[str, Callable[[Any], Shape]], ...] = (
    ("__dataclass_fields__", _of_dataclass),
    ("__struct_config__", _of_struct),
    ("__attrs_attrs__", _of_attrs),
    ("__pydantic_fields_set__", _of_model),
)


def is_unset(value: Any) -> bool:
    """Whether this is what msgspec puts for a field that was not given, and leaves out of JSON."""
    msgspec = sys.modules.get("msgspec")
    return msgspec is not None and value is msgspec.UNSET


def is_model(kind: Any) -> bool:
    """Whether a class is a pydantic model (version 2); a pydantic dataclass is a dataclass."""
    return isinstance(kind, type) and hasattr(kind, "__pydantic_fields_set__")


def is_pydantic_dataclass(kind: Any) -> bool:
    """Whether a class is a pydantic dataclass itself; one that only inherits from one has no rules of its own."""
    return "__is_pydantic_dataclass__" in kind.__dict__


def made_by_its_rules(value: Any) -> Any:
    """A pydantic dataclass made anew of its fields by pydantic, which converting goes past.

    Raises:
        Exception: whatever its rules raise for these values.
    """
    kind: Any = type(value)
    return kind(
        **{
            _validated_name(name, field, kind.__pydantic_config__) or name: getattr(value, name)
            for name, field in kind.__pydantic_fields__.items()
            if field.init is not False
        }
    )


def is_root_model(kind: type) -> bool:
    """Whether a class is a pydantic model around one value, which is all that JSON holds of it."""
    return bool(getattr(kind, "__pydantic_root_model__", False))


def extra_of(model: Any) -> Mapping[str, Any]:
    """What a pydantic model holds beside its fields, where it allows that."""
    return getattr(model, "__pydantic_extra__", None) or {}


def leaf_of_model(value: Any) -> Any:
    """A value inside a pydantic model, of a type that pydantic brings along (`HttpUrl`, `IPv4Address`), as JSON.

    Raises:
        ValueError: pydantic does not know it either.
    """
    import pydantic_core

    return pydantic_core.to_jsonable_python(value)


def problem_of_model(problem: BaseException | None) -> tuple[tuple[str | int, ...], str] | None:
    """The first thing that pydantic refused: the steps to it from the model, and why; None when it was not pydantic."""
    errors: Any = getattr(problem, "errors", None)
    if errors is None:
        return None
    first = errors(include_url=False)[0]
    return first["loc"], first["msg"]

"""Job input in both directions: what the caller passes becomes strict JSON, and that becomes what the body receives.

One converter serves both ends. At enqueue the values are lowered to JSON and rebuilt at once by the body's annotations,
so a bad call fails in the caller; at run the stored JSON is rebuilt the same way. Everything refused is named by its
path, such as `input.items[3].when`.

JSON here is what `jsonb` holds and gives back unchanged (RFC 8259 without duplicate keys): finite numbers, integers
within 64 bits, text without NUL or lone surrogates, text keys. Three spellings are settled here so that every backend
stores the same: minus zero becomes zero, a float of 1e16 or more becomes the integer that it is, and keys are in the
order of jsonb (by length, then by bytes).
"""

from __future__ import annotations

import contextlib
import enum
import inspect
import math
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any
from uuid import UUID

from xjobs.arrival import check_arrival, naive_datetime
from xjobs.errors import DeclarationInvalid, InputInvalid
from xjobs.fields import (
    Shape,
    extra_of,
    is_model,
    is_pydantic_dataclass,
    is_root_model,
    is_unset,
    leaf_of_model,
    made_by_its_rules,
    problem_of_model,
    shape_of,
)
from xjobs.hints import has_fields, holds_floats, rebuild_other, settled
from xjobs.refusals import explain, short, spelled

MAX_DEPTH = 200
"""How deep input may nest; below the depth at which JSON readers give up."""

_INT_LOW, _INT_HIGH = -(2**63), 2**63 - 1
_EXACT = 2**53  # up to here every integer is a float as well
_WHOLE_FLOATS = 1e16  # from here on every float is whole, and jsonb prints it as an integer

_MINUTE = timedelta(minutes=1)


class Codec:
    """Converts the input of one job, by the parameters of its body.

    Attributes:
        parameters: the body's parameters without the context, by name.
    """

    def __init__(self, job: str, parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any]) -> None:
        self.job = job
        self.parameters = dict(parameters)
        self._hints = hints
        self._names = tuple(parameters)
        # Names that begin with two underscores mean something to classes: a parameter may have one, no field can.
        special = any(name.startswith("__") for name in parameters)
        self._attributes = tuple(f"p{place}" for place in range(len(parameters))) if special else self._names
        self._defaults = {n: p.default for n, p in parameters.items() if p.default is not inspect.Parameter.empty}
        self._positional = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters.values())
        self._positions = inspect.Signature(list(parameters.values()))
        self._in_jsonb_order = tuple(_in_jsonb_order(dict.fromkeys(parameters)))
        self._same_order = self._in_jsonb_order == self._names

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The call's arguments by parameter name, in order, defaults filled in.

        Raises:
            InputInvalid: an argument is missing, unknown or given twice.
        """
        names = self._names
        if not args and kwargs.keys() == self.parameters.keys():
            return kwargs
        if not kwargs and len(args) == len(names) == self._positional:
            return dict(zip(names, args, strict=True))
        try:
            bound = self._positions.bind(*args, **kwargs)
        except TypeError as problem:
            unknown = ", ".join(repr(name) for name in kwargs if name not in self.parameters)
            text = f"there is no parameter {unknown}" if unknown else str(problem)
            raise InputInvalid(
                f"input of job {self.job!r}: {text}", f"its parameters are {self._described()}"
            ) from None
        bound.apply_defaults()
        return bound.arguments

    def encode(self, values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Lower bound arguments to JSON text; answer it with the values that the body will receive.

        Raises:
            InputInvalid: a value is not strict JSON or does not fit its annotation; `path` names it.
        """
        ordered: dict[str, Any]
        if (*values,) == self._in_jsonb_order:
            ordered = values
        else:
            ordered = {name: values[name] for name in self._in_jsonb_order if name in values}
        if all(map(_is_plain, ordered.values())):
            text = self._json.encode(ordered).decode()
            if self._same_order and ordered is values and [*map(type, values.values())] == self._kinds:
                return text, values  # as `decode` would
            rebuilt = self.decode(ordered)
            if self._makes_floats and rebuilt != ordered:
                for name, value in ordered.items():
                    check_arrival(value, rebuilt[name], f"input.{name}")
            return text, rebuilt
        try:
            lowered, rebuilt, made = self._lowered(values)
            if made is not None:
                # A default may be another the next time: what is stored is the whole object that the key is made of.
                lowered, rebuilt, _ = self._lowered(made, checks_rules=True)
            text = self._json.encode({name: lowered[name] for name in self._in_jsonb_order if name in values}).decode()
        except RecursionError:
            raise self._too_deep() from None
        return text, rebuilt

    def _lowered(
        self, values: dict[str, Any], *, checks_rules: bool = False
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None]:
        """The JSON of arguments, what the body would make of it, and that again where it made objects of plain values.

        Raises:
            InputInvalid: the body would receive something else.
        """
        lowering = _Lowering(makes_fields=self._has_fields, makes_floats=self._makes_floats, checks_rules=checks_rules)
        lowered = lowering.lower_all(values)
        rebuilt = self.decode(lowered)
        if not lowering.changed_type:
            return lowered, rebuilt, None
        # An integer that jsonb makes of a float is no other type by intent: what is compared has the float.
        arrived = self.decode(_Lowering(keeps_floats=True).lower_all(values)) if lowering.whole_floats else rebuilt
        made = [check_arrival(value, arrived[name], f"input.{name}") for name, value in values.items()]
        return lowered, rebuilt, arrived if any(made) else None

    def decode(self, stored: Any) -> dict[str, Any]:
        """Rebuild the body's arguments from stored JSON.

        Raises:
            InputInvalid: the row's input does not fit the body as it is now declared; `path` names the place.
        """
        if type(stored) is dict and [*map(type, stored.values())] == self._kinds and (*stored,) == self._in_jsonb_order:
            return stored if self._same_order else {name: stored[name] for name in self._names}
        kind = self._record
        try:
            record = self._convert(stored, kind, dec_hook=rebuild_other)
        except self._validation_error as problem:
            raise self._refused(
                *explain(problem, stored, lambda part: self._convert(part, kind, dec_hook=rebuild_other))
            ) from None
        except RecursionError:
            raise self._too_deep() from None
        except Exception as problem:
            # A class of the app raised it, in its `__post_init__` or a validator.
            text = f"making it anew raised {type(problem).__name__}: {problem}"
            raise self._refused(self._raising(stored), text) from problem
        return self._fields_of(record)

    def _too_deep(self) -> InputInvalid:
        return InputInvalid(
            f"input of job {self.job!r} is nested deeper than what is left of the stack "
            f"(sys.getrecursionlimit() is {sys.getrecursionlimit():,})",
            "call from fewer frames, or store the value elsewhere and pass its key",
            path="input",
        )

    def _refused(self, path: str, text: str) -> InputInvalid:
        return InputInvalid(f"{path} of job {self.job!r}: {text}", f"its parameters are {self._described()}", path=path)

    def _raising(self, stored: Mapping[str, Any]) -> str:
        """The path of the first argument whose rebuilding raises what is no refusal."""
        for name, value in stored.items():
            try:
                self._convert(value, settled(self._hints.get(name, Any)), dec_hook=rebuild_other)
            except self._validation_error:
                continue
            except Exception:  # noqa: BLE001 - whatever it is: it is what the caller is told
                return f"input.{name}"
        return "input"

    def lower_partial(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Some of the arguments as JSON values, for comparing with a stored input.

        Raises:
            InputInvalid: a name is not a parameter, or a value is not strict JSON.
        """
        for name in values:
            if name not in self.parameters:
                raise InputInvalid(
                    f"job {self.job!r} has no parameter {name!r}", f"its parameters are {self._described()}"
                )
        return {name: lower(value, f"input.{name}") for name, value in values.items()}

    def _described(self) -> str:
        """The parameters as the declaration has them, annotations resolved."""
        resolved = [
            parameter.replace(annotation=self._hints.get(name, parameter.annotation))
            for name, parameter in self.parameters.items()
        ]
        return str(inspect.Signature(resolved)) if resolved else "none"

    @cached_property
    def _kinds(self) -> list[type] | None:
        """The types of the parameters in jsonb's order, when JSON gives back values of each of them as they were."""
        hints = [self._hints.get(name) for name in self._in_jsonb_order]
        kinds = [kind for hint in hints for kind in (int, str, bool, float) if hint is kind]
        return kinds if len(kinds) == len(hints) else None

    @cached_property
    def _json(self) -> Any:
        import msgspec

        return msgspec.json.Encoder()

    @cached_property
    def _convert(self) -> Callable[..., Any]:
        import msgspec

        return msgspec.convert

    @cached_property
    def _fields_of(self) -> Callable[[Any], dict[str, Any]]:
        import msgspec

        if self._attributes == self._names:
            return msgspec.structs.asdict
        names, values_of = self._names, msgspec.structs.astuple
        return lambda record: dict(zip(names, values_of(record), strict=True))

    @cached_property
    def _validation_error(self) -> type[Exception]:
        import msgspec

        return msgspec.ValidationError

    @cached_property
    def _has_fields(self) -> bool:
        _ = self._record  # refuses what cannot be looked through
        return any(has_fields(self._hints.get(name, Any)) for name in self._names)

    @cached_property
    def _makes_floats(self) -> bool:
        return any(holds_floats(self._hints.get(name, Any)) for name in self._names)

    @cached_property
    def _record(self) -> type[Any]:
        """A struct with the body's parameters as fields: one conversion for the whole input."""
        import msgspec

        fields: list[Any] = []
        try:
            for attribute, name in zip(self._attributes, self._names, strict=True):
                kind = settled(self._hints.get(name, Any))
                default: dict[str, Any] = {}
                if name in self._defaults:
                    default = {"default_factory": _constant(self._defaults[name])}
                fields.append((attribute, kind, msgspec.field(name=name, **default)))
            record = msgspec.defstruct("Input", fields, kw_only=True, forbid_unknown_fields=True)
            msgspec.json.Decoder(record)  # reports annotations that cannot be converted
        except RecursionError:
            raise DeclarationInvalid(
                f"a type alias of a parameter of job {self.job!r} names itself",
                "make it a dataclass, or annotate with Any",
            ) from None
        except (NameError, AttributeError) as problem:
            raise DeclarationInvalid(
                f"a type inside a parameter of job {self.job!r} has an annotation that cannot be resolved: {problem}",
                "import it at module level, not only under TYPE_CHECKING",
            ) from None
        except (TypeError, ValueError, NotImplementedError) as problem:
            raise DeclarationInvalid(
                f"job {self.job!r} has a parameter that input cannot be converted to: {problem}",
                "annotate it with types that JSON can carry (see the page on input), or leave the annotation out",
            ) from None
        return record


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


def _is_plain(value: Any) -> bool:
    """Whether a value is JSON as it is, for certain: most are, and need no walk."""
    kind = type(value)
    if kind is int:
        return bool(_INT_LOW <= value <= _INT_HIGH)
    if kind is float:  # no NaN, no infinity, no minus zero, and none that jsonb makes an integer of
        return bool(-_WHOLE_FLOATS < value < _WHOLE_FLOATS and (value or math.copysign(1.0, value) > 0))
    return (kind is str and value.isascii() and "\0" not in value) or kind is bool or value is None


def lower(value: Any, path: str = "input") -> Any:
    """A value as strict JSON values.

    Raises:
        InputInvalid: it cannot be; `path` in the error names the place.
    """
    return _Lowering().lower(value, path)


def to_json(value: Any, path: str) -> tuple[Any, str]:
    """A value that is strict JSON already, as JSON gives it back, and its text.

    Raises:
        InputInvalid: it is not, or JSON would give back another type; `path` in the error names the place.
    """
    import msgspec

    lowering = _Lowering()
    lowered = lowering.lower(value, path)
    if lowering.changed_type:
        try:
            check_arrival(value, lowered, path)
        except InputInvalid as refused:
            plain = "give plain JSON values: text, numbers, booleans, None, lists, and dicts with text keys"
            raise InputInvalid(refused.fact, plain, **refused.data) from None
    return lowered, msgspec.json.encode(lowered).decode()


class _Lowering:
    """One pass over a value.

    Attributes:
        changed_type: whether the annotations may give back something else than JSON got: another type, or, where
            `makes_fields` says that mappings and lists may become objects with fields, fewer keys or more values; or,
            where `makes_floats` says that integers may become floats, another number.
        whole_floats: whether a float became the integer that it is; with `keeps_floats` none does.
    """

    def __init__(
        self,
        *,
        makes_fields: bool = False,
        makes_floats: bool = False,
        keeps_floats: bool = False,
        checks_rules: bool = False,
    ) -> None:
        self.changed_type = False
        self.whole_floats = False
        self._keeps_floats = keeps_floats
        self._checks_rules = checks_rules  # of pydantic dataclasses, which were made without them
        self._makes_fields = makes_fields
        self._makes_floats = makes_floats
        self._inside: list[int] = []
        self._models = 0  # how many pydantic models are around

    def lower_all(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call, by name."""
        return {name: self.lower(value, f"input.{name}") for name, value in values.items()}

    def lower(self, value: Any, path: str) -> Any:
        kind = type(value)
        if kind is str:
            return value if value.isascii() and "\0" not in value else _text(value, path)
        if kind is int:
            return value if -_EXACT <= value <= _EXACT else self._whole(value, path)
        if kind is bool or value is None:
            return value
        if kind is float:
            return self._number(value, path)
        if kind is dict:
            if self._makes_fields:
                self.changed_type = True
            return self._object(value, path)
        if kind is list:
            if self._makes_fields:
                self.changed_type = True
            return self._array(value, path)
        self.changed_type = True
        return self._other(value, path)

    def _object(self, value: Mapping[Any, Any], path: str, owner: object = None) -> dict[str, Any]:
        """A mapping, or the fields of `owner`."""
        self._enter(value if owner is None else owner, path)
        lowered: dict[str, Any] = {}
        for key, item in value.items():
            if type(key) is not str:
                if not isinstance(key, str):
                    raise InputInvalid(
                        f"{path} has the key {key!r} of type {type(key).__name__}", "use text keys", path=path
                    )
                self.changed_type = True
                key = str.__str__(key)  # noqa: PLW2901 - an enum member that is text, say
            lowered[_text(key, path)] = self.lower(item, f"{path}.{key}")
        self._inside.pop()
        return _in_jsonb_order(lowered)

    def _array(self, value: Any, path: str, owner: object = None) -> list[Any]:
        """A list, or what `owner` holds."""
        self._enter(value if owner is None else owner, path)
        lowered = [self.lower(item, f"{path}[{index}]") for index, item in enumerate(value)]
        self._inside.pop()
        return lowered

    def _whole(self, value: int, path: str) -> int:
        if not _INT_LOW <= value <= _INT_HIGH:
            raise InputInvalid(f"{path} is {short(value)}, beyond 64 bits", "pass it as text", path=path)
        self.changed_type |= self._makes_floats
        return value

    def _number(self, value: float, path: str) -> float | int:
        if not math.isfinite(value):
            raise InputInvalid(f"{path} is {value!r}", "pass a finite number, or None", path=path)
        if abs(value) < _WHOLE_FLOATS:
            return value or 0.0
        self.whole_floats = self.changed_type = True
        return value if self._keeps_floats else int(value)

    def _enter(self, value: Any, path: str) -> None:
        if id(value) in self._inside:
            raise InputInvalid(f"{path} contains itself", "pass values without cycles", path=path)
        if len(self._inside) >= MAX_DEPTH:
            raise InputInvalid(
                f"{path[:60]}... is nested more than {MAX_DEPTH} deep",
                "store the value elsewhere, pass its key",
                path=path,
            )
        self._inside.append(id(value))

    def _other(self, value: Any, path: str) -> Any:
        if isinstance(value, enum.Enum):
            return self.lower(value.value, path)
        for kind, lowered in _SCALARS:
            if isinstance(value, kind):
                return lowered(value, path)
        if isinstance(value, str):
            return _text(str.__str__(value), path)
        if isinstance(value, int):
            return self._whole(int.__int__(value), path)
        if isinstance(value, float):
            return self._number(float.__float__(value), path)
        if isinstance(value, tuple | list):
            return self._array(value, path)
        if isinstance(value, set | frozenset):
            return self._array(sorted(value, key=repr), path, value)
        if isinstance(value, dict):
            return self._object(value, path)
        return self._fields(value, path)

    def _fields(self, value: Any, path: str) -> Any:
        shape = shape_of(value)
        if shape is None:
            return self._unknown(value, path)
        if self._checks_rules and is_pydantic_dataclass(type(value)):
            value = _by_its_rules(value, path)
        fields = _values_of(value, shape, path)
        if is_model(type(value)):
            self._models += 1
            if is_root_model(type(value)):
                lowered = self.lower(value.root, path)
            else:
                lowered = self._object({**fields, **extra_of(value)}, path, value)
            self._models -= 1
            return lowered
        tag = dict([shape.tag]) if shape.tag else {}
        if shape.is_array:
            return self._array([*tag.values(), *fields.values()], path, value)
        given = {name: item for name, item in fields.items() if not is_unset(item)}
        return self._object({**tag, **given}, path, value)

    def _unknown(self, value: Any, path: str) -> Any:
        if self._models and not isinstance(value, bytes | bytearray):
            with contextlib.suppress(ValueError):
                return self.lower(leaf_of_model(value), path)
        raise InputInvalid(
            f"{path} is {short(value)} of type {type(value).__name__}, which JSON cannot carry",
            "pass its key, or a dataclass of plain values",
            path=path,
        )


def _by_its_rules(value: Any, path: str) -> Any:
    """A pydantic dataclass as its own rules make it."""
    try:
        return made_by_its_rules(value)
    except Exception as problem:
        steps, text = problem_of_model(problem) or ((), f"raised {type(problem).__name__}: {problem}")
        path += "".join(map(spelled, steps))
        raise InputInvalid(
            f"{path} does not fit {type(value).__name__}: {text[:1].lower()}{text[1:]}",
            "pass what its class accepts",
            path=path,
        ) from problem


def _values_of(value: Any, shape: Shape, path: str) -> dict[str, Any]:
    """The values of an object with fields, by their names in JSON."""
    for name, place in shape.unnamed.items():
        raise InputInvalid(
            f"{path}.{name} is {short(getattr(value, name, None))}, and its model takes it in only from {place}",
            f"give the field a name too: AliasChoices({name!r}, {place})",
            path=f"{path}.{name}",
        )
    try:
        return {out: getattr(value, name) for name, out in shape.names.items()}
    except AttributeError as problem:
        missing = next(name for name in shape.names if not hasattr(value, name))
        raise InputInvalid(
            f"{path}.{missing} of type {type(value).__name__} is not set: {problem}",
            "give the field a default, or set it before the enqueue",
            path=f"{path}.{missing}",
        ) from None


def _text(value: str, path: str) -> str:
    if "\0" in value:
        raise InputInvalid(f"{path} is text with a NUL character", "remove it, jsonb cannot hold one", path=path)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InputInvalid(
                f"{path} is text with a lone surrogate", "pass text that UTF-8 can encode", path=path
            ) from None
    return value


def _instant(value: datetime, path: str) -> str:
    offset = value.utcoffset()
    if offset is None:
        raise naive_datetime(value, path)
    if offset % _MINUTE:
        # Local mean times, which zones have for the years before standard time. RFC 3339 has whole minutes only.
        try:
            value = value.astimezone(UTC)
        except OverflowError:
            raise InputInvalid(
                f"{path} is {value!r}, which UTC cannot express", "pass an instant within its years", path=path
            ) from None
    return value.isoformat()


def _time(value: time, path: str) -> str:
    offset = value.utcoffset()
    if offset is None and value.tzinfo is not None:
        raise InputInvalid(
            f"{path} is {value!r}, whose offset depends on the day",
            "pass a datetime, or the time and the zone",
            path=path,
        )
    if offset is not None and offset % _MINUTE:
        raise InputInvalid(
            f"{path} is {value!r}, whose offset has seconds", "give it an offset of whole minutes", path=path
        )
    return value.isoformat()


def _decimal(value: Decimal, path: str) -> str:
    if not value.is_finite():
        raise InputInvalid(f"{path} is {value!r}", "pass a finite number, or None", path=path)
    return str(value)


def _duration(value: timedelta, path: str) -> str:  # noqa: ARG001 - the signature of its table
    """ISO 8601 (4.4.3.2), in days and seconds."""
    total = value // timedelta(microseconds=1)
    days, rest = divmod(abs(total), 86_400_000_000)
    seconds, micros = divmod(rest, 1_000_000)
    fraction = f".{micros:06d}".rstrip("0") if micros else ""
    return f"{'-' if total < 0 else ''}P{days}DT{seconds}{fraction}S"


# Subclasses of date and datetime count: time-freezing libraries put theirs in.
_SCALARS: tuple[tuple[type, Callable[[Any, str], Any]], ...] = (
    (UUID, lambda value, _path: str(value)),
    (datetime, _instant),
    (date, lambda value, _path: value.isoformat()),
    (time, _time),
    (timedelta, _duration),
    (Decimal, _decimal),
)


def _in_jsonb_order(values: dict[str, Any]) -> dict[str, Any]:
    return dict(sorted(values.items(), key=_jsonb_order)) if len(values) > 1 else values


def _jsonb_order(item: tuple[str, Any]) -> tuple[int, bytes]:
    key = item[0].encode()
    return len(key), key

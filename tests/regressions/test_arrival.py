"""What the body receives is equal to what was given and of the same type, or the enqueue is refused with its path."""

from __future__ import annotations

import enum
import itertools
import sys
from collections import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, NamedTuple, NewType, Optional, TypedDict, TypeVar
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic
import pytest
from conformance.fixtures import Drain
from typing_extensions import TypeAliasType

import xjobs
from xjobs.codec import lower

ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
BERLIN = ZoneInfo("Europe/Berlin")
_NUMBERS = itertools.count()


def carrying(hint: Any) -> xjobs.JobHandle[..., [Any], None]:
    """A job whose one parameter has that annotation."""

    def carry(value: Any) -> None: ...

    carry.__annotations__ = {"value": hint, "return": None}
    return xjobs.job(key=xjobs.NO_KEY, name=f"carry{next(_NUMBERS)}")(carry)


def assigned(made: Any, **values: Any) -> Any:
    """An object with other values than it was made with."""
    for name, value in values.items():
        setattr(made, name, value)
    return made


@dataclass
class Total:
    total: int

    def __post_init__(self) -> None:
        self.total += 1


@dataclass
class Longer:
    items: list[int]

    def __post_init__(self) -> None:
        self.items = [0, *self.items]


@dataclass
class Computed:
    a: int
    twice: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.twice = self.a * 2


@dataclass
class Unset:
    a: int
    b: int = field(init=False)


class Stripped(msgspec.Struct):
    x: str

    def __post_init__(self) -> None:
        self.x = f"{self.x.strip()}!"


@dataclass
class Typed:
    id: UUID | None = None
    at: datetime | None = None
    many: tuple[int, ...] = ()
    price: float = 0.0
    inner: Typed | None = None


class Model(pydantic.BaseModel):
    pass


class Plus(Model):
    x: int

    @pydantic.field_validator("x")
    @classmethod
    def plus(cls, x: int) -> int:
        return x + 1


class PlusItem(Model):
    x: list[int]

    @pydantic.field_validator("x")
    @classmethod
    def plus(cls, x: list[int]) -> list[int]:
        return [0, *x]


class PlusKey(Model):
    x: dict[str, int]

    @pydantic.field_validator("x")
    @classmethod
    def plus(cls, x: dict[str, int]) -> dict[str, int]:
        return {**x, f"n{len(x)}": 1}


class Before(Model):
    x: Annotated[int, pydantic.BeforeValidator(lambda x: int(x) * 2)]


class BeforeAll(Model):
    x: int

    @pydantic.model_validator(mode="before")
    @classmethod
    def twice(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {"x": values["x"] * 2}


class Encoded(Model):
    x: pydantic.Base64Str


class Parsed(Model):
    x: pydantic.Json[int]


class AnyParsed(Model):
    x: pydantic.Json


class Clean(Model):
    model_config = pydantic.ConfigDict(str_strip_whitespace=True)
    x: str


class IdOrText(Model):
    x: UUID | str


class DateOrText(Model):
    x: date | str


class NumberOrText(Model):
    x: Decimal | str


class Inside(Model):
    x: int = pydantic.Field(default=3, validation_alias=pydantic.AliasPath("a", 0))


class InsideOnly(Model):
    x: int = pydantic.Field(validation_alias=pydantic.AliasChoices(pydantic.AliasPath("a", 0)))


class InsideOrNamed(Model):
    x: int = pydantic.Field(default=3, validation_alias=pydantic.AliasChoices(pydantic.AliasPath("a", 0), "ex"))


class InsideOrOwnName(Model):
    model_config = pydantic.ConfigDict(populate_by_name=True)
    x: int = pydantic.Field(default=3, validation_alias=pydantic.AliasPath("a", 0))


CHANGED: dict[str, tuple[Callable[[], Any], str]] = {
    "__post_init__": (lambda: Total(1), "x is 2, but would arrive as 3"),
    "__post_init__ of a struct": (lambda: Stripped(" a "), "x is 'a!', but would arrive as 'a!!'"),
    "__post_init__ that lengthens a list": (lambda: Longer([1]), "x is [0, 1], but would arrive as [0, 0, 1]"),
    "field computed anew": (lambda: assigned(Computed(1), twice=9), "x is 9, but would arrive as 2"),
    "text for an id": (lambda: Typed(id=str(ID)), f"x is '{ID}' of type str, but would arrive as UUID('{ID}')"),  # type: ignore[arg-type]
    "text for an instant": (lambda: Typed(at="2030-01-01T00:00:00Z"), "x is '2030-01-01T00:00:00Z' of type str"),  # type: ignore[arg-type]
    "list for a tuple": (lambda: Typed(many=[1]), "x is [1] of type list, but would arrive as (1,) of type tuple"),  # type: ignore[arg-type]
    "mapping for an object": (lambda: Typed(inner={"many": [1]}), "x is {'many': [1]} of type dict"),  # type: ignore[arg-type]
    "deep inside": (lambda: Typed(inner=Typed(inner=Typed(many=[1]))), "x is [1] of type list"),  # type: ignore[arg-type]
    "field validator": (lambda: Plus(x=1), "x is 2, but would arrive as 3"),
    "field validator of a list": (lambda: PlusItem(x=[1]), "x is [0, 1], but would arrive as [0, 0, 1]"),
    "field validator of a dict": (lambda: PlusKey(x={}), "x is {'n0': 1}, but would arrive as {"),
    "before validator": (lambda: Before(x=1), "x is 2, but would arrive as 4"),
    "before validator of the model": (lambda: BeforeAll(x=1), "x is 2, but would arrive as 4"),
    "base64": (lambda: Encoded(x="YUdWc2JHOD0="), "x is 'aGVsbG8=', but would arrive as 'hello'"),
    "json": (lambda: AnyParsed(x='"1"'), "x is '1' of type str, but would arrive as 1 of type int"),
    "stripped text": (lambda: assigned(Clean(x="a"), x=" b "), "x is ' b ', but would arrive as 'b'"),
    "id or text": (lambda: IdOrText(x=str(ID)), f"x is '{ID}' of type str, but would arrive as UUID('{ID}')"),
    "date or text": (lambda: DateOrText(x="2024-01-01"), "x is '2024-01-01' of type str, but would arrive as "),
    "number or text": (lambda: NumberOrText(x="1.5"), "x is '1.5' of type str, but would arrive as Decimal('1.5')"),
    "path as alias": (lambda: Inside(a=[7]), "x is 7, and its model takes it in only from AliasPath"),
    "path as alias of the default": (Inside, "x is 3, and its model takes it in only from AliasPath"),
    "path as only choice": (lambda: InsideOnly(a=[7]), "x is 7, and its model takes it in only from Alias"),
    "unset field": (lambda: Unset(1), "x of type Unset is not set"),
}
IN_FIELD = {
    "__post_init__": "total",
    "__post_init__ that lengthens a list": "items",
    "field computed anew": "twice",
    "text for an id": "id",
    "text for an instant": "at",
    "list for a tuple": "many",
    "mapping for an object": "inner",
    "deep inside": "inner.inner.many",
    "unset field": "b",
}


@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.parametrize("around", ["nothing", "a list", "a mapping"])
def test_an_object_whose_class_changes_it_is_refused_with_the_value_and_what_it_would_be(
    name: str, around: str
) -> None:
    make, text = CHANGED[name]
    value: Any = make()
    kind: Any = type(value)
    step = {"nothing": "", "a list": "[0]", "a mapping": ".k"}[around]
    if around == "a list":
        value, kind = [value], list[kind]
    elif around == "a mapping":
        value, kind = {"k": value}, dict[str, kind]
    with pytest.raises(xjobs.InputInvalid) as caught:
        carrying(kind).call(value)
    assert caught.value.path == f"input.value{step}.{IN_FIELD.get(name, 'x')}"
    assert text in f"x{caught.value.fact.removeprefix(caught.value.path)}"
    assert caught.value.remedy


class Slow(str, enum.Enum):  # noqa: UP042 - the older form
    X = "x"


class Single(enum.Enum):
    ONE = "one"


class Level(enum.IntEnum):
    LOW = 1


@dataclass
class Loose:
    text: str = ""
    number: int = 0
    price: float = 0.0
    any: Any = None
    at: datetime | None = None
    times: frozenset[datetime] = frozenset()
    texts: dict[str, str] = field(default_factory=dict)


KEPT: dict[str, Any] = {
    "text of an enum": Loose(text=Slow.X),
    "number of an enum": Loose(number=Level.LOW),
    "whole price": Loose(price=3),
    "minus zero": Loose(price=-0.0),
    "great float": Loose(price=1e300),
    "great float of any type": Loose(any=[1e300]),
    "text keys of an enum": Loose(texts={Slow.X: "a"}),
    "an hour that comes twice": Loose(at=datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1)),
    "hours that come twice": Loose(
        times=frozenset(
            datetime(2024, 10, 27, 2, minute, tzinfo=BERLIN, fold=fold) for fold in (0, 1) for minute in (1, 2)
        )
    ),
    "the first hours": Loose(at=datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5)))),
    "computed": Computed(2),
    "named path": InsideOrNamed(ex=7),
    "own name": InsideOrOwnName(x=7),
    "parsed": Clean(x=" a "),
    "id": IdOrText(x=ID),
    "text": IdOrText(x="a"),
}


@pytest.mark.parametrize("name", KEPT)
def test_an_object_that_is_made_anew_as_it_was_arrives(name: str) -> None:
    given = KEPT[name]
    received = carrying(type(given)).call(given).values["value"]
    assert received is not given
    if not name.endswith("twice"):
        assert received == given
    else:
        assert [received.at] == [given.at and given.at.astimezone(UTC)]
        assert received.times == {at.astimezone(UTC) for at in given.times}


class OwnFault(Exception):
    pass


@dataclass
class Raises:
    x: int

    def __post_init__(self) -> None:
        if self.x < 0:
            raise OwnFault("negative")


class RaisesStruct(msgspec.Struct):
    x: int

    def __post_init__(self) -> None:
        assert self.x >= 0, "negative"


class RaisesModel(Model):
    x: int

    @pydantic.field_validator("x")
    @classmethod
    def fail(cls, x: int) -> int:
        if x < 0:
            raise LookupError("negative")
        return x


@pytest.mark.parametrize("kind", [Raises, RaisesStruct, RaisesModel])
def test_what_a_class_raises_when_it_is_made_is_a_refusal(kind: Any) -> None:
    def carry(first: int, value: Any) -> None: ...

    carry.__annotations__["value"] = list[kind]
    job = xjobs.job(key=xjobs.NO_KEY)(carry)
    with pytest.raises(xjobs.InputInvalid, match=r"raised .*negative") as caught:
        job.call(1, [{"x": 1}, {"x": -1}])
    assert caught.value.path == "input.value"
    with pytest.raises(xjobs.InputInvalid, match=r"raised .*negative"):
        job.codec.decode({"first": 1, "value": [{"x": -1}]})


@dataclass
class Order:
    sku: str
    id: UUID = field(default_factory=uuid4)


class OrderStruct(msgspec.Struct, rename="camel"):
    sku: str
    id: UUID = msgspec.field(default_factory=uuid4)


class OrderArray(msgspec.Struct, array_like=True):
    sku: str
    id: UUID = msgspec.field(default_factory=uuid4)


@attrs.define
class OrderAttrs:
    sku: str
    id: UUID = attrs.field(factory=uuid4)


class OrderModel(pydantic.BaseModel):
    sku: str
    id: UUID = pydantic.Field(default_factory=uuid4)


class Basket(TypedDict):
    order: Order


ORDERS: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "dataclass": (Order, lambda plain: plain, lambda value: value),
    "struct": (OrderStruct, lambda plain: plain, lambda value: value),
    "struct as array": (OrderArray, lambda plain: [plain["sku"]], lambda value: value),
    "attrs": (OrderAttrs, lambda plain: plain, lambda value: value),
    "pydantic": (OrderModel, lambda plain: plain, lambda value: value),
    "optional": (Order | None, lambda plain: plain, lambda value: value),
    "in a list": (list[Order], lambda plain: [plain], lambda value: value[0]),
    "in a tuple": (tuple[int, Order], lambda plain: [1, plain], lambda value: value[1]),
    "in a mapping": (dict[str, OrderModel], lambda plain: {"k": plain}, lambda value: value["k"]),
    "in a TypedDict": (Basket, lambda plain: {"order": plain}, lambda value: value["order"]),
}


@pytest.mark.parametrize("name", ORDERS)
async def test_what_a_class_fills_in_for_a_mapping_is_stored(queue: xjobs.AsyncQueue, drain: Drain, name: str) -> None:
    """The key was made of one id, and each attempt received another."""
    kind, spell, of = ORDERS[name]
    seen: list[Any] = []

    def ship(value: Any) -> None:
        seen.append(of(value))
        if len(seen) == 1:
            raise LookupError

    ship.__annotations__["value"] = kind
    job = xjobs.job(key=lambda value: str(of(value).id), retry=xjobs.Retry(2, delay=0))(ship)
    made = await job.aenqueue(spell({"sku": "x"}))
    row = await queue.job(made.id)
    await drain(errors="collect", advance=True)
    assert row is not None
    assert [order.sku for order in seen] == ["x", "x"]
    assert {row.idempotency_key} == {str(order.id) for order in seen}
    assert row.idempotency_key in repr(row.input)


def test_a_mapping_that_its_class_would_change_again_is_refused() -> None:
    with pytest.raises(xjobs.InputInvalid, match=r"^input\.value\.x is 2, but would arrive as 3"):
        carrying(Plus).call({"x": 1})
    with pytest.raises(xjobs.InputInvalid, match=r"^input\.value\[0\]\.total is 2, but would arrive as 3"):
        carrying(list[Total]).call([{"total": 1}])


def test_a_great_float_of_a_mapping_is_stored_as_any_other() -> None:
    call = carrying(Loose).call({"any": [1e300], "price": 1e300})
    assert call.values["value"] == Loose(any=[1e300], price=1e300)


When = NewType("When", datetime)
Item = TypeVar("Item")
Named = TypeAliasType("Named", list[datetime])
Several = TypeAliasType("Several", list[Item], type_params=(Item,))
Described = msgspec.Meta(description="of the order")


@dataclass
class At:
    at: datetime


class AtTuple(NamedTuple):
    at: datetime


class AtStruct(msgspec.Struct):
    at: datetime


class AtArray(msgspec.Struct, array_like=True):
    at: datetime


class AtModel(pydantic.BaseModel):
    at: datetime


class AtDict(TypedDict):
    at: list[datetime]


NAIVE, AWARE = "2024-01-01T00:00:00", "2024-01-01T00:00:00Z"
HOLDS_DATETIMES: dict[str, tuple[Any, Callable[[str], Any]]] = {
    "annotated": (Annotated[datetime, Described], lambda text: text),
    "annotated twice": (Annotated[datetime, Described, msgspec.Meta(tz=True)], lambda text: text),
    "annotated as naive": (Annotated[datetime, msgspec.Meta(tz=False)], lambda text: text),
    "annotated list": (Annotated[list[datetime], msgspec.Meta(min_length=1)], lambda text: [text]),
    "annotated optional": (Annotated[Optional[datetime], Described], lambda text: text),  # noqa: UP045
    "annotated inside": (list[Annotated[datetime, Described] | None], lambda text: [None, text]),
    "annotated new type": (Annotated[When, Described], lambda text: text),
    "new type": (When, lambda text: text),
    "new type of a new type": (NewType("Then", When), lambda text: text),
    "named": (Named, lambda text: [text]),
    "named with a parameter": (Several[datetime], lambda text: [text]),
    **{
        f"abc.{kind.__name__}": (kind[datetime], lambda text: [text])  # type: ignore[index]
        for kind in (abc.Collection, abc.Sequence, abc.MutableSequence, abc.Set, abc.MutableSet)
    },
    "abc.Mapping": (abc.Mapping[str, datetime], lambda text: {"k": text}),
    "abc.MutableMapping": (abc.MutableMapping[str, datetime], lambda text: {"k": text}),
    "frozenset of tuples": (frozenset[tuple[int, datetime]], lambda text: [[1, text]]),
    "dataclass": (At, lambda text: {"at": text}),
    "dataclasses": (list[At], lambda text: [{"at": AWARE}, {"at": text}]),
    "named tuple": (AtTuple, lambda text: [text]),
    "named tuples": (tuple[AtTuple, ...], lambda text: [[AWARE], [text]]),
    "set of named tuples": (set[AtTuple], lambda text: [[AWARE], [text]]),
    "struct": (AtStruct, lambda text: {"at": text}),
    "struct as array": (AtArray, lambda text: [text]),
    "structs as arrays": (dict[str, AtArray | None], lambda text: {"k": None, "l": [text]}),
    "pydantic": (AtModel, lambda text: {"at": text}),
    "pydantic inside": (tuple[AtModel, int], lambda text: [{"at": text}, 1]),
    "TypedDict": (AtDict, lambda text: {"at": [text]}),
}


@pytest.mark.parametrize("name", HOLDS_DATETIMES)
def test_no_datetime_arrives_without_a_time_zone(name: str) -> None:
    hint, spell = HOLDS_DATETIMES[name]
    job = carrying(hint)
    assert "datetime.datetime(2024, 1, 1, 0, 0, tzinfo=" in repr(job.call(spell(AWARE)).values["value"])
    with pytest.raises(xjobs.InputInvalid, match=r"naive datetime 2024-01-01|with a timezone component") as caught:
        job.call(spell(NAIVE))
    assert caught.value.path.startswith("input.value")


@dataclass
class Chain:
    next: Any = None


class ChainStruct(msgspec.Struct):
    next: Any = None


class ChainArray(msgspec.Struct, array_like=True):
    next: Any = None


@attrs.define(eq=False)
class ChainAttrs:
    next: Any = None


class ChainModel(pydantic.BaseModel):
    next: Any = None


class ChainOfModels(pydantic.BaseModel):
    next: ChainOfModels | None = None


@dataclass
class ChainOfChains:
    next: ChainOfChains | None = None


CHAINS: list[Any] = [Chain, ChainStruct, ChainArray, ChainAttrs, ChainModel, ChainOfModels, ChainOfChains]


@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.parametrize("between", [0, 1, 2])
def test_an_object_in_itself_is_refused_where_it_closes(kind: Any, between: int) -> None:
    first = last = kind()
    for _ in range(between):
        last.next = kind()
        last = last.next
    last.next = first
    with pytest.raises(xjobs.InputInvalid, match="contains itself: pass values without cycles") as caught:
        carrying(kind).call(first)
    assert caught.value.path in ("input.value" + ".next" * (between + 1), "input.value" + "[0]" * (between + 1))


def chain_of(kind: Any, length: int) -> Any:
    if kind is list:
        return [chain_of(kind, length - 1)] if length > 1 else []
    first = None
    for _ in range(length):
        first = kind(next=first)
    return first


def depth_of(chain: Any) -> int:
    depth = 0
    while chain is not None:
        depth, chain = depth + 1, (chain[0] if chain else None) if isinstance(chain, list) else chain.next
    return depth


def below(frames: int, act: Callable[[], Any]) -> Any:
    """What `act` answers that far down the stack."""
    return act() if frames == 0 else below(frames - 1, act)


@pytest.mark.parametrize("kind", [ChainOfModels, ChainOfChains, list])
@pytest.mark.parametrize("frames", [0, 100, 300, 500, 700])
def test_deep_input_arrives_or_is_refused_however_much_of_the_stack_is_left(kind: Any, frames: int) -> None:
    job = carrying(kind)
    for length in (50, 100, 150, 199, 200):
        value = chain_of(kind, length)
        arrived, refusal = length, ""
        try:
            arrived = depth_of(below(frames, lambda: job.call(value)).values["value"])  # noqa: B023 - called at once
        except xjobs.InputInvalid as refused:
            refusal = refused.fact
        assert arrived == length
        assert not refusal or "deeper than what is left of the stack" in refusal
        assert not refusal or frames + length > 199
    with pytest.raises(xjobs.InputInvalid):
        below(frames, lambda: job.call(chain_of(kind, 201)))


HUGE_FLOATS = [1e16, 2.0**60, 2.0**63, 2.0**70, -1e300]
HOLDS_INTEGERS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "itself": (int, lambda n: n),
    "optional": (int | None, lambda n: n),
    "list": (list[int], lambda n: [1, n]),
    "mapping": (dict[str, list[int]], lambda n: {"k": [n]}),
    "mapping for an object": (Loose, lambda n: {"number": n}),
    "object": (Loose, lambda n: Loose(number=n)),
}


@pytest.mark.parametrize("name", HOLDS_INTEGERS)
@pytest.mark.parametrize("number", HUGE_FLOATS)
def test_no_float_is_received_as_an_integer(name: str, number: float) -> None:
    """From 1e16 on they are stored as the integers that they are, and an `int` took those."""
    hint, spell = HOLDS_INTEGERS[name]
    with pytest.raises(xjobs.InputInvalid, match="expected `int"):
        carrying(hint).call(spell(number))


@pytest.mark.parametrize("number", HUGE_FLOATS)
@pytest.mark.parametrize("hint", [Any, float, list[Any], dict[str, float], int | float, Decimal])
def test_where_a_float_is_welcome_a_great_one_is(hint: Any, number: float) -> None:
    value: Any = {list[Any]: [number], dict[str, float]: {"k": number}}.get(hint, number)
    assert carrying(hint).call(value).values["value"] == value


HOLDS_FLOATS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "itself": (float, lambda n: n),
    "optional": (float | None, lambda n: n),
    "annotated": (Annotated[float, Described], lambda n: n),
    "list": (list[float], lambda n: [0.5, n]),
    "set": (set[float], lambda n: {n}),
    "tuple": (tuple[str, float], lambda n: ["a", n]),
    "mapping": (dict[str, list[float]], lambda n: {"k": [n]}),
    "mapping for an object": (Loose, lambda n: {"price": n}),
    "object": (Loose, lambda n: Loose(price=n)),
}


@pytest.mark.parametrize("name", HOLDS_FLOATS)
@pytest.mark.parametrize("number", [2**53 + 1, -(2**53) - 1, 2**63 - 1])
def test_no_integer_is_received_as_another_number(name: str, number: int) -> None:
    hint, spell = HOLDS_FLOATS[name]
    job = carrying(hint)
    with pytest.raises(
        xjobs.InputInvalid, match=f"is {number}, but would arrive as|\\{{{number}\\}}, but would"
    ) as caught:
        job.call(spell(number))
    assert caught.value.path.startswith("input.value")
    for kept in (3, 2**53, 2**60):
        assert repr(float(kept)) in repr(job.call(spell(kept)).values["value"])


@pytest.mark.parametrize("hint", [Any, int, int | float, list[int], dict[str, Any]])
def test_a_great_integer_stays_one(hint: Any) -> None:
    number = 2**60 + 1
    value: Any = {list[int]: [number], dict[str, Any]: {"k": number}}.get(hint, number)
    assert repr(carrying(hint).call(value).values["value"]) == repr(value)


class Rate(Decimal, enum.Enum):
    X = Decimal("1.5")


class Day(date, enum.Enum):
    FIRST = 2024, 1, 1


class Rated(Model):
    rate: Rate


def test_an_enum_is_lowered_by_its_value_whatever_its_members_are() -> None:
    """A member that is a decimal was spelled as the member."""
    assert lower([Rate.X, Day.FIRST, Single.ONE, Level.LOW, Slow.X]) == ["1.5", "2024-01-01", "one", 1, "x"]
    with pytest.raises(xjobs.InputInvalid, match=r"input should be Decimal\('1.5'\), the value is '1.5'"):
        carrying(Rated).call(Rated(rate=Rate.X))


@pytest.mark.parametrize("value", [Rate.X, Day.FIRST, Single.ONE, Level.LOW, Slow.X])
def test_an_enum_without_its_annotation_is_plain_or_refused(value: Any) -> None:
    """Its members are plain where they are text or integers themselves."""
    job = carrying(Any)
    if isinstance(value, str | int):
        assert type(job.call([value]).values["value"][0]) in (str, int)
    else:
        with pytest.raises(xjobs.InputInvalid, match=f"annotate the parameter with {type(value).__name__}"):
            job.call([value])


ODD_TIMES = {
    "depends on the day": time(12, tzinfo=BERLIN),
    "has seconds": time(12, tzinfo=timezone(timedelta(seconds=3208))),
}


@dataclass
class Opening:
    at: time


@pytest.mark.parametrize("text", ODD_TIMES)
def test_a_time_whose_offset_would_not_arrive_is_refused(text: str) -> None:
    for hint, value in ((time, ODD_TIMES[text]), (list[time], [ODD_TIMES[text]]), (Opening, Opening(ODD_TIMES[text]))):
        with pytest.raises(xjobs.InputInvalid, match=f"whose offset {text}"):
            carrying(hint).call(value)


@pytest.mark.parametrize("zone", [None, UTC, timezone(timedelta(hours=-5, minutes=-30))])
def test_any_other_time_arrives(zone: Any) -> None:
    value = time(12, 30, 1, 2, tzinfo=zone)
    assert carrying(time).call(value).values["value"] == value


@pydantic.dataclasses.dataclass
class Ruled:
    count: int = pydantic.Field(ge=3, default=3)
    name: str = pydantic.Field(max_length=3, alias="called", default="")
    inner: Ruled | None = None

    @pydantic.field_validator("name")
    @classmethod
    def strip(cls, name: str) -> str:
        return name.strip()


class HoldsRuled(TypedDict):
    ruled: list[Ruled]


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"count": 1}, ".count"),
        ({"count": 3, "name": "long"}, ".called"),
        ({"inner": {"inner": {"count": 2}}}, ".inner.inner.count"),
        ({"name": " a "}, ".name"),
    ],
)
def test_a_mapping_for_a_pydantic_dataclass_is_checked_by_its_rules(given: Any, path: str) -> None:
    for hint, value, step in (
        (Ruled, given, ""),
        (list[Ruled], [{}, given], "[1]"),
        (HoldsRuled, {"ruled": [given]}, ".ruled[0]"),
    ):
        with pytest.raises(xjobs.InputInvalid) as caught:
            carrying(hint).call(value)
        assert caught.value.path == f"input.value{step}{path}"


def test_what_a_pydantic_dataclass_accepts_arrives() -> None:
    given = Ruled(count=4, called="b", inner=Ruled(called="c"))
    job = carrying(Ruled)
    assert job.call(given).values["value"] == given
    assert job.call({"count": 4, "name": "b", "inner": {"name": "c"}}).values["value"] == given


@pytest.mark.skipif(sys.version_info < (3, 12), reason="a type statement is of Python 3.12")
def test_an_alias_that_names_itself_is_refused_at_the_first_call() -> None:
    made: dict[str, Any] = {}
    exec("type Tree = dict[str, Tree | int]", made)
    with pytest.raises(xjobs.DeclarationInvalid, match="names itself: make it a dataclass"):
        carrying(made["Tree"]).call({"a": {"b": 1}})

"""Input as it is stored, read back, and received by the body: the same on every driver."""

from __future__ import annotations

import enum
import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    Optional,
    TypedDict,
    TypeVar,
    get_args,
    get_origin,
)
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import xjobs
from conformance.stores import MemoryStore, Store, Tables, queue_on
from pytest_xjobs.clock import Clock
from xjobs.bridge import run_sync
from xjobs.drivers.memory import MemoryDriver


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Kind(enum.StrEnum):
    SMALL = "small"


@dataclass
class Address:
    street: str
    moved: date | None = None
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Person:
    id: UUID
    home: Address
    by_name: dict[str, Address] = field(default_factory=dict)


class Point(NamedTuple):
    x: int
    y: float


class Options(TypedDict, total=False):
    deep: dict[str, list[int]]


class Money(msgspec.Struct):
    amount: Decimal
    currency: str = msgspec.field(name="cur")


@attrs.define
class Parcel:
    weight: float
    label: str = "none"


class Plain(TypedDict):
    at: datetime


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


class Position(msgspec.Struct, array_like=True, tag="at", frozen=True):
    x: int
    y: date


class Change(msgspec.Struct):
    title: str | msgspec.UnsetType = msgspec.UNSET
    until: date | msgspec.UnsetType = msgspec.UNSET


@attrs.frozen
class Shipment:
    at: datetime
    parcels: list[Parcel] = attrs.field(factory=list)
    _secret: int = 0


T = TypeVar("T")
UserId = NewType("UserId", int)


@dataclass
class Box(Generic[T]):
    held: T
    inner: Box[T] | None = None


class Customer(pydantic.BaseModel):
    id: UUID
    born: date | None = None
    tags: set[str] = set()
    home: Address | None = None


class Aliased(pydantic.BaseModel):
    order_id: int = pydantic.Field(alias="orderId")
    hidden: int = pydantic.Field(default=0, exclude=True)
    either: int = pydantic.Field(default=0, validation_alias=pydantic.AliasChoices("one", "other"))


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, frozen=True, extra="forbid")
    price: Decimal
    grace: timedelta
    site: pydantic.HttpUrl
    parts: tuple[int, ...] = ()


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    x: int
    _note: str = pydantic.PrivateAttr(default="")


class Numbers(pydantic.RootModel[list[int]]):
    pass


class Page(pydantic.BaseModel, Generic[T]):
    items: list[T]


@dataclass
class Visit:
    by: Customer
    others: list[Customer] = field(default_factory=list)


class Everything(NamedTuple):
    hint: Any
    value: Any
    stored: Any


ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
EAST = timezone(timedelta(hours=5, minutes=45))

VALUES = {
    "text": Everything(str, 'a ä ß 日本 🙂 \t\n"\\ \x7f \u2028 \ufffe', 'a ä ß 日本 🙂 \t\n"\\ \x7f \u2028 \ufffe'),
    "empty text": Everything(str, "", ""),
    "int": Everything(int, 7, 7),
    "least int": Everything(int, -(2**63), -(2**63)),
    "greatest int": Everything(int, 2**63 - 1, 2**63 - 1),
    "beyond doubles": Everything(int, 2**53 + 1, 2**53 + 1),
    "true": Everything(bool, True, True),
    "null": Everything(type(None), None, None),
    "float": Everything(float, 0.1, 0.1),
    "whole float": Everything(float, 3.0, 3.0),
    "minus zero": Everything(float, -0.0, 0.0),
    "great float": Everything(float, 1e16, 10**16),
    "greatest float": Everything(float, 1.7976931348623157e308, 1.7976931348623157e308),
    "least float": Everything(float, 5e-324, 5e-324),
    "just below whole": Everything(float, 9007199254740991.0, 9007199254740991.0),
    "list": Everything(list[Any], [1, [], [None, {"a": [True]}]], [1, [], [None, {"a": [True]}]]),
    "dict": Everything(dict[str, int], {"bb": 1, "a": 2, "ä": 3, "": 4}, {"": 4, "a": 2, "bb": 1, "ä": 3}),
    "any": Everything(Any, {"a": [1, 2.5, None, "x"]}, {"a": [1, 2.5, None, "x"]}),
    "uuid": Everything(UUID, ID, str(ID)),
    "instant": Everything(datetime, datetime(2024, 2, 29, 1, 2, 3, 4, UTC), "2024-02-29T01:02:03.000004+00:00"),
    "instant elsewhere": Everything(datetime, datetime(2024, 2, 29, tzinfo=EAST), "2024-02-29T00:00:00+05:45"),
    "date": Everything(date, date(1, 1, 1), "0001-01-01"),
    "time": Everything(time, time(23, 59, 59, 999_999), "23:59:59.999999"),
    "duration": Everything(timedelta, timedelta(days=-1, microseconds=1), "-P0DT86399.999999S"),
    "long duration": Everything(timedelta, timedelta(days=400, seconds=3), "P400DT3S"),
    "decimal": Everything(Decimal, Decimal("1.10"), "1.10"),
    "enum": Everything(Colour, Colour.BLUE, "blue"),
    "int enum": Everything(Level, Level.LOW, 1),
    "text enum": Everything(Kind, Kind.SMALL, "small"),
    "literal": Everything(Literal["a", 1], "a", "a"),
    "tuple": Everything(tuple[int, str], (1, "a"), [1, "a"]),
    "long tuple": Everything(tuple[UUID, ...], (ID, ID), [str(ID)] * 2),
    "set": Everything(set[int], {3, 1, 2}, [1, 2, 3]),
    "set of instants": Everything(
        set[datetime],
        {datetime(2024, 10, 27, 2, 30, tzinfo=EAST), datetime(2024, 1, 1, tzinfo=UTC)},
        ["2024-01-01T00:00:00+00:00", "2024-10-27T02:30:00+05:45"],
    ),
    "frozenset": Everything(frozenset[str], frozenset({"b", "a"}), ["a", "b"]),
    "optional": Everything(Optional[UUID], None, None),  # noqa: UP045
    "union": Everything(int | str, "7", "7"),
    "dataclass": Everything(
        Person,
        Person(ID, Address("Elm St", date(2024, 1, 2)), {"work": Address("x", tags=["a"])}),
        {
            "id": str(ID),
            "home": {"street": "Elm St", "moved": "2024-01-02", "tags": []},
            "by_name": {"work": {"street": "x", "moved": None, "tags": ["a"]}},
        },
    ),
    "named tuple": Everything(Point, Point(1, 0.5), [1, 0.5]),
    "typed dict": Everything(Options, {"deep": {"a": [1]}}, {"deep": {"a": [1]}}),
    "struct": Everything(Money, Money(Decimal("9.90"), "EUR"), {"amount": "9.90", "cur": "EUR"}),
    "attrs": Everything(Parcel, Parcel(1.5), {"weight": 1.5, "label": "none"}),
    "deep": Everything(Any, json.loads("[" * 150 + "]" * 150), json.loads("[" * 150 + "]" * 150)),
    "long": Everything(str, "x" * 2_000_000, "x" * 2_000_000),
    "offset with seconds": Everything(
        datetime, datetime(1890, 1, 1, tzinfo=timezone(timedelta(seconds=3208))), "1889-12-31T23:06:32+00:00"
    ),
    "annotated": Everything(Annotated[int, msgspec.Meta(ge=1)], 1, 1),
    "annotated with words": Everything(Annotated[UUID, "of the order"], ID, str(ID)),
    "new type": Everything(UserId, UserId(5), 5),
    "whole TypedDict": Everything(Plain, {"at": datetime(2024, 1, 1, tzinfo=UTC)}, {"at": "2024-01-01T00:00:00+00:00"}),
    "generic": Everything(
        Box[date],
        Box(date(2024, 1, 2), Box(date(2024, 1, 3))),
        {"held": "2024-01-02", "inner": {"held": "2024-01-03", "inner": None}},
    ),
    "tagged union": Everything(
        list[Cat | Dog], [Cat(9), Dog("Rex")], [{"type": "Cat", "lives": 9}, {"type": "Dog", "name": "Rex"}]
    ),
    "one of a tagged union": Everything(Dog, Dog("Rex"), {"type": "Dog", "name": "Rex"}),
    "struct as array": Everything(Position, Position(1, date(2024, 1, 2)), ["at", 1, "2024-01-02"]),
    "unset fields": Everything(Change, Change(until=date(2024, 1, 2)), {"until": "2024-01-02"}),
    "frozen attrs": Everything(
        Shipment,
        Shipment(datetime(2024, 1, 1, tzinfo=UTC), [Parcel(1.5)], 7),
        {
            "at": "2024-01-01T00:00:00+00:00",
            "_secret": 7,
            "parcels": [{"label": "none", "weight": 1.5}],
        },
    ),
    "pydantic": Everything(
        Customer,
        Customer(id=ID, tags={"b", "a"}, home=Address("x", date(2024, 1, 2))),
        {
            "id": str(ID),
            "born": None,
            "home": {"tags": [], "moved": "2024-01-02", "street": "x"},
            "tags": ["a", "b"],
        },
    ),
    "pydantic in containers": Everything(
        dict[str, list[Customer]],
        {"a": [Customer(id=ID)]},
        {"a": [{"id": str(ID), "born": None, "home": None, "tags": []}]},
    ),
    "pydantic or none": Everything(Optional[Numbers], Numbers([1, 2]), [1, 2]),  # noqa: UP045
    "pydantic in a dataclass": Everything(
        Visit,
        Visit(Customer(id=ID), [Customer(id=ID, born=date(2024, 1, 2))]),
        {
            "by": {"id": str(ID), "born": None, "home": None, "tags": []},
            "others": [{"id": str(ID), "born": "2024-01-02", "home": None, "tags": []}],
        },
    ),
    "pydantic aliases": Everything(Aliased, Aliased(orderId=1, hidden=2, one=3), {"one": 3, "hidden": 2, "orderId": 1}),
    "strict pydantic": Everything(
        Strict,
        Strict(
            price=Decimal("1.50"),
            grace=timedelta(days=-3, microseconds=4),
            site=pydantic.HttpUrl("https://a.example/b"),
            parts=(1, 2),
        ),
        {"site": "https://a.example/b", "grace": "-P2DT86399.999996S", "parts": [1, 2], "price": "1.50"},
    ),
    "pydantic with more": Everything(Open, Open.model_validate({"x": 1, "y": {"z": [2]}}), {"x": 1, "y": {"z": [2]}}),
    "generic pydantic": Everything(Page[UUID], Page[UUID](items=[ID]), {"items": [str(ID)]}),
}


def carrying(hint: Any) -> xjobs.JobHandle[..., [Any], None]:
    """A job whose one parameter has that annotation."""

    def carry(value: Any) -> None: ...

    carry.__annotations__ = {"value": hint, "return": None}
    return xjobs.job(key=xjobs.NO_KEY)(carry)


def spelled(value: Any) -> str:
    """A value with its types and the order of its keys."""
    return repr(value)


@pytest.mark.parametrize("name", VALUES)
async def test_a_value_is_stored_as_its_json_form_and_received_as_its_type(queue: xjobs.AsyncQueue, name: str) -> None:
    hint, value, stored = VALUES[name]
    job = carrying(hint)
    call = job.call(value)
    made = await queue.enqueue(call)
    row = await queue.job(made.id)
    assert row is not None
    assert row.input == {"value": stored}
    (claimed,) = (await queue.claim(queues=["default"], worker_id="w")).jobs
    assert spelled(claimed.input) == spelled(row.input)
    received = job.codec.decode(claimed.input)["value"]
    assert spelled(received) == spelled(call.values["value"])
    assert received == value
    assert type(received) is type(value)


async def test_every_driver_reads_back_the_same_spelling(store: Store, queue: xjobs.AsyncQueue) -> None:
    """Order of keys and types of numbers included: memory against whichever this is."""
    memory = MemoryStore(lambda: datetime.now(UTC))
    for hint, value, _ in VALUES.values():
        call = carrying(hint).call(value)
        rows = [await one.job((await one.enqueue(call)).id) for one in (queue, queue_on(memory.driver))]
        assert spelled(rows[0] and rows[0].input) == spelled(rows[1] and rows[1].input)


async def test_parameters_are_stored_in_one_order_however_they_were_passed(queue: xjobs.AsyncQueue) -> None:
    @xjobs.job(key=xjobs.NO_KEY)
    def many(second: int, a: int, zz: int, b: int = 9) -> None: ...

    calls = [many.call(1, 2, 3), many.call(b=9, zz=3, a=2, second=1), many.call(zz=3, second=1, a=2)]
    made = await queue.enqueue_many(calls)
    rows = [await queue.job(answer.id) for answer in made]
    assert [list(row.input.items()) for row in rows if row] == [[("a", 2), ("b", 9), ("zz", 3), ("second", 1)]] * 3


async def test_the_stored_input_is_not_the_callers_object(queue: xjobs.AsyncQueue) -> None:
    job, given = carrying(list[int]), [1]
    call = job.call(given)
    given.append(2)
    made = await queue.enqueue(call)
    row = await queue.job(made.id)
    assert row is not None
    assert row.input == {"value": [1]}
    row.input["value"].append(3)
    again = await queue.job(made.id)
    assert again is not None
    assert again.input == {"value": [1]}


async def test_a_job_without_parameters_stores_an_empty_object(queue: xjobs.AsyncQueue) -> None:
    @xjobs.job(key=xjobs.NO_KEY)
    def ping() -> None: ...

    await ping.aenqueue()
    assert [row.input for row in await queue.jobs()] == [{}]


class Foreign:
    """A number as array libraries have them: no int, though it can be made one."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


@dataclass
class Villa(Address):
    garden: bool = False


class Client(Customer):
    since: int


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr


class Blob(pydantic.BaseModel):
    data: bytes


def with_note(model: Open) -> Open:
    model._note = "lost"
    return model


def _cycle() -> list[Any]:
    loop: list[Any] = []
    loop.append({"in": loop})
    return loop


REFUSED: dict[str, tuple[Any, Callable[[], Any], str]] = {
    "nan": (float, lambda: float("nan"), "input.value"),
    "infinity": (Any, lambda: [1, {"a": float("-inf")}], "input.value[1].a"),
    "decimal nan": (Decimal, lambda: Decimal("NaN"), "input.value"),
    "nul": (Any, lambda: {"a": ["b\0"]}, "input.value.a[0]"),
    "nul key": (Any, lambda: {"b\0": 1}, "input.value"),
    "surrogate": (Any, lambda: ["\ud800"], "input.value[0]"),
    "surrogate key": (Any, lambda: {"\udfff": 1}, "input.value"),
    "big int": (Any, lambda: [2**63], "input.value[0]"),
    "small int": (Any, lambda: -(2**63) - 1, "input.value"),
    "int key": (Any, lambda: {"a": {1: 2}}, "input.value.a"),
    "naive": (datetime, lambda: datetime(2024, 1, 1), "input.value"),  # noqa: DTZ001
    "bytes": (Any, lambda: [b"x"], "input.value[0]"),
    "object": (Any, lambda: {"x": object()}, "input.value.x"),
    "class": (Any, lambda: Address, "input.value"),
    "function": (Any, lambda: len, "input.value"),
    "complex": (Any, lambda: 1j, "input.value"),
    "cycle": (Any, _cycle, "input.value[0].in"),
    "too deep": (Any, lambda: json.loads("[" * 201 + "]" * 201), "input.value" + "[0]" * 200),
    "datetime without its type": (Any, lambda: {"at": datetime(2024, 1, 1, tzinfo=UTC)}, "input.value.at"),
    "uuid without its type": (Any, lambda: ID, "input.value"),
    "tuple without its type": (Any, lambda: [(1, 2)], "input.value[0]"),
    "text for an int": (int, lambda: "7", "input.value"),
    "int for a text": (list[str], lambda: ["a", 7], "input.value[1]"),
    "bool for an int": (int, lambda: True, "input.value"),
    "unknown enum": (Colour, lambda: "green", "input.value"),
    "field of a dataclass": (Address, lambda: {"street": 5}, "input.value.street"),
    "missing field": (Address, dict, "input.value"),
    "short tuple": (tuple[int, int], lambda: [1], "input.value"),
    "set of lost types": (set[Any], lambda: {1, date(2024, 1, 2)}, "input.value[1]"),
    "none": (str, lambda: None, "input.value"),
    "none inside": (dict[str, list[int]], lambda: {"a": [1, None]}, "input.value.a[1]"),
    "none under an odd key": (
        dict[str, dict[str, int]],
        lambda: {"a": {}, "b.c": {"x": 1, "": 2, "y z": None}},
        "input.value.b.c.y z",
    ),
    "generator": (list[int], lambda: (n for n in (1, 2)), "input.value"),
    "iterator": (Any, lambda: {"a": iter([1])}, "input.value.a"),
    "int of another library": (int, lambda: Foreign(7), "input.value"),
    "naive text": (datetime, lambda: "2024-01-01T00:00:00", "input.value"),
    "naive text inside": (list[Optional[datetime]], lambda: ["2024-01-01T00:00:00"], "input.value[0]"),  # noqa: UP045
    "naive text in a field": (Plain, lambda: {"at": "2024-01-01T00:00:00"}, "input.value.at"),
    "datetime for a date": (date, lambda: datetime(2024, 1, 1, tzinfo=UTC), "input.value"),
    "subclass of a dataclass": (Address, lambda: Villa("x", garden=True), "input.value"),
    "subclass inside": (list[Address], lambda: [Address("x"), Villa("x", garden=True)], "input.value[1]"),
    "key that no field has": (Address, lambda: {"street": "x", "stret": "y"}, "input.value.stret"),
    "key that a TypedDict lacks": (Options, lambda: {"deep": {}, "deeep": {}}, "input.value.deeep"),
    "key that is lost inside": (
        dict[str, list[Person]],
        lambda: {"a": [{"id": str(ID), "home": {"street": "x", "no": 1}}]},
        "input.value.a[0].home.no",
    ),
    "text of an attrs field": (Parcel, lambda: Parcel(1.0, "a\0"), "input.value.label"),
    "nan of a struct": (Position, lambda: Cat(float("nan")), "input.value.lives"),  # type: ignore[arg-type]
    "pydantic naive": (Any, lambda: Open.model_validate({"x": 1, "at": datetime(2024, 1, 1)}), "input.value.at"),  # noqa: DTZ001
    "pydantic bytes": (Open, lambda: Open.model_validate({"x": 1, "b": [b"x"]}), "input.value.b[0]"),
    "pydantic bytes by annotation": (Blob, lambda: Blob(data=b"x"), "input.value.data"),
    "pydantic nan": (Open, lambda: Open.model_validate({"x": 1, "n": float("nan")}), "input.value.n"),
    "pydantic int key": (Open, lambda: Open.model_validate({"x": 1, "d": {1: 2}}), "input.value.d"),
    "pydantic type lost": (Open, lambda: Open.model_validate({"x": 1, "d": date(2024, 1, 2)}), "input.value.d"),
    "pydantic secret": (Login, lambda: Login(password=pydantic.SecretStr("x")), "input.value.password"),
    "pydantic private": (Open, lambda: with_note(Open(x=1)), "input.value"),
    "pydantic without its type": (Any, lambda: {"a": Open(x=1)}, "input.value.a"),
    "pydantic subclass": (Customer, lambda: Client(id=ID, since=1), "input.value"),
    "pydantic refuses": (Customer, lambda: {"id": str(ID), "born": "soon"}, "input.value.born"),
    "pydantic refuses inside": (
        Visit,
        lambda: {"by": {"id": str(ID)}, "others": [{"id": str(ID), "home": {"street": 5}}]},
        "input.value.others[0].home.street",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_refused_is_refused_in_the_caller_with_its_path(
    queue: xjobs.AsyncQueue, tables: Tables, name: str
) -> None:
    hint, make, path = REFUSED[name]
    job = carrying(hint)
    with pytest.raises(xjobs.InputInvalid) as caught:
        await job.aenqueue(make())
    assert (caught.value.code, caught.value.path, tables.jobs()) == ("X_INPUT_INVALID", path, [])


_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(values=st.lists(_JSON, min_size=1, max_size=8))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_json_value_is_the_same_on_memory_and_postgres(run: Any, values: list[Any]) -> None:
    job = carrying(Any)
    calls = [job.call(value) for value in values]
    read = []
    for driver in (MemoryDriver(), run.shared().blocking):
        queue = queue_on(driver)
        made = run_sync(queue.enqueue_many(calls))
        rows = [run_sync(queue.job(answer.id)) for answer in made]
        read.append([row.input["value"] for row in rows if row])
    assert spelled(read[0]) == spelled(read[1])
    assert read[0] == values
    received = [job.codec.decode({"value": value})["value"] for value in read[1]]
    assert spelled(received) == spelled([call.values["value"] for call in calls])


def test_moved_clocks_do_not_change_what_is_stored(clock: Clock) -> None:
    """A frozen clock puts its own datetime class in the place of the standard one."""
    job = carrying(datetime)
    real = datetime(2024, 1, 2, tzinfo=UTC)
    clock.freeze(real)
    moved = importlib.import_module("datetime").datetime
    assert moved is not type(real)
    for value in (moved.now(UTC), moved(2024, 1, 2, tzinfo=UTC), real):
        call = job.call(value)
        assert call.input_json == '{"value":"2024-01-02T00:00:00+00:00"}'
        assert job.codec.decode({"value": "2024-01-02T00:00:00+00:00"})["value"] == real


# Types by annotation --------------------------------------------------------------------------------------------------

_OFFSETS = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
_SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    str: _TEXT,
    int: st.integers(-(2**63), 2**63 - 1),
    bool: st.booleans(),
    UUID: st.uuids(),
    datetime: st.datetimes(timezones=_OFFSETS),
    date: st.dates(),
    time: st.times(),
    timedelta: st.timedeltas(),
    Decimal: st.decimals(allow_nan=False, allow_infinity=False),
    Colour: st.sampled_from(Colour),
    Level: st.sampled_from(Level),
    Literal["a", 1]: st.sampled_from(["a", 1]),
}
_HINTS = st.recursive(
    st.sampled_from(list(_SCALARS)),
    lambda inner: st.one_of(
        inner.map(lambda hint: list[hint]),
        inner.map(lambda hint: dict[str, hint]),
        inner.map(lambda hint: Optional[hint]),  # noqa: UP045
        inner.map(lambda hint: Box[hint]),
        st.tuples(inner, inner).map(lambda hints: tuple[hints]),
        st.sampled_from(list(_SCALARS)).map(lambda hint: frozenset[hint]),
    ),
    max_leaves=4,
)


def _values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values that fit an annotation of `_HINTS`."""
    if hint in _SCALARS:
        return _SCALARS[hint]
    made, parts = get_origin(hint), [_values_of(part) for part in get_args(hint) if part is not type(None)]
    if made is list:
        return st.lists(parts[0], max_size=3)
    if made is dict:
        return st.dictionaries(_TEXT, parts[1], max_size=3)
    if made is tuple:
        return st.tuples(*parts)
    if made is frozenset:
        return st.frozensets(parts[0], max_size=3)
    if made is Box:
        return st.builds(Box, parts[0], st.none() | st.builds(Box, parts[0]))
    return st.none() | parts[0]


def _types_of(value: Any) -> Any:
    """The types of a value and of all that it holds, in order."""
    if isinstance(value, dict):
        return dict, sorted((key, _types_of(item)) for key, item in value.items())
    if isinstance(value, Box):
        return Box, _types_of(value.held), _types_of(value.inner)
    held = list(value) if isinstance(value, list | tuple) else []
    return type(value).__name__, *(_types_of(item) for item in held)


@given(data=st.data())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_typed_value_is_received_as_it_was_passed(run: Any, data: st.DataObject) -> None:
    """Encoded, stored, read back and decoded: the same value of the same types, from memory and from Postgres."""
    hint = data.draw(_HINTS)
    value = data.draw(_values_of(hint))
    job = carrying(hint)
    call = job.call(value)
    for driver in (MemoryDriver(), run.shared().blocking):
        queue = queue_on(driver)
        made = run_sync(queue.enqueue(call))
        row = run_sync(queue.job(made.id))
        assert row is not None
        received = job.codec.decode(row.input)["value"]
        assert received == value
        assert _types_of(received) == _types_of(value)


@given(value=st.datetimes(timezones=st.timezones()))
@settings(deadline=None)
def test_an_instant_of_any_zone_and_year_is_kept(value: datetime) -> None:
    """Also in an hour that comes twice, and by local mean time, whose offset has seconds."""
    received = carrying(datetime).call(value).values["value"]
    assert received.astimezone(UTC) == value.astimezone(UTC)


def test_pydantic_is_not_imported_for_anything_else() -> None:
    code = """
import sys, dataclasses, datetime, typing, attrs, msgspec, xjobs

@dataclasses.dataclass
class Line:
    at: datetime.date

@attrs.define
class Parcel:
    line: Line

@xjobs.job(key=xjobs.NO_KEY)
def work(parcel: typing.Optional[Parcel], line: list[Line], any: typing.Any): ...

line = Line(datetime.date(2024, 1, 2))
work.call(Parcel(line), [line], {"a": 1})
assert [name for name in sys.modules if name.startswith("pydantic")] == []
"""
    subprocess.run([sys.executable, "-c", code], check=True)

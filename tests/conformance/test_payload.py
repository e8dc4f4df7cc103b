"""Input as it is stored, read back, and received by the body: the same on every driver."""

from __future__ import annotations

import enum
import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal, NamedTuple, Optional, TypedDict
from uuid import UUID

import attrs
import msgspec
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
    "long": Everything(str, "x" * 200_000, "x" * 200_000),
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

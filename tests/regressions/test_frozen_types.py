"""Types whose annotations are first looked at while a frozen clock has its own classes in the place of datetime's.

A dataclass that was first enqueued in a frozen test was refused from then on, in every test of the process, since
msgspec remembers what its fields' annotations were resolved to.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import freezegun
import pydantic
import pytest

import xjobs

pydantic.TypeAdapter(datetime)  # it notes the types of datetime when it is first used, which must not be frozen ones

_NUMBERS = itertools.count()
_HEAD = """
from __future__ import annotations
import attrs, dataclasses, msgspec, pydantic, typing, xjobs
from datetime import date, datetime
"""
KINDS = {
    "dataclass": "@dataclasses.dataclass\nclass Thing:\n    {fields}",
    "TypedDict": "class Thing(typing.TypedDict):\n    {fields}",
    "NamedTuple": "class Thing(typing.NamedTuple):\n    {fields}",
    "struct": "class Thing(msgspec.Struct):\n    {fields}",
    "attrs": "@attrs.define\nclass Thing:\n    {fields}",
}
_FIELDS = "at: datetime\n    day: typing.Optional[date]\n    many: dict[str, list[datetime]]"
_BODY = """
def declare():
    @xjobs.job(key=xjobs.NO_KEY)
    def work(thing: Thing, at: typing.Optional[datetime], days: list[date], either: datetime | int): ...
    return work
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Imports a source as a module that nothing has looked at before."""
    monkeypatch.syspath_prepend(tmp_path)

    def load(source: str) -> Any:
        name = f"frozen_types_{next(_NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(source)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    return load


def _arrives(work: Any, kind: Any) -> None:
    """Enqueueing the present time gives it back, as the standard class."""
    now = importlib.import_module("datetime").datetime.now(UTC)
    thing = kind(at=now, day=now.date(), many={"a": [now]})
    values = work.call(thing, now, [now.date()], now).values
    assert values == {"thing": thing, "at": now, "days": [now.date()], "either": now}
    assert type(values["at"]).__module__ == type(values["either"]).__module__ == "datetime"
    with pytest.raises(xjobs.InputInvalid) as caught:
        work.call(kind(at=now, day=None, many={"a": [now, "soon"]}), None, [], 1)
    assert caught.value.path.endswith(".many.a[1]") or caught.value.path == "input.thing[2].a[1]"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("imported", ["before", "inside"])
@pytest.mark.parametrize("declared", ["before", "inside"])
def test_a_type_first_used_under_a_frozen_clock_works_there_and_ever_after(
    module: Callable[[str], Any], kind: str, imported: str, declared: str
) -> None:
    source = _HEAD + KINDS[kind].format(fields=_FIELDS) + _BODY
    app = module(source) if imported == "before" else None
    work = app.declare() if app and declared == "before" else None
    with freezegun.freeze_time("2031-05-06 07:08:09.123456"):
        app = app or module(source)
        work = work or app.declare()
        _arrives(work, app.Thing)
    _arrives(work, app.Thing)
    _arrives(app.declare(), app.Thing)


def test_a_pydantic_model_takes_frozen_instants(module: Callable[[str], Any]) -> None:
    app = module(_HEAD + f"class Thing(pydantic.BaseModel):\n    {_FIELDS}" + _BODY)
    with freezegun.freeze_time("2031-05-06 07:08:09.123456"):
        work = app.declare()
        now = importlib.import_module("datetime").datetime.now(UTC)
        thing = app.Thing(at=now, day=now.date(), many={"a": [now]})
        assert work.call(thing, now, [now.date()], 1).values["thing"] == thing
    assert work.call(thing, None, [], datetime.now(UTC)).values["thing"] == thing

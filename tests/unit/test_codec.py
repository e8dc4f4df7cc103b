"""Input in both directions, without a store: binding, paths, messages. What is stored is tested in conformance."""

from __future__ import annotations

import enum
import json
from collections import OrderedDict, UserDict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypedDict
from uuid import UUID

import attrs
import msgspec
import pytest
from hypothesis import given, strategies as st

import xjobs
from xjobs.codec import MAX_DEPTH, Codec, lower

if TYPE_CHECKING:
    from somewhere import Hidden

ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")


class Kind(enum.StrEnum):
    A = "a"


class Text(str):
    __slots__ = ()


class Count(int):
    pass


@dataclass
class Line:
    sku: str
    when: datetime


@dataclass
class Order:
    lines: list[Line]
    note: str = ""


class Pair(NamedTuple):
    left: int
    right: int


def codec_of(body: Any) -> Codec:
    return xjobs.job(key=xjobs.NO_KEY)(body).codec


def work(order: Order, *, times: int = 1, tag: Any = None) -> None: ...


class TestBind:
    def test_defaults_are_filled_in(self) -> None:
        codec = codec_of(work)
        order = Order([])
        for args, kwargs in [((order,), {}), ((), {"order": order})]:
            bound = codec.bind(args, kwargs)
            assert list(bound.items()) == [("order", order), ("times", 1), ("tag", None)]

    @pytest.mark.parametrize(
        ("args", "kwargs", "text"),
        [
            ((), {}, "missing a required argument: 'order'"),
            ((1, 2), {}, "too many positional arguments"),
            ((1,), {"order": 2}, "multiple values for argument 'order'"),
            ((), {"order": 1, "tmies": 2}, "there is no parameter 'tmies'"),
            ((), {"order": 1, "times": 2, "tag": 3, "more": 4}, "there is no parameter 'more'"),
        ],
    )
    def test_a_call_that_does_not_fit_names_the_job_and_its_parameters(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], text: str
    ) -> None:
        with pytest.raises(xjobs.InputInvalid, match=text) as caught:
            codec_of(work).bind(args, kwargs)
        assert str(caught.value).startswith("input of job 'work': ")
        assert f"order: {__name__}.Order, *, times: int = 1, tag: Any = None" in caught.value.remedy

    def test_a_job_without_parameters_says_so(self) -> None:
        def none() -> None: ...

        with pytest.raises(xjobs.InputInvalid, match="its parameters are none"):
            codec_of(none).bind((1,), {})


class TestEncode:
    def test_the_text_is_strict_json_with_its_keys_in_jsonb_order(self) -> None:
        text, values = codec_of(work).encode(
            {"order": Order([Line("x", datetime(2024, 1, 1, tzinfo=UTC))]), "times": 2}
        )
        assert text == (
            '{"order":{"note":"","lines":[{"sku":"x","when":"2024-01-01T00:00:00+00:00"}]},"times":2}'
        ).replace('{"order"', '{"order"')
        assert values["times"] == 2
        assert values["tag"] is None

    def test_the_body_receives_no_object_of_the_caller(self) -> None:
        given = {"a": [1]}
        _, values = codec_of(work).encode({"order": Order([]), "times": 1, "tag": given})
        assert values["tag"] == given
        assert values["tag"] is not given
        assert values["tag"]["a"] is not given["a"]

    @pytest.mark.parametrize(
        ("order", "path"),
        [
            (Order([Line("a\0", datetime.now(UTC))]), "input.order.lines[0].sku"),
            (Order([Line("a", datetime(2024, 1, 1))]), "input.order.lines[0].when"),  # noqa: DTZ001
            ({"lines": [{"sku": "a", "when": "soon"}]}, "input.order.lines[0].when"),
            ({"lines": [{"sku": "a"}]}, "input.order.lines[0]"),
            ({"lines": "x"}, "input.order.lines"),
            (None, "input.order"),
        ],
    )
    def test_a_bad_value_is_named_by_its_path(self, order: Any, path: str) -> None:
        with pytest.raises(xjobs.InputInvalid) as caught:
            codec_of(work).encode({"order": order, "times": 1, "tag": None})
        assert caught.value.path == path
        assert str(caught.value).startswith(path)

    def test_a_mapping_may_stand_for_a_dataclass(self) -> None:
        _, values = codec_of(work).encode({"order": {"lines": []}, "times": 1, "tag": None})
        assert values["order"] == Order([])

    @pytest.mark.parametrize(
        ("value", "asks"),
        [
            (ID, "annotate the parameter with UUID"),
            ((1, 2), "annotate the parameter with tuple"),
            ([{"a": timedelta(1)}], "annotate the parameter with timedelta"),
            (Line("x", datetime.now(UTC)), "annotate the parameter with Line"),
            (Pair(1, 2), "annotate the parameter with Pair"),
            ({1, 2}, "annotate the parameter with set"),
        ],
    )
    def test_a_value_that_would_arrive_as_another_type_asks_for_its_annotation(self, value: Any, asks: str) -> None:
        with pytest.raises(xjobs.InputInvalid, match=asks):
            codec_of(work).encode({"order": Order([]), "times": 1, "tag": value})

    @pytest.mark.parametrize(
        ("value", "arrives"),
        [(Text("a"), "a"), (Count(7), 7), (OrderedDict(a=1), {"a": 1}), (Kind.A, Kind.A.value)],
        ids=["str", "int", "dict", "enum"],
    )
    def test_a_refinement_of_a_plain_type_arrives_as_the_plain_value(self, value: Any, arrives: Any) -> None:
        _, values = codec_of(work).encode({"order": Order([]), "times": 1, "tag": value})
        assert values["tag"] == arrives
        assert type(values["tag"]) is type(arrives)

    def test_constraints_of_annotations_hold(self) -> None:
        def page(size: Annotated[int, msgspec.Meta(ge=1, le=100)]) -> None: ...

        codec = codec_of(page)
        assert codec.encode({"size": 100})[1] == {"size": 100}
        with pytest.raises(xjobs.InputInvalid, match=r"input\.size"):
            codec.encode({"size": 101})


class TestDecode:
    def test_what_a_default_fills_in_later_deploys_may_add(self) -> None:
        assert codec_of(work).decode({"order": {"lines": []}}) == {"order": Order([]), "times": 1, "tag": None}

    @pytest.mark.parametrize(
        ("stored", "path"),
        [
            ({"order": {"lines": []}, "colour": 1}, "input"),
            ({}, "input"),
            ([1], "input"),
            (None, "input"),
            ({"order": {"lines": [1]}}, "input.order.lines[0]"),
        ],
    )
    def test_a_row_of_another_deploy_is_refused_with_its_path(self, stored: Any, path: str) -> None:
        with pytest.raises(xjobs.InputInvalid, match="of job 'work'") as caught:
            codec_of(work).decode(stored)
        assert caught.value.path == path


class TestLower:
    @pytest.mark.parametrize("depth", [1, MAX_DEPTH - 1, MAX_DEPTH])
    def test_nesting_is_allowed_to_its_bound(self, depth: int) -> None:
        value = json.loads("[" * depth + "]" * depth)
        assert lower(value) == value

    def test_deeper_nesting_is_refused(self) -> None:
        with pytest.raises(xjobs.InputInvalid, match="nested more than 200 deep"):
            lower(json.loads("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)))

    def test_a_value_may_be_there_twice_without_being_in_itself(self) -> None:
        part = {"a": 1}
        assert lower([part, part, {"again": part}]) == [part, part, {"again": part}]

    @pytest.mark.parametrize(
        "value", [UserDict(), range(3), iter([]), b"", bytearray(), memoryview(b""), 1j, object, ...]
    )
    def test_what_json_cannot_carry_is_refused_with_its_type(self, value: Any) -> None:
        with pytest.raises(xjobs.InputInvalid, match=rf"of type {type(value).__name__}, which JSON cannot carry"):
            lower(value)

    def test_long_values_are_cut_in_messages(self) -> None:
        with pytest.raises(xjobs.InputInvalid) as caught:
            lower(10**500)
        assert len(str(caught.value)) < 200

    @given(st.floats(allow_nan=False, allow_infinity=False))
    def test_a_float_keeps_its_value(self, value: float) -> None:
        lowered = lower(value)
        assert lowered == value
        assert isinstance(lowered, int) == (abs(value) >= 1e16)
        assert str(lowered) != "-0.0"

    @given(st.timedeltas())
    def test_a_duration_is_iso_8601_and_comes_back(self, value: timedelta) -> None:
        text = lower(value)
        assert msgspec.convert(text, timedelta) == value


class TestPartial:
    def test_some_arguments_are_lowered_without_the_rest(self) -> None:
        when = datetime(2024, 1, 1, tzinfo=UTC)
        codec = codec_of(work)
        assert codec.lower_partial({"order": {"lines": [Line("x", when)]}}) == {
            "order": {"lines": [{"sku": "x", "when": "2024-01-01T00:00:00+00:00"}]}
        }

    def test_another_name_is_refused(self) -> None:
        with pytest.raises(xjobs.InputInvalid, match="has no parameter 'tmies'"):
            codec_of(work).lower_partial({"tmies": 1})


def test_an_annotation_that_cannot_be_converted_is_a_fault_of_the_declaration() -> None:
    def odd(value: Line | Order) -> None: ...

    with pytest.raises(xjobs.DeclarationInvalid, match="job 'odd'"):
        codec_of(odd).encode({"value": {}})


class TestAnnotationsThatCannotBeResolved:
    """Each is a fault of the declaration, said at the first moment that it can be known."""

    @pytest.mark.parametrize(
        ("annotation", "said"),
        [
            ("Hidden", "name 'Hidden' is not defined"),
            ("list[Hidden]", "name 'Hidden' is not defined"),
            ("datetime.Hidden", "has no attribute 'Hidden'"),
            ("list[", "SyntaxError"),
            ("Any()", "Any cannot be instantiated"),
        ],
    )
    def test_of_a_parameter_at_the_declaration(self, annotation: str, said: str) -> None:
        def odd(value: Any) -> None: ...

        odd.__annotations__["value"] = annotation
        with pytest.raises(xjobs.DeclarationInvalid, match="an annotation of job 'odd' cannot be resolved") as caught:
            xjobs.job(key=xjobs.NO_KEY)(odd)
        assert said == "SyntaxError" or said in str(caught.value)
        assert "not only under TYPE_CHECKING" in caught.value.remedy

    @pytest.mark.parametrize("kind", ["dataclass", "struct", "attrs", "TypedDict", "NamedTuple"])
    def test_inside_a_type_at_the_first_call(self, kind: str) -> None:
        def odd(value: Any) -> None: ...

        odd.__annotations__["value"] = HIDING[kind]
        with pytest.raises(xjobs.DeclarationInvalid, match=r"job 'odd'.* cannot be resolved: name 'Hidden'") as caught:
            codec_of(odd).encode({"value": {}})
        assert caught.value.remedy == "import it at module level, not only under TYPE_CHECKING"


class HidingStruct(msgspec.Struct):
    value: Hidden


@attrs.define
class HidingAttrs:
    value: Hidden


@dataclass
class HidingDataclass:
    value: Hidden


class HidingDict(TypedDict):
    value: Hidden


class HidingTuple(NamedTuple):
    value: Hidden


HIDING = {
    "dataclass": HidingDataclass,
    "struct": HidingStruct,
    "attrs": HidingAttrs,
    "TypedDict": HidingDict,
    "NamedTuple": HidingTuple,
}


class TestRefusalsNameTheKey:
    @pytest.mark.parametrize("size", [1, 2, 3, 100])
    def test_wherever_it_stands(self, size: int) -> None:
        def work(value: dict[str, dict[str, int]]) -> None: ...

        codec = codec_of(work)
        for bad in {0, size // 2, size - 1}:
            stored: dict[str, Any] = {f"k{n}": {"a.b": n, "": n} for n in range(size)}
            stored[f"k{bad}"][""] = "x"
            with pytest.raises(xjobs.InputInvalid) as caught:
                codec.decode({"value": stored})
            assert caught.value.path == f"input.value.k{bad}."
            assert "expected `int`, got `str`, the value is 'x'" in str(caught.value)

    def test_the_first_of_several(self) -> None:
        def work(value: dict[str, int]) -> None: ...

        stored = {"value": {"a": 1, "b": "x", "c": None, "d": 2}}
        with pytest.raises(xjobs.InputInvalid, match=r"^input\.value\.b of job 'work': expected `int`, got `str`"):
            codec_of(work).decode(stored)
        assert stored == {"value": {"a": 1, "b": "x", "c": None, "d": 2}}

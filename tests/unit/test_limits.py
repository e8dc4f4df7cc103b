"""What numbers, texts, instants and queue lists are accepted, and as what."""

from __future__ import annotations

import importlib
from collections import UserString
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import freezegun
import pytest

import xjobs
from xjobs.limits import (
    MAX_DELAY,
    MAX_TEXT_BYTES,
    check_count,
    check_duration,
    check_instant,
    check_queues,
    check_text,
)


@pytest.mark.parametrize("value", [0, 1, 7, 2**31 - 1])
def test_a_count_is_a_whole_number_within_its_bounds(value: int) -> None:
    assert check_count(value, "limit") == value


@pytest.mark.parametrize("value", [-1, 2**31, 1.0, 0.5, float("nan"), float("inf"), True, False, "1", None, Decimal(1)])
def test_what_is_no_count_is_refused(value: Any) -> None:
    with pytest.raises(xjobs.Invariant, match=r"limit is .*: give a whole number from 0 to 2,147,483,647") as caught:
        check_count(value, "limit")
    assert caught.value.code == "X_INVARIANT"


def test_a_count_may_have_other_bounds() -> None:
    assert [check_count(value, "n", low=1, high=3) for value in (1, 3)] == [1, 3]
    for value in (0, 4):
        with pytest.raises(xjobs.Invariant, match="from 1 to 3"):
            check_count(value, "n", low=1, high=3)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, timedelta(0)),
        (-3, timedelta(seconds=-3)),
        (0.25, timedelta(milliseconds=250)),
        (90, timedelta(minutes=1, seconds=30)),
        (timedelta(days=2), timedelta(days=2)),
        (MAX_DELAY, MAX_DELAY),
        (-MAX_DELAY, -MAX_DELAY),
    ],
)
def test_a_duration_is_a_timedelta_or_seconds(value: Any, expected: timedelta) -> None:
    assert check_duration(value, "delay") == expected


@pytest.mark.parametrize(
    "value",
    [
        *(float("nan"), float("inf"), float("-inf"), 1e300, 10**30, -1e12),
        MAX_DELAY + timedelta(microseconds=1),
        *(True, "1s", None, Decimal(1), Fraction(1, 2)),
    ],
)
def test_what_is_no_duration_is_refused(value: Any) -> None:
    with pytest.raises(xjobs.Invariant, match="delay is"):
        check_duration(value, "delay")


def test_a_duration_may_have_a_least_value() -> None:
    assert check_duration(1, "lease", low=timedelta(seconds=1)) == timedelta(seconds=1)
    with pytest.raises(xjobs.Invariant, match="give at least 0:00:01"):
        check_duration(0.999, "lease", low=timedelta(seconds=1))


def test_an_instant_is_answered_in_utc() -> None:
    given = datetime(2024, 1, 1, 1, tzinfo=timezone(timedelta(hours=3)))
    assert check_instant(given, "run_at").isoformat() == "2023-12-31T22:00:00+00:00"


def test_an_instant_of_a_frozen_clock_is_answered_as_a_plain_one() -> None:
    with freezegun.freeze_time("2031-05-06 07:08:09.123456"):
        frozen = importlib.import_module("datetime").datetime.now(UTC)
        made = check_instant(frozen, "run_at")
    assert type(frozen) is not type(made) is datetime
    assert made.isoformat() == "2031-05-06T07:08:09.123456+00:00"


@pytest.mark.parametrize(
    "value",
    [datetime(2024, 1, 1), datetime(2024, 1, 1).date(), "2024-01-01T00:00:00Z", 1_700_000_000, None],  # noqa: DTZ001
)
def test_what_is_no_aware_instant_is_refused(value: Any) -> None:
    with pytest.raises(xjobs.Invariant, match="run_at is"):
        check_instant(value, "run_at")


@pytest.mark.parametrize(
    "value",
    [
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
    ],
)
def test_an_instant_beyond_the_calendar_is_refused(value: datetime) -> None:
    with pytest.raises(xjobs.Invariant, match="run_at is"):
        check_instant(value, "run_at")


@pytest.mark.parametrize("value", ["a", "ä 🙂", "constructor", "__proto__", "'; drop table x_jobs; --", "a\nb", "%s"])
def test_any_text_is_a_name(value: str) -> None:
    assert check_text(value, "queue") == value


@pytest.mark.parametrize("value", ["", "a\0b", "\ud800", None, 7, b"a", ["a"], UserString("a")])
def test_what_is_no_storable_text_is_refused(value: Any) -> None:
    with pytest.raises(xjobs.Invariant, match="queue"):
        check_text(value, "queue")


@pytest.mark.parametrize("name", MAX_TEXT_BYTES)
def test_an_indexed_text_is_bounded_in_bytes(name: str) -> None:
    bound = MAX_TEXT_BYTES[name]
    for filler in ("x", "ä"):
        fits = filler * (bound // len(filler.encode()))
        assert check_text(fits, name) == fits
        with pytest.raises(xjobs.Invariant, match=rf"{name} .* has \d+ bytes: keep it within {bound}"):
            check_text(fits + filler, name)


def test_other_texts_are_not_bounded() -> None:
    assert check_text("x" * 10_000, "enqueued_by") == "x" * 10_000


def test_queues_are_answered_once_each_in_their_order() -> None:
    assert check_queues(["b", "a", "b"]) == ["b", "a"]
    assert check_queues(name for name in ("q",)) == ["q"]


@pytest.mark.parametrize("queues", [[], (), set(), iter([])])
def test_no_queues_have_their_own_code(queues: Any) -> None:
    with pytest.raises(xjobs.ClaimQueuesEmpty):
        check_queues(queues)


@pytest.mark.parametrize("queues", ["mail", [""], [None], ["x" * 256]])
def test_what_are_no_queues_is_refused(queues: Any) -> None:
    with pytest.raises(xjobs.Invariant) as caught:
        check_queues(queues)
    assert caught.value.code == "X_INVARIANT"

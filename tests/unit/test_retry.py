"""The delays between tries: curves, cap, jitter."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given, strategies as st

import xjobs
from xjobs.retry import Retry, as_retry


def seconds(policy: Retry, count: int = 6) -> list[float]:
    return [policy.delay_after(attempt).total_seconds() for attempt in range(1, count + 1)]


CURVES = {
    "exponential": ({}, [1, 2, 4, 8, 16, 32]),
    "exponential from 0.5": ({"delay": 0.5}, [0.5, 1, 2, 4, 8, 16]),
    "exponential capped": ({"max_delay": 5}, [1, 2, 4, 5, 5, 5]),
    "linear": ({"backoff": "linear", "delay": 3}, [3, 6, 9, 12, 15, 18]),
    "linear capped": ({"backoff": "linear", "delay": 3, "max_delay": 7}, [3, 6, 7, 7, 7, 7]),
    "fixed": ({"backoff": "fixed", "delay": timedelta(minutes=2)}, [120] * 6),
    "fixed capped": ({"backoff": "fixed", "delay": 60, "max_delay": 10}, [10] * 6),
    "at once": ({"delay": 0}, [0] * 6),
    "negative": ({"delay": -5}, [0] * 6),
    "no room": ({"max_delay": 0}, [0] * 6),
    "negative room": ({"max_delay": -1}, [0] * 6),
}


@pytest.mark.parametrize("name", CURVES)
def test_the_curve_is_capped_and_never_below_zero(name: str) -> None:
    options, expected = CURVES[name]
    assert seconds(Retry(**options)) == expected


@pytest.mark.parametrize("backoff", ["exponential", "linear", "fixed"])
def test_a_high_attempt_does_not_overflow(backoff: Any) -> None:
    policy = Retry(backoff=backoff, delay=timedelta(days=100), max_delay=timedelta(days=365))
    for attempt in (64, 1_000, 1_024, 5_000, 2**31 - 1):
        assert timedelta(0) <= policy.delay_after(attempt) <= timedelta(days=365)


@pytest.mark.parametrize("attempt", [0, -7])
def test_an_attempt_counts_from_one(attempt: int) -> None:
    assert Retry().delay_after(attempt) == Retry().delay_after(1)


def test_the_schedule_is_the_delays_between_all_tries_without_jitter() -> None:
    assert Retry(attempts=5).schedule() == [timedelta(seconds=count) for count in (1, 2, 4, 8)]
    assert Retry(attempts=1).schedule() == []


@given(attempt=st.integers(1, 40), seed=st.integers(), delay=st.floats(0, 10_000), room=st.floats(0, 10_000))
def test_jitter_is_spread_over_the_upper_half_of_the_capped_delay(
    attempt: int, seed: int, delay: float, room: float
) -> None:
    policy = Retry(delay=delay, max_delay=room)
    full = policy.delay_after(attempt)
    jittered = policy.delay_after(attempt, Random(seed))
    slack = timedelta(microseconds=1)
    assert full / 2 - slack <= jittered <= full + slack
    assert full.total_seconds() <= room + 1e-6


def test_jitter_uses_the_whole_upper_half() -> None:
    random = Random(1)
    waits = [Retry(delay=10, backoff="fixed").delay_after(1, random).total_seconds() for _ in range(400)]
    assert min(waits) < 5.1
    assert max(waits) > 9.9
    assert 7 < sum(waits) / len(waits) < 8


def test_jitter_is_on_unless_it_is_switched_off() -> None:
    assert Retry().delay_after(1, Random(3)) != Retry().delay_after(1)
    assert Retry(jitter=False).delay_after(1, Random(3)) == timedelta(seconds=1)


def test_the_final_attempt_is_the_last_one_allowed() -> None:
    assert [Retry(attempts=3).is_final(attempt) for attempt in (1, 2, 3, 4)] == [False, False, True, True]
    assert Retry(attempts=1).is_final(1)


def test_defaults() -> None:
    policy = Retry()
    assert (policy.attempts, policy.backoff, policy.jitter, policy.dead_letter) == (3, "exponential", True, True)
    assert (policy.delay, policy.max_delay) == (timedelta(seconds=1), timedelta(hours=1))


REFUSED = {
    "attempts": [0, -1, 1.5, float("nan"), "3", None, True, 2**31],
    "delay": [float("nan"), float("inf"), "1s", None, True, timedelta(days=40_000)],
    "max_delay": [float("-inf"), "1h", None, False],
    "backoff": ["quadratic", "", None, "Exponential"],
}


@pytest.mark.parametrize(("option", "value"), [(option, value) for option in REFUSED for value in REFUSED[option]])
def test_an_option_out_of_its_range_is_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(xjobs.DeclarationInvalid, match=f"retry.{option}") as caught:
        Retry(**{option: value})
    assert caught.value.code == "X_JOB_DECLARATION_INVALID"


def test_a_policy_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Retry().attempts = 4  # type: ignore[misc]


def test_a_number_is_short_for_the_attempts() -> None:
    policy = Retry(attempts=9)
    assert (as_retry(None), as_retry(7), as_retry(policy)) == (Retry(), Retry(attempts=7), policy)


@pytest.mark.parametrize("value", [0, True, 2.0, "5", {"attempts": 3}])
def test_what_is_no_policy_is_refused(value: Any) -> None:
    with pytest.raises(xjobs.DeclarationInvalid):
        as_retry(value)

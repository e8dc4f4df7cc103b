"""The limits of one process: counts that come back, rates that recover, and memory that stays bounded."""

from __future__ import annotations

import math
from typing import Any

import pytest

import xjobs
from xjobs.worker import Limiter, Rate
from xjobs.worker.limiter import SWEEP


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_one_more_than_the_limit_is_refused_and_a_release_lets_the_next_in() -> None:
    limiter = Limiter(total=2)
    first, second = limiter.acquire("q", None), limiter.acquire("p", "t")
    assert first is not None
    assert second is not None
    assert limiter.acquire("q", None) is None
    assert limiter.blocked_by("q", None) == "total"
    first.release()
    first.release()
    assert limiter.acquire("q", None) is not None
    assert limiter.acquire("q", None) is None, "a second release gave nothing back"


@pytest.mark.parametrize(
    ("limits", "queue", "tenant", "by"),
    [
        ({"per_queue": 1}, "q", "other", "per_queue"),
        ({"per_queue": 1}, "p", "t", None),
        ({"per_tenant": 1}, "p", "t", "per_tenant"),
        ({"per_tenant": 1}, "p", "other", None),
        ({"rate_per_tenant": Rate(1, 60)}, "p", "t", "rate_per_tenant"),
        ({"total": 1, "per_queue": 1, "per_tenant": 1, "rate_per_tenant": Rate(1, 60)}, "q", "t", "total"),
        ({"per_queue": 1, "per_tenant": 1, "rate_per_tenant": Rate(1, 60)}, "q", "t", "per_queue"),
        ({"per_tenant": 1, "rate_per_tenant": Rate(1, 60)}, "q", "t", "per_tenant"),
    ],
)
def test_the_first_limit_that_is_reached_decides(
    limits: dict[str, Any], queue: str, tenant: str, by: str | None
) -> None:
    limiter = Limiter(**limits)
    assert limiter.acquire("q", "t") is not None
    assert limiter.blocked_by(queue, tenant) == by
    assert (limiter.acquire(queue, tenant) is None) == (by is not None)


def test_jobs_without_a_tenant_count_together() -> None:
    limiter = Limiter(per_tenant=1)
    assert limiter.acquire("q", None) is not None
    assert limiter.acquire("p", None) is None
    assert limiter.acquire("q", "t") is not None


@pytest.mark.parametrize("name", ["total", "per_queue", "per_tenant"])
def test_zero_is_a_hard_stop_and_nothing_is_no_limit(name: str) -> None:
    assert Limiter(**{name: 0}).acquire("q", None) is None  # type: ignore[arg-type]
    assert all(Limiter(**{name: None}).acquire("q", None) for _ in range(100))  # type: ignore[arg-type]
    assert Limiter(rate_per_tenant=Rate(0, 1)).acquire("q", None) is None


@pytest.mark.parametrize("value", [-1, 1.5, math.nan, math.inf, "1", True])
@pytest.mark.parametrize("name", ["total", "per_queue", "per_tenant", "rate_per_tenant", "max_tenants"])
def test_numbers_that_cannot_be_are_refused(name: str, value: Any) -> None:
    with pytest.raises(xjobs.Invariant):
        Limiter(**{name: Rate(value, 1) if name == "rate_per_tenant" else value})
    if name == "rate_per_tenant" and value != 1.5:
        with pytest.raises(xjobs.Invariant):
            Limiter(rate_per_tenant=Rate(1, value if value is not True else 0))


def test_a_rate_recovers_as_its_window_moves_on() -> None:
    clock = Clock()
    limiter = Limiter(rate_per_tenant=Rate(2, 10), clock=clock)
    for at in (0, 5):
        clock.now = 1_000.0 + at
        place = limiter.acquire("q", "t")
        assert place is not None
        place.release()
    clock.now = 1_009.9
    assert limiter.acquire("q", "t") is None
    clock.now = 1_010.0
    assert limiter.acquire("q", "t") is not None
    assert limiter.acquire("q", "t") is None


def test_a_run_that_never_started_does_not_count_against_the_rate() -> None:
    clock = Clock()
    limiter = Limiter(rate_per_tenant=Rate(1, 10), total=1, clock=clock)
    for _ in range(3):
        place = limiter.acquire("q", "t")
        assert place is not None
        place.abandon()
        place.release()
    assert limiter.acquire("q", "t") is not None


def test_what_it_remembers_stays_bounded_and_the_busiest_tenants_are_remembered() -> None:
    clock = Clock()
    limiter = Limiter(rate_per_tenant=Rate(3, 1e6), max_tenants=100, clock=clock)
    for _ in range(3):
        limiter.acquire("q", "busy")
    for n in range(1_000):
        place = limiter.acquire(f"queue {n}", f"tenant {n}")
        assert place is not None
        place.release()
    assert len(limiter._starts) <= 100
    assert limiter.acquire("q", "busy") is None
    assert len(limiter._of_queue) + len(limiter._of_tenant) <= 4


def test_windows_in_which_nothing_starts_any_more_are_dropped() -> None:
    clock = Clock()
    limiter = Limiter(rate_per_tenant=Rate(3, 1), clock=clock)
    for n in range(50):
        limiter.acquire("q", f"tenant {n}")
    clock.now += SWEEP + 1
    limiter.acquire("q", "another")
    assert list(limiter._starts) == ["another"]


def test_looking_does_not_leave_counts_behind() -> None:
    limiter = Limiter(per_queue=1, per_tenant=1)
    for n in range(100):
        limiter.blocked_by(f"q{n}", f"t{n}")
    assert (len(limiter._of_queue), len(limiter._of_tenant)) == (0, 0)


def test_a_rate_that_is_none() -> None:
    with pytest.raises(xjobs.Invariant, match=r"rate_per_tenant is 5: give a Rate"):
        Limiter(rate_per_tenant=5)  # type: ignore[arg-type]

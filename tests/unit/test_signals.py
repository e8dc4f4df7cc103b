"""The run signal: one reason, the first, told once to each who listens."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest

from xjobs import Draining, Error, JobCancelled, JobTimeout
from xjobs.signals import RunSignal

FIRST, SECOND = JobCancelled("first", ""), Draining("second", "")


def test_the_first_reason_wins() -> None:
    signal = RunSignal()
    signal.raise_if_stopped()
    assert signal.reason is None
    assert signal.stop(FIRST)
    assert not signal.stop(SECOND)
    assert signal.reason is FIRST
    with pytest.raises(JobCancelled):
        signal.raise_if_stopped()


def test_listeners_are_told_once_and_late_ones_at_once() -> None:
    signal, told = RunSignal(), list[tuple[str, Error]]()
    signal.listen(lambda reason: told.append(("early", reason)))
    forget = signal.listen(lambda reason: told.append(("forgotten", reason)))
    forget()
    forget()
    signal.stop(FIRST)
    signal.stop(SECOND)
    signal.listen(lambda reason: told.append(("late", reason)))()
    assert told == [("early", FIRST), ("late", FIRST)]


def test_of_many_threads_one_wins() -> None:
    signal, told, start = RunSignal(), list[Error](), threading.Barrier(8)
    won: list[bool] = []
    signal.listen(told.append)

    def stop() -> None:
        start.wait()
        won.append(signal.stop(Draining("x", "")))

    threads = [threading.Thread(target=stop) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 7 + [True]
    assert told == [signal.reason]


def test_a_deadline_stops_it_by_its_clock() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    signal, told = RunSignal(), list[Error]()
    signal.listen(told.append)
    signal.expire_after(timedelta(seconds=5), lambda: now)
    now += timedelta(seconds=4.999999)
    assert signal.reason is None
    now += timedelta(microseconds=1)
    assert isinstance(signal.reason, JobTimeout)
    assert not signal.stop(FIRST)
    assert told == [signal.reason]


def test_an_earlier_reason_beats_the_deadline() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    signal = RunSignal()
    signal.expire_after(timedelta(seconds=5), lambda: now)
    signal.stop(FIRST)
    now += timedelta(hours=1)
    assert signal.reason is FIRST

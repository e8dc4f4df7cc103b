"""When a failed job is tried again: the policy of a job, and the delays that follow from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Literal, get_args

from xjobs.errors import DeclarationInvalid, Invariant
from xjobs.limits import check_count, check_duration

Backoff = Literal["exponential", "linear", "fixed"]

_CURVES: dict[str, Callable[[float, int], float]] = {
    "exponential": lambda delay, attempt: delay * 2.0 ** (attempt - 1),
    "linear": lambda delay, attempt: delay * attempt,
    "fixed": lambda delay, _attempt: delay,
}


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and when a job is tried.

    Attributes:
        attempts: tries in all, at least 1.
        backoff: how the delay grows: `exponential` (doubled each time), `linear` or `fixed`.
        delay: before the second try; a timedelta or seconds; zero or less retries at once.
        max_delay: upper bound of every delay, applied before the jitter.
        jitter: spread each delay evenly over its upper half (equal jitter).
        dead_letter: a job that has used its attempts ends `dead`; with False it ends `failed`.

    Raises:
        DeclarationInvalid: an option is out of its range; the message names it.
    """

    attempts: int = 3
    backoff: Backoff = "exponential"
    delay: timedelta | float = timedelta(seconds=1)
    max_delay: timedelta | float = timedelta(hours=1)
    jitter: bool = True
    dead_letter: bool = True

    def __post_init__(self) -> None:
        try:
            check_count(self.attempts, "retry.attempts", low=1)
            object.__setattr__(self, "delay", check_duration(self.delay, "retry.delay"))
            object.__setattr__(self, "max_delay", check_duration(self.max_delay, "retry.max_delay"))
        except Invariant as refused:
            raise DeclarationInvalid(refused.fact, refused.remedy) from None
        if self.backoff not in get_args(Backoff):
            raise DeclarationInvalid(
                f"retry.backoff is {self.backoff!r}", f"give one of {', '.join(get_args(Backoff))}"
            )

    def is_final(self, attempt: int) -> bool:
        """Whether no try follows the given one (counted from 1)."""
        return attempt >= self.attempts

    def delay_after(self, attempt: int, random: Random | None = None) -> timedelta:
        """The wait after a failed attempt, counted from 1; without `random` the wait has no jitter."""
        full = self._capped(max(1, attempt))
        if self.jitter and random is not None:
            full = full / 2 + full / 2 * random.random()
        return timedelta(seconds=full)

    def schedule(self) -> list[timedelta]:
        """The waits between all tries, without jitter."""
        return [self.delay_after(attempt) for attempt in range(1, self.attempts)]

    def _capped(self, attempt: int) -> float:
        try:
            raw = _CURVES[self.backoff](_seconds(self.delay), attempt)
        except OverflowError:
            return 0.0
        return max(0.0, min(raw, _seconds(self.max_delay))) if math.isfinite(raw) else 0.0


def _seconds(value: timedelta | float) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else value


def as_retry(value: int | Retry | None) -> Retry:
    """The policy that a declaration means: a number is the count of attempts, None the default.

    Raises:
        DeclarationInvalid: anything else.
    """
    if value is None:
        return Retry()
    if isinstance(value, Retry):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return Retry(attempts=value)
    raise DeclarationInvalid(f"retry is {value!r}", "give a number of attempts or a Retry(...)")

"""What an exception says about the next try: `classify` registers its class, `verdict` decides for a failed attempt."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any, Literal, NamedTuple, TypeVar, get_args
from weakref import WeakKeyDictionary

from xjobs.errors import (
    DriverUnavailable,
    Invariant,
    JobTimeout,
    RateLimited,
    StepDuplicate,
    StepNotAwaited,
)
from xjobs.limits import MAX_DELAY, ZERO
from xjobs.retry import Retry

Kind = Literal["terminal", "retryable", "retry-after", "rate-limited"]
Wait = Callable[[Any], "timedelta | float | None"]
E = TypeVar("E", bound=type[BaseException])


class _Class(NamedTuple):
    kind: Kind
    wait: Wait | None = None


_classes: WeakKeyDictionary[type[BaseException], _Class] = WeakKeyDictionary()


def classify(kind: Kind, *, wait: Wait | None = None) -> Callable[[E], E]:
    """Say what an exception class and its subclasses mean for a job whose body raises one.

    Use it as a decorator beside the app's exceptions, or call what it answers with a class of another library:

        @xjobs.classify("terminal")
        class CardDeclined(Exception): ...

        xjobs.classify("retry-after", wait=lambda error: error.retry_after)(stripe.RateLimitError)

    The nearest class in the order of inheritance counts; one that is not registered follows the job's attempts.

    Args:
        kind: `terminal` stops the job on this attempt; `retryable` says what is the default, for a subclass of a
            terminal class; `retry-after` waits as long as stated, up to the job's `max_delay`; `rate-limited` gives the
            job back, without counting the attempt, for at least as long as stated.
        wait: for the last two, what the exception states: a timedelta or seconds; None, zero or less, or what is no
            number, mean that it states nothing, and the job's backoff decides.

    Raises:
        Invariant: an unknown kind, or `wait` for a kind that has none; from what is answered: not an exception class.
    """
    if kind not in get_args(Kind):
        raise Invariant(f"kind is {kind!r}", f"give one of {', '.join(get_args(Kind))}")
    if wait is not None and kind not in ("retry-after", "rate-limited"):
        raise Invariant(f"a {kind} error has no wait", "leave wait= out, or classify it retry-after")

    def register(cls: E) -> E:
        if not isinstance(cls, type) or not issubclass(cls, BaseException):
            raise Invariant(f"{cls!r} is no exception class", "classify the class, not an instance")
        _classes[cls] = _Class(kind, wait)
        return cls

    return register


class Verdict(NamedTuple):
    """What follows a failed attempt.

    Attributes:
        stop_reason: `terminal` or `attempts-exhausted`: no try follows; None otherwise.
        delay: before the next try.
        counted: whether the attempt counts.
        note: for `last_error`: why no try follows.
    """

    stop_reason: str | None = None
    delay: timedelta = ZERO
    counted: bool = True
    note: str = ""


def verdict(error: BaseException, attempt: int, max_attempts: int, retry: Retry, random: Random) -> Verdict:
    """Decide what follows attempt `attempt` of `max_attempts`, which raised `error`."""
    found = next((known for cls in type(error).__mro__ if (known := _classes.get(cls)) is not None), _UNCLASSIFIED)
    if found.kind == "terminal":
        return Verdict("terminal", note=f"not retried: {type(error).__name__} is terminal")
    if found.kind == "rate-limited":
        stated = _stated(found, error)
        wait = min(retry.delay_after(attempt, random), _max_delay(retry)) if stated is None else stated
        return Verdict(delay=wait + _spread(wait, retry, random), counted=False)
    if attempt >= max_attempts:
        return Verdict("attempts-exhausted")
    if found.kind == "retry-after" and (stated := _stated(found, error)) is not None:
        wait = min(stated, _max_delay(retry))
        return Verdict(delay=wait + _spread(wait, retry, random))
    return Verdict(delay=retry.delay_after(attempt, random))


_UNCLASSIFIED = _Class("retryable")


def _stated(found: _Class, error: BaseException) -> timedelta | None:
    """The wait that an exception states, or None; foreign code and foreign values decide nothing else."""
    if found.wait is None:
        return None
    try:
        value = found.wait(error)
        seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - the attempt has to be settled; what fails states nothing
        return None
    if not math.isfinite(seconds) or seconds <= 0:
        return None
    return timedelta(seconds=min(seconds, MAX_DELAY.total_seconds()))


def _spread(wait: timedelta, retry: Retry, random: Random) -> timedelta:
    """Up to half of the wait, so that those who were told the same do not come back together."""
    return min(wait / 2, _max_delay(retry)) * random.random() if retry.jitter else ZERO


def _max_delay(retry: Retry) -> timedelta:
    value = retry.max_delay
    return value if isinstance(value, timedelta) else timedelta(seconds=value)


classify("retryable")(JobTimeout)
classify("retryable")(DriverUnavailable)
classify("terminal")(StepDuplicate)
classify("terminal")(StepNotAwaited)
classify("rate-limited", wait=lambda error: error.data.get("wait"))(RateLimited)

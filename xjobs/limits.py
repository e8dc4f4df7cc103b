"""Checks of the numbers, texts and instants that callers give, each refusal naming the value and the remedy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from xjobs.errors import ClaimQueuesEmpty, Invariant

MAX_TEXT_BYTES = {
    "name": 255,
    "queue": 255,
    "tenant": 255,
    "key": 2000,
    "step": 255,
    "event": 255,
    "correlation_key": 1000,
}
"""Upper bounds in UTF-8 bytes of texts that are part of an index entry, which Postgres holds below 2,704 bytes."""

MAX_DELAY = timedelta(days=36_525)
"""The longest delay, a century: beyond it instants leave the range of datetime."""

ZERO = timedelta(0)


def check_text(value: object, name: str) -> str:
    """Answer `value` as a plain `str` when it is text that every backend can store and index.

    A member of an enum that is text, say, becomes its text: memory would give back the member, a database does not.

    Raises:
        Invariant: not text, empty, with a NUL or a lone surrogate, or longer than `MAX_TEXT_BYTES` allows.
    """
    if not isinstance(value, str) or not value:
        raise Invariant(f"{name} is {value!r}", "give a text that is not empty")
    if type(value) is not str:
        value = str.__str__(value)
    if "\0" in value:
        raise Invariant(f"{name} {value!r} holds a NUL character", "remove it, Postgres text cannot hold one")
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError:
        raise Invariant(f"{name} {value!r} holds a lone surrogate", "give text that UTF-8 can encode") from None
    bound = MAX_TEXT_BYTES.get(name)
    if bound is not None and size > bound:
        raise Invariant(f"{name} {value[:40]!r}... has {size} bytes", f"keep it within {bound}, or hash it")
    return value


def check_instant(value: object, name: str) -> datetime:
    """Answer `value` in UTC, as a plain `datetime`.

    Raises:
        Invariant: it is not a datetime, a naive one, or outside the calendar once it is in UTC.
    """
    if not isinstance(value, datetime):
        raise Invariant(f"{name} is {value!r}", "give a timezone-aware datetime")
    if value.utcoffset() is None:
        raise Invariant(
            f"{name} is the naive datetime {value.isoformat()}",
            "attach its time zone, for example value.replace(tzinfo=UTC)",
        )
    try:
        return _plain(value.astimezone(UTC))
    except OverflowError:
        raise Invariant(
            f"{name} is {value.isoformat()}, which UTC cannot express", "stay within the years 1 to 9999"
        ) from None


def _plain(value: datetime) -> datetime:
    """An instant as the standard class, where a frozen clock or a library has one of its own in its place."""
    if type(value).__module__ == "datetime":
        return value
    real: type[datetime] = next(kind for kind in type(value).__mro__ if kind.__module__ == "datetime")
    # By its parts: this module's `datetime` may be the frozen clock's own.
    return real(
        value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond, tzinfo=UTC
    )


def check_duration(value: object, name: str, *, low: timedelta | None = None) -> timedelta:
    """Answer a timedelta or a number of seconds as a timedelta.

    Raises:
        Invariant: neither of them, NaN or infinite, longer than a century, or below `low`.
    """
    duration = _as_timedelta(value, name)
    if abs(duration) > MAX_DELAY:
        raise Invariant(f"{name} is {value!r}", f"keep it within {MAX_DELAY.days:,} days")
    if low is not None and duration < low:
        raise Invariant(f"{name} is {value!r}", f"give at least {low}")
    return duration


def _as_timedelta(value: object, name: str) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Invariant(f"{name} is {value!r}", "give a timedelta or a number of seconds")
    if not math.isfinite(value):
        raise Invariant(f"{name} is {value!r}", "give a finite number of seconds")
    try:
        return timedelta(seconds=value)
    except OverflowError:
        raise Invariant(f"{name} is {value!r} seconds", f"keep it within {MAX_DELAY.days:,} days") from None


def check_count(value: object, name: str, *, low: int = 0, high: int = 2**31 - 1) -> int:
    """Answer `value` when it is a whole number within the bounds.

    Raises:
        Invariant: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise Invariant(f"{name} is {value!r}", f"give a whole number from {low:,} to {high:,}")
    return value


def check_queues(queues: Iterable[str]) -> list[str]:
    """Answer the queues of a claim, each once.

    Raises:
        ClaimQueuesEmpty: there is none.
        Invariant: one of them is not a queue name, or `queues` is itself a text.
    """
    if isinstance(queues, str):
        raise Invariant(f"queues is the text {queues!r}", f"give a list, [{queues!r}]")
    names = list(dict.fromkeys(check_text(queue, "queue") for queue in queues))
    if not names:
        raise ClaimQueuesEmpty("the claim names no queue", "name at least one, such as 'default'")
    return names

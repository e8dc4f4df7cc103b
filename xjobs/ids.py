"""Ids of jobs and runs: UUIDs of version 7 (RFC 9562, section 5.7) that sort in the order in which they were made.

The time in them is the machine's own and never a test's clock, so an id made later in a process sorts later whatever
the clock was set to. Sub-millisecond time and a counter share the twelve bits behind the milliseconds (RFC 9562,
section 6.2, methods 1 and 3).
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID, SafeUUID

from xjobs.errors import IdInvalid

# Libraries that freeze time put theirs in the place of `time.time` and `time.monotonic`; none of them does so with the
# clocks read through clock_gettime_ns, but for time-machine with the wall clock, which is read once. Windows lacks it.
if hasattr(time, "clock_gettime_ns"):
    _wall_ns: Callable[[], int] = partial(time.clock_gettime_ns, time.CLOCK_REALTIME)
    _monotonic_ns: Callable[[], int] = partial(time.clock_gettime_ns, time.CLOCK_MONOTONIC)
else:
    _wall_ns, _monotonic_ns = time.time_ns, time.monotonic_ns


_new_uuid, _UNKNOWN = object.__new__, SafeUUID.unknown
_set_int, _set_is_safe = vars(UUID)["int"].__set__, vars(UUID)["is_safe"].__set__


class _Generator:
    """Makes strictly increasing UUIDv7 values, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.restart()

    def restart(self) -> None:
        """Start over with fresh randomness, as a forked child must."""
        self._lock = threading.Lock()
        self._random = random.Random(os.urandom(32)).getrandbits
        self._epoch = _wall_ns() - _monotonic_ns()
        self._last = 0

    def next(self) -> UUID:
        return _uuid(self._number())

    def pair(self) -> tuple[UUID, UUID]:
        number = self._number()
        return _uuid(number), _uuid(number ^ 1)

    def pairs(self, count: int) -> list[tuple[UUID, UUID]]:
        return [(_uuid(number), _uuid(number ^ 1)) for number in self._numbers(count)]

    def _number(self) -> int:
        with self._lock:
            tick = (self._epoch + _monotonic_ns()) * 512 // 125_000  # as `_tick`, which costs a call
            if tick <= self._last:
                tick = self._last + 1
            self._last = tick
            noise = self._random(62)
        return ((tick >> 12) << 16 | 0x7000 | tick & 0xFFF) << 64 | 0x2 << 62 | noise

    def _numbers(self, count: int) -> list[int]:
        with self._lock:
            first = self._tick(count)
            noise = [self._random(62) for _ in range(count)]
        return [
            ((tick >> 12) << 16 | 0x7000 | tick & 0xFFF) << 64 | 0x2 << 62 | each
            for tick, each in enumerate(noise, first)
        ]

    def _tick(self, count: int) -> int:
        """The first of so many ticks of their own: milliseconds in the high bits, then 1/4096 of one each."""
        first = (self._epoch + _monotonic_ns()) * 512 // 125_000
        if first <= self._last:
            first = self._last + 1
        self._last = first + count - 1
        return first


def _uuid(number: int) -> UUID:
    """Past the checks of UUID.__init__, which take longer than making the number."""
    made = _new_uuid(UUID)
    _set_int(made, number)
    _set_is_safe(made, _UNKNOWN)
    return made


_generator = _Generator()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_generator.restart)

new_id = _generator.next
"""Make one id."""

new_pair = _generator.pair
"""Make an id for a job and one for its run, in one step: they differ in the last of their random bits."""

new_pairs = _generator.pairs
"""Make so many of those pairs."""


_to_text: Callable[[UUID], Any] | None = None


def text_of(value: UUID) -> str:
    """`str(value)`, in a quarter of the time."""
    global _to_text  # noqa: PLW0603 - msgspec is imported at the first call, and not before one
    if _to_text is None:
        from msgspec import to_builtins

        _to_text = to_builtins
    text: str = _to_text(value)
    return text


_CANONICAL = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def check_id(value: object, name: str) -> UUID:
    """Answer `value` as a UUID; text must be in the canonical lowercase form (RFC 9562, section 4).

    Raises:
        IdInvalid: it is neither.
    """
    if isinstance(value, UUID):
        return value
    if isinstance(value, str) and _CANONICAL.fullmatch(value):
        return UUID(value)
    raise IdInvalid(f"{name} is {value!r}", "give a uuid.UUID or its lowercase text, 8-4-4-4-12 hex digits")

"""Python's clock under freezes: which freeze is innermost, what it shows, and moving it.

Three kinds of freeze are known: the plugin's own (freezegun, started here), the test's own by freezegun (also
pytest-freezer), and the test's own by time-machine. The libraries' own stacks are the only record of what is in force,
so that Python's clock and the queue's cannot differ. freezegun is imported when the plugin's own freeze starts and
time-machine never; until then both are looked up in `sys.modules`.
"""

from __future__ import annotations

import contextlib
import copyreg
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Protocol

__all__ = ["EPOCH", "REAL", "ClockState", "Mode", "PythonTime", "look", "observe", "real_now", "to_utc"]

Mode = Literal["real", "frozen", "shifted"]

_ZERO = timedelta()
_MICROSECOND = timedelta(microseconds=1)

# Should this module be imported inside a freeze, `datetime` is a subclass of the real one. Whatever is added to these
# is then a plain datetime again.
EPOCH: datetime = next(kind for kind in datetime.__mro__ if kind.__module__ == "datetime")(1970, 1, 1, tzinfo=UTC)
_EPOCH_NAIVE = EPOCH.replace(tzinfo=None)  # freezegun counts in naive UTC

# Modules that keep the real functions that they imported by name: they measure real things by `time.time`, or build
# plain datetimes. (Whatever else waits does so by `time.monotonic`.) These are prefixes of module names, which is
# freezegun's rule, so each is long enough to hit no module of the app.
_REAL_TIME_MODULES = ("_pytest.", "psycopg", "pytest_xjobs.", "sqlalchemy.util.queue")
_MONOTONIC = ("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")


@dataclass(frozen=True, slots=True)
class ClockState:
    """What the clock does: real time, frozen `at` an instant, or going on with real time plus a `shift`."""

    mode: Mode = "real"
    at: datetime | None = None
    shift: timedelta = _ZERO

    @classmethod
    def frozen(cls, at: datetime) -> ClockState:
        """Time stands at `at`, an aware UTC instant."""
        return cls("frozen", at)

    @classmethod
    def shifted(cls, shift: timedelta) -> ClockState:
        """Time goes on, `shift` ahead of the real one (negative: behind); real time when `shift` is zero."""
        return cls("shifted", None, shift) if shift else REAL

    def encode(self) -> int:
        """This state as the one number that the sequence in `time.sql` holds: mode and microseconds."""
        if self.at is not None:
            return (self.at - EPOCH) // _MICROSECOND * 4 + 1
        return self.shift // _MICROSECOND * 4 + 2 if self.shift else 0

    @classmethod
    def decode(cls, number: int) -> ClockState:
        """The state that `encode()` made `number` of."""
        span = (number >> 2) * _MICROSECOND
        return cls.frozen(EPOCH + span) if number & 1 else cls.shifted(span)

    def instant(self, real_now: datetime) -> datetime:
        """What the clock shows at the real instant `real_now`."""
        return self.at if self.at is not None else real_now + self.shift


REAL = ClockState()


def real_now() -> datetime:
    """The real instant in UTC, whatever freeze is active."""
    machine = sys.modules.get("time_machine")
    if machine is not None and machine.escape_hatch.is_travelling():
        return _from_ns(machine.escape_hatch.time.time_ns())
    # freezegun does not swap this one.
    return _from_ns(time.clock_gettime_ns(time.CLOCK_REALTIME))


def to_utc(instant: datetime) -> datetime:
    """The aware `instant` in UTC, as a plain `datetime` even if a freeze made it."""
    return EPOCH + (instant - EPOCH)


def _from_ns(ns: int) -> datetime:
    return EPOCH + ns // 1000 * _MICROSECOND


def _to_naive(instant: datetime) -> datetime:
    return _EPOCH_NAIVE + (instant - EPOCH)


def _from_naive(instant: datetime) -> datetime:
    return EPOCH + (instant - _EPOCH_NAIVE)


def _travellers(machine: Any) -> list[Any]:
    # time-machine 2 has the stack under its older name.
    stack: list[Any] = machine.traveller_stack if hasattr(machine, "traveller_stack") else machine.coordinates_stack
    return stack


# What is in force --------------------------------------------------------------------------------------------------


def look() -> tuple[Any, ...]:
    """Marks of the innermost freeze, equal for as long as it shows the same; `()` when none is active.

    Runs before every statement of the queue, so it reads attributes and computes nothing.
    """
    api = sys.modules.get("freezegun.api")
    # Sliced, since the freeze may end in another thread between a test and an access.
    if api is not None and (top := api.freeze_factories[-1:]):
        return top[0], top[0].time_to_freeze, getattr(top[0], "start", None)
    machine = sys.modules.get("time_machine")
    if machine is not None and (top := _travellers(machine)[-1:]):
        return _traveller_marks(top[0])
    return ()


def observe() -> tuple[tuple[Any, ...], ClockState]:
    """The marks as `look()` gives them, and the state that they stand for."""
    _drop_what_ended()
    marks = look()
    if not marks:
        return marks, REAL
    if hasattr(marks[0], "time_to_freeze"):
        return marks, _freezegun_state(marks[0])
    return marks, _traveller_state(marks)


def _freezegun_state(factory: Any) -> ClockState:
    frozen_at = _from_naive(factory.time_to_freeze)
    start = getattr(factory, "start", None)
    # A ticking factory holds its start in local time; others have none, and ours (`_Stopped`) has marks there.
    if isinstance(start, datetime):
        return ClockState.shifted(frozen_at - to_utc(start.astimezone(UTC)))
    return ClockState.frozen(frozen_at)


def _traveller_marks(traveller: Any) -> tuple[Any, ...]:
    if traveller._tick and not traveller._requested:  # noqa: SLF001 (no public way to tell frozen from ticking)
        traveller.time_ns()  # starts its ticking, as the test's first look would
    start = getattr(traveller, "_real_start_timestamp_ns", 0)
    return traveller, traveller._destination_timestamp_ns, traveller._tick, start  # noqa: SLF001


def _traveller_state(marks: tuple[Any, ...]) -> ClockState:
    _, destination, ticking, start = marks
    if ticking:
        return ClockState.shifted((destination - start) // 1000 * _MICROSECOND)
    return ClockState.frozen(_from_ns(destination))


def _drop_what_ended() -> None:
    """Finish the plugin's freezes that waited for a freeze inside them, and stops that the test has overruled."""
    api = sys.modules.get("freezegun.api")
    while api is not None and api.freeze_factories:
        top = api.freeze_factories[-1]
        if isinstance(top, _Ended):
            top.freezer.stop()
        elif isinstance(top, _Stopped) and top.overruled():
            api.freeze_factories[-1] = top.ticking
        else:
            return


# The plugin's own freeze ----------------------------------------------------------------------------------------------


class OwnFreeze:
    """The plugin's own freezegun freeze, from creation to `stop()`; only for when no other freeze is active.

    `time.time`, `datetime.now`, `date.today` and their kin stand still, in the test, in its threads and in its
    coroutines. `time.monotonic` and `time.perf_counter` go on, so timeouts, event loops and pools work as ever.
    """

    def __init__(self, instant: datetime) -> None:
        from freezegun import api, config

        self._api: Any = api
        self._freezer: Any = api.freeze_time(_to_naive(instant))
        configured = [n for n in config.settings.default_ignore_list if n not in config.DEFAULT_IGNORE_LIST]
        # freezegun's own list is left out: it has `threading`, and prefixes as short as `queue` and `gi`.
        self._freezer.ignore = (*_REAL_TIME_MODULES, *configured)
        with _monotonic_left_alone(api):
            self.factory: Any = self._freezer.start()
        # While time stands, freezegun takes the same list to mean "real time for whoever is called from there", five
        # frames deep, and `_pytest.` would then cover the test itself: only what the user configured is kept.
        api.ignore_lists[-1] = tuple(configured)
        # On stop, to let modules be restored that were first imported in between.
        self._freezer.ignore = ()

    def move_to(self, instant: datetime) -> None:
        """Stand at `instant` from now on."""
        self.factory.move_to(_to_naive(instant))

    def stop(self) -> bool:
        """Restore real time; `False` when a freeze that the test opened later is still active.

        In that case the test's freeze stays as it is, real time is what follows it, and freezegun's patches go at
        the next look after its end.
        """
        self._repair()
        place = _place_of(self._api.freeze_factories, self.factory)
        if place == len(self._api.freeze_factories) - 1:
            self._freezer.stop()
            return True
        self._api.freeze_factories[place] = _Ended(self._freezer)
        self._api.ignore_lists[place] = ("",)  # a prefix of every name: `time.time` is real for all
        return False

    def _repair(self) -> None:
        """Put this freeze back on freezegun's stacks, where a stop too many took it away, so that it can be stopped."""
        if _place_of(self._api.freeze_factories, self.factory) >= 0:
            return
        self._api.freeze_factories.insert(0, self.factory)
        self._api.ignore_lists.insert(0, ())
        self._api.tick_flags.insert(0, False)
        self._api.tz_offsets.insert(0, _ZERO)
        copyreg.dispatch_table.setdefault(self._api.real_datetime, self._api.pickle_fake_datetime)
        copyreg.dispatch_table.setdefault(self._api.real_date, self._api.pickle_fake_date)


@contextlib.contextmanager
def _monotonic_left_alone(api: Any) -> Iterator[None]:
    """Make a freezegun start put the real functions in for monotonic clocks.

    Undoing it after the start would leave a moment in which threads that wait see another monotonic clock.
    """
    fakes = {name: getattr(api, f"fake_{name}") for name in _MONOTONIC}
    for name in _MONOTONIC:
        setattr(api, f"fake_{name}", getattr(api, f"real_{name}"))
    try:
        yield
    finally:
        for name, fake in fakes.items():
            setattr(api, f"fake_{name}", fake)


def _place_of(items: list[Any], item: Any) -> int:
    return next((place for place, other in enumerate(items) if other is item), -1)


class _Ended:
    """In freezegun's stack: an ended freeze of the plugin, below one of the test. Shows real time."""

    time_to_freeze = None

    def __init__(self, freezer: Any) -> None:
        self.freezer = freezer

    def __call__(self) -> datetime:
        return _to_naive(real_now())


# Moving the innermost freeze ------------------------------------------------------------------------------------------


class PythonTime:
    """Python's clock as one test moves it: the plugin's own freeze, and what was done to freezes of the test."""

    def __init__(self) -> None:
        self._own: OwnFreeze | None = None
        self._moved: list[_Moved] = []

    def move_to(self, instant: datetime) -> None:
        """Stand at `instant`: move the innermost freeze there, or start the plugin's own where none is active."""
        _drop_what_ended()
        marks = look()
        if not marks:
            self._start(instant)
        elif self._own is not None and marks[0] is self._own.factory:
            self._own.move_to(instant)
        else:
            self._moved_for(marks[0]).move_to(instant)

    def resume(self) -> bool:
        """Undo all moves: end the plugin's own freeze, and put those of the test back where they were.

        A freeze that the test moved after the plugin did stays where the test put it. `False` when the plugin's own
        freeze could not be taken out of freezegun yet, because the test opened one inside it that is still active.
        """
        while self._moved:
            self._moved.pop().undo()
        own, self._own = self._own, None
        return own is None or own.stop()

    def _start(self, instant: datetime) -> None:
        if self._own is not None:
            self._own.stop()  # the test stopped freezegun once too often
        self._own = OwnFreeze(instant)

    def _moved_for(self, innermost: Any) -> _Moved:
        for moved in self._moved:
            if moved.is_of(innermost):
                return moved
        self._moved.append(_movable(innermost))
        return self._moved[-1]


class _Moved(Protocol):
    """A freeze of the test that the plugin moves."""

    def is_of(self, innermost: Any) -> bool:
        """Whether this is the freeze that the library has on top."""
        ...

    def move_to(self, instant: datetime) -> None:
        """Make it stand at `instant`."""
        ...

    def undo(self) -> None:
        """Put it back, except for what the test moved since."""
        ...


def _movable(innermost: Any) -> _Moved:
    if not hasattr(innermost, "time_to_freeze"):
        return _MovedTraveller(innermost)
    return _StoppedTicking(innermost) if hasattr(innermost, "start") else _MovedFactory(innermost)


class _MovedFactory:
    """A standing freeze of freezegun: moved by its own factory, so that the test's `tick()` goes on from there."""

    def __init__(self, factory: Any) -> None:
        self._factory = factory
        self._before = self._after = factory.time_to_freeze

    def is_of(self, innermost: Any) -> bool:
        return innermost is self._factory

    def move_to(self, instant: datetime) -> None:
        if self._factory.time_to_freeze != self._after:
            self._before = self._factory.time_to_freeze
        self._set(_to_naive(instant))
        self._after = self._factory.time_to_freeze

    def undo(self) -> None:
        if self._factory.time_to_freeze == self._after:
            self._set(self._before)

    def _set(self, instant: datetime) -> None:
        # With `auto_tick_seconds` a move by nothing is a step of the default width.
        if self._factory.time_to_freeze != instant:
            self._factory.move_to(instant)


class _StoppedTicking:
    """A ticking freeze of freezegun: cannot stand, so another factory stands in its place on the stack."""

    def __init__(self, ticking: Any) -> None:
        self._stopped = _Stopped(ticking)

    def is_of(self, innermost: Any) -> bool:
        return innermost is self._stopped or innermost is self._stopped.ticking

    def move_to(self, instant: datetime) -> None:
        self._stopped.stop_at(_to_naive(instant))
        self._swap(self._stopped.ticking, self._stopped)

    def undo(self) -> None:
        self._swap(self._stopped, self._stopped.ticking)

    def _swap(self, old: Any, new: Any) -> None:
        factories = sys.modules["freezegun.api"].freeze_factories
        if (place := _place_of(factories, old)) >= 0:
            factories[place] = new


class _Stopped:
    """In freezegun's stack: stands where a ticking factory ticked, until the test moves that one."""

    def __init__(self, ticking: Any) -> None:
        self.ticking = ticking
        self.time_to_freeze: datetime = ticking.time_to_freeze
        self._stopped_at = self.start

    def __call__(self) -> datetime:
        return self.time_to_freeze

    @property
    def start(self) -> tuple[datetime, datetime]:
        """Changes when the test moves its own factory; `look()` reads it under this name."""
        return self.ticking.time_to_freeze, self.ticking.start

    def stop_at(self, instant: datetime) -> None:
        """Stand at `instant` (naive UTC)."""
        self.time_to_freeze = instant
        self._stopped_at = self.start

    def overruled(self) -> bool:
        """Whether the test has moved its own factory since."""
        return self._stopped_at != self.start


class _MovedTraveller:
    """A freeze of time-machine, ticking or not.

    By `shift`, since its `move_to` also changes the local time zone, and by an attribute of its own, since it has no
    other way to stop the ticking, or to tell where it stands.
    """

    def __init__(self, traveller: Any) -> None:
        self._traveller = traveller
        self._ticked: bool = traveller._tick  # noqa: SLF001
        self._before = self._after = self._destination

    def is_of(self, innermost: Any) -> bool:
        return innermost is self._traveller

    def move_to(self, instant: datetime) -> None:
        if self._destination != self._after:
            self._before = self._destination
        self._traveller._tick = False  # noqa: SLF001
        self._traveller.shift(instant - _from_ns(self._destination))
        self._after = self._destination

    def undo(self) -> None:
        if self._destination == self._after:
            self._traveller.shift((self._before - self._after) // 1000 * _MICROSECOND)
        self._traveller._tick = self._ticked  # noqa: SLF001

    @property
    def _destination(self) -> int:
        destination: int = self._traveller._destination_timestamp_ns  # noqa: SLF001
        return destination

"""The test's clock: what time it is, and how Python and a test database are told.

One rule decides between the clock's moves and freezes that the test makes itself (freezegun, pytest-freezer,
time-machine): the innermost freeze is the time; the clock moves whichever that is, its own or the test's, and when it
ends, the one outside it holds again.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_xjobs.freezes import REAL, ClockState, PythonTime, look, observe, real_now, to_utc
from xjobs.errors import Invariant

if TYPE_CHECKING:
    import psycopg

__all__ = ["SEARCH_PATH", "Clock", "ClockState", "install_time", "read_time", "set_time"]

SEARCH_PATH = "public, xjobs_time, pg_catalog"
"""The `search_path` under which a database with `time.sql` in it answers the clock's time."""

Listener = Callable[[ClockState], None]


class Clock:
    """The time of one test, for Python and for whatever subscribes to it (the queue's backends).

    Time is real until the test freezes or moves it. From then on Python's clock stands too: `time.time()`,
    `datetime.now()` and `date.today()`, in the test, in its threads and in its coroutines. `time.monotonic()` goes on,
    so that timeouts, pools and event loops keep working.

    A freeze that the test makes itself is followed, frozen or ticking. The innermost freeze is the time; the clock
    moves whichever that is, its own or the test's, and when it ends, the one outside it holds again.

    Args:
        real: where the real time comes from, an aware UTC datetime; the machine's clock by default.

    Attributes:
        next_due: answers when the queue's next job is due, for `advance_to_next_due`.
    """

    def __init__(self, real: Callable[[], datetime] | None = None) -> None:
        self._real = real or real_now
        self._python = PythonTime()
        self._listeners: list[Listener] = []
        self._seen: tuple[Any, ...] = ()
        self._state = REAL
        # A thread that syncs while another one publishes waits until all listeners know.
        self._lock = threading.RLock()
        self._telling = False
        self._closed = False
        self.next_due: Callable[[], datetime | None] = lambda: None

    def __repr__(self) -> str:
        return f"<Clock {self._state.mode} {self.now.isoformat()}>"

    @property
    def now(self) -> datetime:
        """The instant that this clock shows: aware, in UTC; the real one while nothing is frozen."""
        self.sync()
        return self._state.instant(to_utc(self._real()))

    @property
    def state(self) -> ClockState:
        """What the clock does at present."""
        self.sync()
        return self._state

    def freeze(self, at: datetime | None = None) -> datetime:
        """Stop at the present instant, or at `at`; answer the instant.

        Raises:
            Invariant: `at` has no time zone, or the clock is closed.
        """
        return self.move_to(self.now if at is None else at)

    def move_to(self, instant: datetime) -> datetime:
        """Go to `instant`, later or earlier than now, and answer it in UTC.

        Moving always leaves the clock frozen at the target, also if it was not frozen before. Nothing is run.

        Raises:
            Invariant: `instant` has no time zone, or the clock is closed.
        """
        target = _aware(instant)
        with self._lock:
            self._refuse_when_closed()
            self._python.move_to(target)
            self.sync()
        return target

    def advance(self, delta: timedelta | float | None = None, /, **units: float) -> datetime:
        """Go forward by a timedelta, a number of seconds, or `timedelta`'s own units; answer the new instant.

        Moving always leaves the clock frozen at the target. `advance(x)` and then `advance(y)` is `advance(x + y)`.
        Nothing is run.

        Raises:
            Invariant: both or neither of the two given, an unknown unit, a negative or not finite span, a target
                after the year 9999, or the clock is closed.
        """
        span = _span(delta, units)
        with self._lock:
            now = self.now
            try:
                target = now + span
            except OverflowError:
                raise Invariant(
                    f"{now.isoformat()} plus {span} is after the year 9999", "advance by less", delta=span
                ) from None
            return self.move_to(target)

    def advance_to_next_due(self) -> datetime | None:
        """Go forward to the instant at which the queue's next job is due: a delay, a backoff, a sleep, a wait's end, or
        the end of a lease; answer the instant, or None when nothing waits.

        When a job is due already, the clock stops where it is. Nothing is run.

        Raises:
            Invariant: the clock is closed.
        """
        with self._lock:
            self._refuse_when_closed()
            due = self.next_due()
            return None if due is None else self.move_to(max(due, self.now))

    def resume(self) -> None:
        """Back to real time: end the clock's own freeze, and undo its moves of freezes that the test made.

        A freeze of the test that is still active keeps being followed.
        """
        with self._lock:
            self._python.resume()
            self.sync()

    def close(self) -> None:
        """End everything that this clock did; subscribers are told real time, once. May be called again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            clean = self._python.resume()
            try:
                self._tell(REAL)
            finally:
                self._listeners.clear()
        if not clean:
            warnings.warn(
                "a freezegun freeze that the test began after xjobs_clock was frozen is still active: "
                "stop it before the test ends (with freeze_time(...), or freezer.stop())",
                stacklevel=2,
            )

    def subscribe(self, listener: Listener, *, first: bool = False) -> Callable[[], None]:
        """Have `listener` called with the new state on each change, before the changing call returns.

        It is called at once if time is not real at present. An error that it raises reaches whoever made the change,
        and the next `sync()` tries again.

        Args:
            listener: called with the new state.
            first: before those that are there already, so before the databases move.

        Returns:
            A function that ends the subscription; it may be called again.
        """
        with self._lock:
            self.sync()
            if self._state != REAL:
                listener(self._state)
            self._listeners.insert(0 if first else len(self._listeners), listener)

        def unsubscribe() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return unsubscribe

    def sync(self) -> None:
        """Notice a freeze that the test began, moved or ended, and tell subscribers; to be called before a statement.

        Costs a fraction of a microsecond when nothing has changed.
        """
        if look() != self._seen:
            self._publish()

    def _publish(self) -> None:
        with self._lock:
            if self._telling:  # a listener that asks for the time
                return
            seen, state = observe()
            self._tell(state)
            # Last, so that no other thread passes `sync()` while listeners are being told, and errors are tried again.
            self._seen = seen

    def _tell(self, state: ClockState) -> None:
        if state == self._state:
            return
        before, self._state = self._state, state
        self._telling = True
        try:
            for listener in tuple(self._listeners):
                listener(state)
        except BaseException:
            self._state = before
            raise
        finally:
            self._telling = False

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise Invariant("this clock is closed: its test is over", "ask for xjobs_clock in the test that moves it")


def _aware(instant: datetime) -> datetime:
    if not isinstance(instant, datetime):
        raise Invariant(f"{instant!r} is no datetime", "give an aware datetime", instant=instant)
    if instant.utcoffset() is None:
        raise Invariant(
            f"{instant!r} has no time zone", "give an aware datetime, such as one with tzinfo=UTC", instant=instant
        )
    return to_utc(instant)


def _span(delta: timedelta | float | None, units: dict[str, float]) -> timedelta:
    if (delta is None) == (not units):
        raise Invariant(
            f"advance() takes one span, not {delta!r} and {units!r}",
            "give a timedelta, a number of seconds, or units such as days=1",
        )
    for name, value in units.items() if units else [("seconds", delta)]:
        if isinstance(value, float) and not math.isfinite(value):
            raise Invariant(f"{name}={value!r} is no span of time", "give a finite number", delta=value)
    try:
        span = delta if isinstance(delta, timedelta) else timedelta(**units) if units else timedelta(seconds=delta or 0)
    except (TypeError, OverflowError) as error:
        raise Invariant(
            f"{delta if delta is not None else units!r} is no span of time ({error})",
            "give a timedelta, a number of seconds, or units such as days=1",
        ) from None
    if span < timedelta():
        raise Invariant(f"{span!r} is negative", "go backwards by move_to(instant)", delta=span)
    return span


def install_time(conn: psycopg.Connection[Any]) -> None:
    """Give the database of `conn` virtual time, set to real; may be repeated.

    It shows where `SEARCH_PATH` is the search path, and in defaults of tables made under it.

    Raises:
        Invariant: `conn` is not in autocommit mode.
    """
    _require_autocommit(conn)
    conn.execute(Path(__file__).with_name("time.sql").read_bytes())


def set_time(conn: psycopg.Connection[Any], state: ClockState) -> None:
    """Set the time of the database of `conn`, for all its sessions, in one round trip.

    Raises:
        Invariant: `conn` is not in autocommit mode.
    """
    _require_autocommit(conn)
    conn.execute("select pg_catalog.setval('xjobs_time.clock', %s::bigint)", (state.encode(),), prepare=True)


def read_time(conn: psycopg.Connection[Any]) -> ClockState:
    """What the database of `conn` is set to."""
    from psycopg.rows import tuple_row

    row = conn.cursor(row_factory=tuple_row).execute("select last_value from xjobs_time.clock").fetchone()
    return ClockState.decode(row[0]) if row else REAL


def _require_autocommit(conn: psycopg.Connection[Any]) -> None:
    if not conn.autocommit:
        raise Invariant(
            "the time of a database is set outside of transactions", "give a connection with autocommit=True"
        )

"""The run signal: whether the attempt that runs must stop, and why. The first reason wins."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from xjobs.errors import Error, JobTimeout

Listener = Callable[[Error], object]

_lock = threading.Lock()
"""One for all signals: it is held for a moment, and a signal is made for every attempt."""


class RunSignal:
    """The one signal of an attempt: its deadline, a cancel, a lost lease or slot, and a worker's cut-off all end here.

    Hosts stop it from any thread; step writes ask it before they write; bodies see it as `ctx.cancelled`.
    """

    # Of the class until one is set: a signal is made for every attempt, and most are never asked to do anything.
    _reason: Error | None = None
    _listeners: tuple[Listener, ...] = ()
    _clock: Callable[[], datetime] | None = None
    _deadline: datetime | None = None
    _timeout: timedelta | None = None
    _began = 0.0

    @property
    def reason(self) -> Error | None:
        """Why the run must stop; None while it need not. A deadline that has passed counts from now on."""
        clock, deadline = self._clock, self._deadline
        if self._reason is None and clock is not None and deadline is not None and clock() >= deadline:
            self.stop(overdue(self._timeout))
        return self._reason

    def stop(self, reason: Error) -> bool:
        """Say that the run must stop; False when an earlier reason stands. Listeners are called in this thread."""
        with _lock:
            if self._reason is not None:
                return False
            self._reason = reason
            listeners, self._listeners = self._listeners, ()
        for listener in listeners:
            listener(reason)
        return True

    def expire_after(self, timeout: timedelta, clock: Callable[[], datetime]) -> None:
        """Have the signal stop by itself, with JobTimeout, once `clock` has gone on by `timeout` from now."""
        self._timeout, self._deadline, self._clock = timeout, clock() + timeout, clock
        self._began = time.monotonic()

    @property
    def timeout(self) -> timedelta | None:
        """The length of the attempt's deadline, or None."""
        return self._timeout

    @property
    def left(self) -> float | None:
        """Seconds of real time until that deadline, for hosts that keep time by a clock of their own; or None."""
        return None if self._timeout is None else self._timeout.total_seconds() - (time.monotonic() - self._began)

    def expire(self) -> None:
        """Stop as at the deadline; for hosts that keep time by a clock of their own."""
        self.stop(overdue(self._timeout))

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Have `listener` called once with the reason, at once when there is one; answers what ends that."""
        with _lock:
            if self._reason is None:
                self._listeners = (*self._listeners, listener)
                return lambda: self._forget(listener)
            reason = self._reason
        listener(reason)
        return lambda: None

    def raise_if_stopped(self) -> None:
        """Raise the reason, if there is one."""
        reason = self.reason
        if reason is not None:
            raise reason

    def _forget(self, listener: Listener) -> None:
        with _lock:
            self._listeners = tuple(each for each in self._listeners if each is not listener)


def overdue(timeout: timedelta | None, what: str = "the attempt") -> JobTimeout:
    """The error of a deadline that has passed."""
    return JobTimeout(
        f"{what} took longer than its timeout of {timeout}",
        "do less in it, split it into steps, or declare a longer timeout",
        timeout=timeout,
    )

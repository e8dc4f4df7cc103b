"""How a worker process ends: the first SIGTERM or SIGINT shuts the worker down within its budget, a second stops at
once.

A thread hears the signals and keeps the time. Python runs handlers of signals in the main thread, between two steps of
the interpreter: a body that calls into C there keeps them waiting for as long as it likes.
"""

from __future__ import annotations

import asyncio
import atexit
import math
import os
import select
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Literal

from xjobs.worker import log
from xjobs.worker.left import guard_tasks
from xjobs.worker.worker import Worker

SIGNALS = (signal.SIGTERM, signal.SIGINT)

GRACE = 1.0
"""Seconds beyond the budget after which the process ends even when a body blocks the event loop; and seconds that other
threads may keep the process after the worker has ended."""

BY_HANDLER = 0x80
"""Marks the bytes that Python's handlers write, for those that the interpreter writes; no signal has such a number."""

Stage = Literal["serving", "ended", "exiting"]


@contextmanager
def shut_down_by_signals(worker: Worker) -> Iterator[Ending]:
    """Handle SIGTERM and SIGINT for the length of the block. For the main thread, of a process that ends after it.

    Raises:
        RuntimeError: there is no thread to be had.
    """
    ending = Ending(worker)
    ending.open()
    try:
        yield ending
    finally:
        ending.close()


class Ending:
    """How one worker process ends, from its first signal to its exit.

    Args:
        worker: is told to stop.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._signals = _Signals()
        self._stage: Stage = "serving"
        self._told = False
        self._failed = False
        self._overdue: float | None = None  # on the monotonic clock, as is the next
        self._ended_at = 0.0
        self._thread = threading.Thread(
            target=self._watch, name=f"{worker.settings.worker_id} signals", daemon=True
        )  # started before it is needed: at the end there may be no thread to be had

    @property
    def code(self) -> int:
        """What the process is to exit with, after `run`."""
        return 1 if self._failed or self._worker.abandoned else 0

    def open(self) -> None:
        """Begin to hear signals."""
        self._thread.start()
        self._signals.take()

    def close(self) -> None:
        """Hear no more signals. The thread still sees to it that the process ends."""
        self._signals.give_back()
        if self._stage == "serving":
            self._enter("ended")
        # Handlers at exit run after the threads have been waited for, and the last one that is registered first.
        atexit.register(self._enter, "exiting")

    def run(self, runner: asyncio.Runner) -> None:
        """Run the worker to its end and close the runner; that nobody asked for the end is logged."""
        try:
            with runner:
                self._run(runner)
        except BaseException as cause:  # noqa: BLE001 - such as SystemExit out of a task of the app
            self._fail(cause)

    def _run(self, runner: asyncio.Runner) -> None:
        try:
            runner.run(self._serve())
        except BaseException as cause:  # noqa: BLE001
            self._fail(cause)
        else:
            if not self._told:
                self._fail(None)

    async def _serve(self) -> None:
        self._signals.retake()
        guard_tasks(asyncio.get_running_loop())
        try:
            await self._worker.run()
        finally:
            self._enter("ended")

    def _fail(self, cause: BaseException | None) -> None:
        self._failed = True
        log.error("jobs.worker.ended-unasked", cause=cause, error=repr(cause) if cause else None)
        if self._stage == "serving":  # it is cancelled when the runner closes, which must come to an end as well
            self._stop()
            self._signals.wake()

    def _enter(self, stage: Stage) -> None:
        self._ended_at = time.monotonic() if stage == "ended" else self._ended_at
        self._stage = stage
        self._signals.wake()

    def _watch(self) -> None:
        """Act on what comes, and on nothing having come in time; to the end of the process."""
        while True:
            end = self._end()
            for number in self._signals.wait(None if end is None else end - time.monotonic()):
                self._tell(number)
            if (end := self._end()) is not None and end <= time.monotonic():
                self._leave_late()

    def _end(self) -> float | None:
        """When the process is to be gone; None while nothing bounds that."""
        if self._stage == "serving":
            return self._overdue
        if self._stage == "ended":
            return self._ended_at + GRACE
        return None if self._overdue is None else max(self._overdue, self._ended_at + GRACE)

    def _tell(self, number: int) -> None:
        name = signal.Signals(number).name
        if self._told:
            _leave(128 + number, log.warning, "jobs.worker.stopped-at-once", signal=name)
        self._told = True
        log.info("jobs.worker.drain-signalled", signal=name)
        if self._stage == "serving":
            self._stop()

    def _stop(self) -> None:
        self._overdue = time.monotonic() + self._worker.settings.shutdown.total_seconds() + GRACE
        try:
            self._worker.stop()
        except Exception as problem:  # noqa: BLE001 - the process ends all the same, when it is overdue
            log.error("jobs.worker.stop-failed", cause=problem)

    def _leave_late(self) -> None:
        if self._stage == "serving":
            _leave(1, log.error, "jobs.worker.drain-overdue")
        main = threading.main_thread()
        left = [thread.name for thread in threading.enumerate() if not thread.daemon and thread is not main]
        _leave(self.code, log.warning, "jobs.worker.threads-left", threads=len(left), names=", ".join(left))


class _Signals:
    """SIGTERM and SIGINT of this process, as they come in a pipe by two ways.

    The interpreter writes the number of each signal at once, whatever the main thread does, to one descriptor of the
    process. Event loops put theirs there, some for good: so Python's handlers write as well, when they get to run. What
    the interpreter writes is passed on to the descriptor that was there before.
    """

    def __init__(self) -> None:
        self._pipe, self._into = os.pipe()
        self._opened = [self._pipe, self._into]
        for descriptor in self._opened:
            os.set_blocking(descriptor, False)
        self._poll = select.poll()
        self._poll.register(self._pipe, select.POLLIN)
        self._handlers: dict[int, Any] = {}
        self._before = -1
        self._onward = -1
        self._counts: Counter[int] = Counter()  # by byte, so by signal and way
        self._known: Counter[int] = Counter()

    def take(self) -> None:
        """Have signals come here. For the main thread, as the others that change where they go."""
        global _taken  # noqa: PLW0603 - what a fork has to undo
        _register_at_fork()
        self._handlers = {number: signal.signal(number, self._handle) for number in SIGNALS}
        self._before = signal.set_wakeup_fd(self._into, warn_on_full_buffer=False)
        self._pass_on_to(self._before)
        _taken = self

    def retake(self) -> None:
        """The same again, from within the event loop: uvloop takes the descriptor when it begins to run."""
        replaced = signal.set_wakeup_fd(self._into, warn_on_full_buffer=False)
        if replaced != self._into:
            self._pass_on_to(replaced)

    def give_back(self) -> None:
        """Have signals go where they went before."""
        global _taken  # noqa: PLW0603
        if _taken is self:
            _taken = None
            self._restore()

    def forsake(self) -> None:
        """The same in a child that has been forked: the pipe is the parent's."""
        self._restore()
        self._pipe = self._into = self._onward = -1
        for descriptor in self._opened:
            os.close(descriptor)

    def wake(self) -> None:
        """Have `wait` return."""
        self._write(self._into, 0)

    def wait(self, seconds: float | None) -> list[int]:
        """The signals that came first within a time, each once though it came both ways; none after `wake`."""
        self._poll.poll(None if seconds is None else max(0, math.ceil(seconds * 1_000)))
        try:
            came = os.read(self._pipe, 1_024)
        except BlockingIOError:
            return []
        return [byte & ~BY_HANDLER for byte in came if self._is_news(byte)]

    def _is_news(self, byte: int) -> bool:
        number = byte & ~BY_HANDLER
        if number == byte:
            self._write(self._onward, byte)
        if number not in SIGNALS:
            return False
        self._counts[byte] += 1
        news = self._counts[byte] > self._known[number]
        self._known[number] += news
        return news

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self._write(self._into, number | BY_HANDLER)

    def _pass_on_to(self, descriptor: int) -> None:
        """From now on. By a duplicate: the original may be closed, and its number become that of a connection."""
        self._onward = -1
        if descriptor >= 0:
            with suppress(OSError):
                self._onward = os.dup(descriptor)
                self._opened.append(self._onward)

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not Python's, and lost
        signal.set_wakeup_fd(-1)
        if self._before >= 0:
            with suppress(ValueError, OSError):  # whoever it was has closed it since
                signal.set_wakeup_fd(self._before, warn_on_full_buffer=False)

    def _write(self, descriptor: int, byte: int) -> None:
        with suppress(OSError):  # full: there is enough to read; or closed
            os.write(descriptor, bytes([byte]))


_taken: _Signals | None = None
_registered = False
_masks = threading.local()


def _register_at_fork() -> None:
    global _registered  # noqa: PLW0603 - there is no way to take it back
    if not _registered:
        os.register_at_fork(before=_before_fork, after_in_parent=_unblock, after_in_child=_in_child)
        _registered = True


def _before_fork() -> None:
    """Keep signals from the child until it has its own handlers: until then they would come as the parent's."""
    if _taken is not None:
        _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _in_child() -> None:
    global _taken
    taken, _taken = _taken, None
    if taken is not None:
        taken.forsake()
    _unblock()


def _unblock() -> None:
    before = _masks.__dict__.pop("before", None)
    if before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave(code: int, tell: Callable[..., None], event: str, **facts: object) -> None:
    """End the process now, whatever its threads do, with a last event."""
    try:
        tell(event, **facts)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)

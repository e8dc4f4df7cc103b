"""Runs the bodies of claimed jobs: `async def` on the event loop, `def` in threads."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import datetime
from functools import partial
from random import Random
from typing import Any

from xjobs import points
from xjobs.bodies import cancel_when_stopped, cancellable
from xjobs.bridge import run_sync
from xjobs.drivers.base import Driver
from xjobs.jobs import JobHandle
from xjobs.operations.attempt import Callee, Execution, broken, execute
from xjobs.signals import RunSignal
from xjobs.worker import log
from xjobs.worker.left import BodyLeft, counts, kept, left_by
from xjobs.worker.runs import Run
from xjobs.worker.threads import Threads

Ended = Callable[[Run, Execution | None], None]

NO_THREAD = 0.1
"""Seconds until a thread for an ending hook is asked for again, when there was none to be had."""


class Bodies:
    """Starts bodies and says how they ended.

    Args:
        blocking, awaiting: the drivers of the two colours, for what bodies ask of the queue.
        worker_id: the fence of steps and progress, and the name of the threads.
        clock: the queue's present instant.
        random: the source of retry jitter.
        ended: called on the event loop when an attempt has ended; with None when a listener at a point has the worker
            die there.
    """

    def __init__(
        self,
        blocking: Driver,
        awaiting: Driver,
        *,
        worker_id: str,
        clock: Callable[[], datetime],
        random: Random,
        ended: Ended,
    ) -> None:
        self._blocking = blocking
        self._awaiting = awaiting
        self._worker_id = worker_id
        self._clock = clock
        self._random = random
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._running: set[Run] = set()
        self._entered: dict[RunSignal, asyncio.Task[Any] | None] = {}
        self._heeding: dict[RunSignal, Callable[[], None]] = {}
        self._looking = False
        self._threads = Threads(worker_id)
        self._finished: deque[tuple[Run, Execution | None]] = deque()
        self._collecting = False

    def start(self, run: Run) -> None:
        """Run the body of a claim; it has begun, or is about to, when this returns."""
        handle = run.handle
        assert handle is not None  # noqa: S101 - admission keeps out what nothing here declares
        if handle.is_async:
            # Without the loop's create_task, which adds a third to what a task costs.
            run.task = asyncio.Task(self._on_loop(run, handle), loop=self._loop, name=handle.name)
            self._running.add(run)
        else:
            self._threads.start(partial(self._in_thread, run, handle))

    async def close(self, within: float) -> list[str]:
        """Cancel the tasks and end the threads that are free; the names of bodies that go on all the same."""
        tasks = [run.task for run in self._running if run.task is not None]
        for task in tasks:
            task.cancel()
        left = (await asyncio.wait(tasks, timeout=within))[1] if tasks else ()
        return [task.get_name() for task in left] + self._threads.close(0.0 if left else within)

    async def call(self, callee: Callee, arguments: tuple[Any, ...], values: dict[str, Any], signal: RunSignal) -> Any:
        """Call an ending hook: an `async def` on the loop, a `def` in a thread."""
        if callee.is_async:
            return await self._await_hook(callee.body(*arguments, **values), signal)
        done: asyncio.Future[Any] = self._loop.create_future()
        work = partial(self._into, done, partial(callee.body, *arguments, **values))
        await self._start_sometime(work)
        return await done

    async def _await_hook(self, hook: Coroutine[Any, Any, Any], signal: RunSignal) -> Any:
        """Await an `async def` hook; the worker's own cancellation of it is no failure."""
        task = asyncio.current_task(self._loop)
        try:
            return await kept(cancellable(hook, signal), signal)
        except BodyLeft:
            if task is not None and task.cancelling():
                raise asyncio.CancelledError from None
            raise

    async def _start_sometime(self, work: Callable[[], Any]) -> None:
        """Start work in a thread, as soon as there is one to be had."""
        while True:
            try:
                self._threads.start(work)
            except RuntimeError as problem:
                log.warning("jobs.worker.no-thread", error=str(problem))
                await asyncio.sleep(NO_THREAD)
            else:
                return

    def _into(self, done: asyncio.Future[Any], function: Callable[[], Any]) -> None:
        try:
            answer = partial(_set_result, done, function())
        except BaseException as error:  # noqa: BLE001 - raised again where the future is awaited
            answer = partial(_set_error, done, error if isinstance(error, Exception) else left_by(error))
        with suppress(RuntimeError):  # the loop has closed
            self._loop.call_soon_threadsafe(answer)

    async def _await_body(
        self, callee: Callee, arguments: tuple[Any, ...], values: dict[str, Any], signal: RunSignal
    ) -> Any:
        """Await an `async def` body in this task; it is cancelled when the run has to stop.

        Most bodies are short, so the cancelling is not set up before the loop goes on and a body is still there: until
        then nothing could have reached it.
        """
        entered = self._entered
        entered[signal] = asyncio.current_task(self._loop)
        if not self._looking:
            self._looking = True
            self._loop.call_soon(self._look)
        try:
            return await kept(callee.body(*arguments, **values), signal)
        finally:
            if entered.pop(signal, None) is None:
                self._heeding.pop(signal)()

    def _look(self) -> None:
        """Have the bodies cancelled in time that have been entered and not left in this turn of the loop."""
        self._looking = False
        for signal, task in self._entered.items():
            assert task is not None  # noqa: S101 - each attempt is a task
            self._heeding[signal] = cancel_when_stopped(task, signal)
        self._entered.clear()

    async def _on_loop(self, run: Run, handle: JobHandle[Any, Any, Any]) -> None:
        execution: Execution | None = None
        try:
            execution = await execute(
                self._awaiting,
                run.job,
                handle,
                worker_id=self._worker_id,
                call=self._await_body,
                clock=self._clock,
                random=self._random,
                signal=run.signal,
            )
        except points.Crash:
            pass  # a test has this process die here
        except Exception as problem:  # noqa: BLE001 - nothing awaits this task
            execution = self._broken(run, handle, problem)
        finally:
            run.task = None
            self._running.discard(run)
            self._ended(run, execution)

    def _in_thread(self, run: Run, handle: JobHandle[Any, Any, Any]) -> None:
        execution: Execution | None = None
        _close_old_connections()
        try:
            execution = run_sync(
                execute(
                    self._blocking,
                    run.job,
                    handle,
                    worker_id=self._worker_id,
                    call=_call_body,
                    clock=self._clock,
                    random=self._random,
                    signal=run.signal,
                )
            )
        except points.Crash:
            pass
        except BaseException as problem:  # noqa: BLE001 - the thread serves other jobs after this one
            execution = self._broken(run, handle, problem)
        _close_old_connections()
        self._finished.append((run, execution))
        if not self._collecting:
            self._collecting = True
            try:
                self._loop.call_soon_threadsafe(self._collect)
            except RuntimeError:  # the loop has closed: the worker ended without waiting for this body
                log.warning("jobs.worker.body-ended-late", job=run.job.id, name=run.job.name)

    def _broken(self, run: Run, handle: JobHandle[Any, Any, Any], problem: BaseException) -> Execution:
        log.error("jobs.worker.attempt-failed", cause=problem, job=run.job.id, name=run.job.name)
        return broken(run.job, handle, problem, self._random)

    def _collect(self) -> None:
        """Take over what threads have finished."""
        self._collecting = False
        while self._finished:
            self._ended(*self._finished.popleft())


def _close_old_connections() -> None:
    """Have Django close those of this thread's connections that broke or are too old, as it does around requests."""
    db, conf = sys.modules.get("django.db"), sys.modules.get("django.conf")
    if db is not None and conf is not None and conf.settings.configured:
        try:
            db.close_old_connections()
        except Exception as problem:  # noqa: BLE001 - the body will meet what there is to meet
            log.warning("jobs.worker.connections-left", error=str(problem))


async def _call_body(callee: Callee, arguments: tuple[Any, ...], values: dict[str, Any], signal: RunSignal) -> Any:
    """Call a `def` body in this thread; it sees the signal when it asks."""
    del signal
    try:
        return callee.body(*arguments, **values)
    except BaseException as error:
        if counts(error):
            raise
        raise left_by(error) from error


def _set_result(done: asyncio.Future[Any], result: Any) -> None:
    if not done.done():
        done.set_result(result)


def _set_error(done: asyncio.Future[Any], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)

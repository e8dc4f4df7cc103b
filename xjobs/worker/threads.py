"""The threads that `def` bodies run in."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class Threads:
    """Runs each function that it is given at once, in a thread that is free or a new one.

    The threads are daemons: a body that never returns does not keep the process from ending.

    Args:
        name: of the threads, with a number behind it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._free = 0
        self._threads: list[threading.Thread] = []

    def start(self, function: Callable[[], Any]) -> None:
        """Run a function in a thread and a context of its own. What it raises is its own affair.

        Raises:
            RuntimeError: there is no thread to be had; the function is not run.
        """
        context = contextvars.copy_context()
        with self._lock:
            grow = self._free == 0
            self._free += 0 if grow else -1
        if grow:
            thread = threading.Thread(target=self._serve, name=f"{self._name}-{len(self._threads) + 1}", daemon=True)
            thread.start()
            self._threads.append(thread)
        self._work.put(lambda: context.run(function))

    def close(self, timeout: float) -> list[str]:
        """End the threads that are free and wait for them; the names of those that are still at work."""
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join(timeout)
        return [thread.name for thread in self._threads if thread.is_alive()]

    def _serve(self) -> None:
        while (function := self._work.get()) is not None:
            function()
            with self._lock:
                self._free += 1

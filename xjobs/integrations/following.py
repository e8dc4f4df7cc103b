"""A memory transaction that follows another one, with a mark before each of its writes.

Whoever follows learns of marks that are gone (a savepoint took them back) and of the end. What was written under marks
that are gone is undone; those are always the latest ones, since marks are looked at before each write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from xjobs.drivers.memory import MemoryDriver, MemoryTransaction


class MarkedTransaction:
    """The memory side of a transaction that is followed.

    Args:
        memory: the queue's driver.
        look: called before each statement on memory, to see whether the transaction has ended.
    """

    def __init__(self, memory: MemoryDriver, look: Callable[[], None]) -> None:
        self.memory = memory
        self.driver: MemoryTransaction = memory.begin()
        self._look = look
        self._marks: dict[int, int] = {}  # how many rows the transaction had before each mark
        self._last = 0
        memory.store.followed.append(look)

    @property
    def open(self) -> bool:
        """Whether it has not ended."""
        return self.driver.open

    def next_mark(self) -> int:
        """The number of the mark before the next write."""
        self._last += 1
        return self._last

    def set_mark(self, mark: int, standing: Iterable[int]) -> None:
        """Place a mark, after undoing what was written under those that stand no more."""
        self._undo(standing)
        self._marks[mark] = self.driver.mark()

    def commit(self, standing: Iterable[int] | None) -> None:
        """Make visible what was written under marks that stand; under all when None, as far as they are known."""
        if standing is not None:
            self._undo(standing)
        self._stop()
        self.driver.commit()

    def rollback(self) -> None:
        """Undo everything."""
        self._stop()
        self.driver.rollback()

    def _undo(self, standing: Iterable[int]) -> None:
        gone = self._marks.keys() - set(standing)
        if gone:
            self.driver.rollback_to(min(self._marks[mark] for mark in gone))
            for mark in gone:
                del self._marks[mark]

    def _stop(self) -> None:
        if self._look in self.memory.store.followed:
            self.memory.store.followed.remove(self._look)

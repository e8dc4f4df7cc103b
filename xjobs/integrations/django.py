"""Joining Django's connection (`django.db.connection`, or `connections[alias]`), and following one from memory."""

from __future__ import annotations

from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from xjobs.drivers.base import Driver
from xjobs.drivers.memory import MemoryDriver
from xjobs.drivers.session import aborted
from xjobs.errors import ConnectionUnsupported
from xjobs.integrations.following import MarkedTransaction


async def join(connection: Any) -> Driver:
    """A driver over the psycopg connection underneath, in the `atomic` block that is open, or in autocommit.

    Raises:
        ConnectionUnsupported: the database is not Postgres by psycopg 3.
        TransactionAborted: the `atomic` block must be rolled back.
    """
    from psycopg import Connection

    from xjobs.drivers.postgres import ConnectionDriver

    wrapper = _wrapper(connection)
    wrapper.ensure_connection()
    if not isinstance(wrapper.connection, Connection):
        raise ConnectionUnsupported(
            f"Django's database {wrapper.alias!r} is {wrapper.vendor}, and a queue on Postgres can only join psycopg 3",
            "use django.db.backends.postgresql with psycopg 3 installed",
        )
    return ConnectionDriver(wrapper.connection)


async def follow(connection: Any, memory: MemoryDriver) -> Driver:
    """A memory transaction that ends as the outermost `atomic` block does, savepoints included.

    Outside of `atomic` there is nothing to follow. Where a test rolls its outermost block back, as Django's TestCase
    does, the job never appears, like any `on_commit` callback.

    Raises:
        TransactionAborted: the `atomic` block must be rolled back.
        ConnectionUnsupported: it is in a transaction without `atomic`, whose end Django tells nobody.
    """
    wrapper = _wrapper(connection)
    if not wrapper.in_atomic_block:
        if wrapper.connection is not None and not wrapper.autocommit:
            raise ConnectionUnsupported(
                f"autocommit of Django's database {wrapper.alias!r} is off, and a queue in memory cannot follow that",
                "use transaction.atomic(), or run this test on Postgres",
            )
        return memory
    follower = _followers.get(wrapper)
    if follower is not None:
        follower.look()
    if follower is None or not follower.transaction.open or follower.transaction.memory is not memory:
        follower = _followers[wrapper] = _Follower(wrapper, memory)
    follower.mark()
    return follower.transaction.driver


def _wrapper(connection: Any) -> Any:
    """The wrapper itself, also behind the proxy that `django.db.connection` is; refused when it takes no statements."""
    wrapper = connection._connections[connection._alias] if hasattr(connection, "_alias") else connection  # noqa: SLF001
    if wrapper.needs_rollback:
        raise aborted()
    return wrapper


class _Follower:
    """Ends a memory transaction as a Django connection's outermost `atomic` block ends.

    Every write has an `on_commit` callback: Django drops those of a savepoint that rolls back, and calls the others
    after the commit. They are moved to the front, so that no callback of the app runs between them.
    """

    def __init__(self, wrapper: Any, memory: MemoryDriver) -> None:
        self.transaction = MarkedTransaction(memory, self.look)
        self._wrapper = wrapper
        self._callbacks: dict[int, Any] = {}
        self._committed: set[int] = set()

    def mark(self) -> None:
        """Mark what is about to be written, and undo what savepoints have taken back."""
        mark = self.transaction.next_mark()
        waiting = [callback for _, callback, _ in self._wrapper.run_on_commit]
        self.transaction.set_mark(mark, [m for m, callback in self._callbacks.items() if callback in waiting])
        self._callbacks[mark] = partial(self._committed.add, mark)
        self._wrapper.on_commit(self._callbacks[mark])
        self._wrapper.run_on_commit.insert(0, self._wrapper.run_on_commit.pop())

    def look(self) -> None:
        """End the memory transaction if the block has ended."""
        if self._committed:
            self.transaction.commit(standing=self._committed)
        elif not self._wrapper.in_atomic_block:
            self.transaction.rollback()


_followers: WeakKeyDictionary[Any, _Follower] = WeakKeyDictionary()

"""Joining Django's connection (`django.db.connection`, or `connections[alias]`), and following one from memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, ref

from xjobs.drivers.base import Driver
from xjobs.drivers.memory import MemoryDriver, MemoryTransaction
from xjobs.drivers.session import aborted
from xjobs.errors import ConnectionUnsupported


async def join(connection: Any) -> Driver:
    """A driver over the psycopg connection underneath, in the `atomic` block that is open, or in autocommit.

    Raises:
        ConnectionUnsupported: the database is not Postgres by psycopg 3, or an event loop runs in this thread.
        TransactionAborted: the `atomic` block must be rolled back.
    """
    wrapper = _wrapper(connection)
    raw = _psycopg(wrapper)
    if raw is None:
        raise ConnectionUnsupported(
            f"Django's database {wrapper.alias!r} is {wrapper.vendor}, and a queue on Postgres can only join psycopg 3",
            "use django.db.backends.postgresql with psycopg 3 installed",
        )
    from xjobs.integrations import psycopg

    return await psycopg.join(raw)


async def follow(connection: Any, memory: MemoryDriver) -> Driver:
    """A memory transaction that ends as the outermost `atomic` block does, or the transaction where autocommit is off;
    savepoints included.

    Outside of both there is nothing to follow. Where a test rolls its outermost block back, as Django's TestCase does,
    the job never appears, as on Postgres. On psycopg 3 the server is asked; on other databases what Django sends is all
    there is.

    Raises:
        TransactionAborted: the `atomic` block must be rolled back, or the transaction has failed on psycopg 3.
        ConnectionUnsupported: an event loop runs in this thread.
    """
    wrapper = _wrapper(connection)
    raw = _psycopg(wrapper)
    if raw is not None:
        from xjobs.integrations import psycopg

        return await psycopg.follow(raw, memory)
    if not _in_transaction(wrapper):
        return memory
    follower = _followers.get(wrapper)
    if follower is None:
        _watch(wrapper)
    if follower is None or not follower.transaction.open or follower.memory is not memory:
        follower = _followers[wrapper] = _Follower(wrapper, memory)
    return follower.transaction


def _wrapper(connection: Any) -> Any:
    """The wrapper itself, also behind the proxy that `django.db.connection` is; refused when it takes no statements."""
    if _on_event_loop() and not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"):
        raise ConnectionUnsupported(
            "Django's connection is a blocking one, and the enqueue on it is called on an event loop",
            "call enqueue() in a thread, as by sync_to_async, together with the rest of the transaction",
        )
    wrapper = connection._connections[connection._alias] if hasattr(connection, "_alias") else connection  # noqa: SLF001
    if wrapper.needs_rollback:
        raise aborted()
    return wrapper


def _on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _psycopg(wrapper: Any) -> Any:
    """The psycopg 3 connection under a wrapper, opened if need be; None when it is on another library."""
    if wrapper.vendor != "postgresql":
        return None
    from psycopg import Connection

    wrapper.ensure_connection()
    return wrapper.connection if isinstance(wrapper.connection, Connection) else None


def _in_transaction(wrapper: Any) -> bool:
    return bool(wrapper.in_atomic_block or (wrapper.connection is not None and not wrapper.autocommit))


class _Follower:
    """A memory transaction that follows the transaction of a Django connection."""

    def __init__(self, wrapper: Any, memory: MemoryDriver) -> None:
        self.memory = memory
        self.transaction: MemoryTransaction = memory.begin()
        self.marks: dict[str, int] = {}
        # Not the wrapper itself, which is the key under which this object is held.
        self._wrapper = ref(wrapper)
        memory.store.followed.append(self.look)

    def look(self) -> None:
        """Roll back what was dropped with its transaction open, and forget what has ended."""
        wrapper = self._wrapper()
        if self.transaction.open and (wrapper is None or not _in_transaction(wrapper)):
            self.transaction.rollback()
        if not self.transaction.open and self.look in self.memory.store.followed:
            self.memory.store.followed.remove(self.look)

    def committed(self, autocommit: bool = True) -> None:
        """The transaction has committed, or autocommit was turned on, which commits it; off is its beginning."""
        if autocommit:
            self.transaction.commit()

    def ended(self) -> None:
        """It was rolled back, or its connection closed."""
        self.transaction.rollback()

    def savepoint(self, name: str) -> None:
        """A savepoint has been made."""
        self.marks[name] = self.transaction.mark()

    def back_to(self, name: str) -> None:
        """It was rolled back to; one that is older than the first enqueue has no mark: everything came after it."""
        self.transaction.rollback_to(self.marks.get(name, 0))


_followers: WeakKeyDictionary[Any, _Follower] = WeakKeyDictionary()

_TOLD: dict[str, Callable[..., None]] = {
    "_commit": _Follower.committed,
    "_set_autocommit": _Follower.committed,
    "_rollback": _Follower.ended,
    "_close": _Follower.ended,
    "_savepoint": _Follower.savepoint,
    "_savepoint_rollback": _Follower.back_to,
}
"""What a follower is told of what Django sends. Its `on_commit` callbacks do not serve: tests capture and count them,
they come after those that were there before, and savepoints that are made by hand leave them as they are."""


def _watch(wrapper: Any) -> None:
    """Have the follower of a connection told of what is sent on it, for as long as the connection lives."""
    for name, tell in _TOLD.items():
        setattr(wrapper, name, partial(_sent, ref(wrapper), getattr(type(wrapper), name), tell))


def _sent(wrapper: ref[Any], send: Callable[..., Any], tell: Callable[..., None], *given: Any) -> Any:
    connection = wrapper()
    told = tell is _Follower.ended  # that one also when it fails
    try:
        answer = send(connection, *given)
        told = True
        return answer
    finally:
        follower = _followers.get(connection)
        if told and follower is not None and follower.transaction.open:
            tell(follower, *given)

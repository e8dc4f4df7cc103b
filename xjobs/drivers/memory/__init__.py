"""The memory driver: a twin function per named statement, over tables with the same unique keys and transactions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from xjobs.clocks import process_time
from xjobs.drivers.base import Row
from xjobs.drivers.memory import (
    claim,
    enqueue,
    events,
    inspect,
    leases,
    operate,
    pauses,
    settle,
    slots,
    stats,
    steps,
    wake,
    workers,
)
from xjobs.drivers.memory.store import Session, Store, Transaction
from xjobs.sql import Statement

Twin = Callable[..., list[Row]]

TWINS: dict[str, Twin] = {
    "SQL_ACK": settle.ack,
    "SQL_CANCEL": operate.cancel,
    "SQL_CANCEL_MANY": operate.cancel_many,
    "SQL_CLAIM": claim.claim,
    "SQL_ENQUEUE": enqueue.enqueue,
    "SQL_ENQUEUE_ONE": enqueue.enqueue_one,
    "SQL_EVENTS": events.events,
    "SQL_EVENTS_PURGE": events.purge,
    "SQL_EVENT_PUBLISH": events.publish,
    "SQL_GIVE_BACK": claim.give_back,
    "SQL_HEARTBEAT": leases.heartbeat,
    "SQL_JOB": inspect.job,
    "SQL_JOBS": inspect.jobs,
    "SQL_JOBS_BEFORE": inspect.jobs_before,
    "SQL_NACK": settle.nack,
    "SQL_PAUSE": pauses.pause,
    "SQL_PAUSED": pauses.paused,
    "SQL_PROGRESS": steps.progress,
    "SQL_PROMOTE": operate.promote,
    "SQL_PROMOTE_MANY": operate.promote_many,
    "SQL_REMOVE": operate.remove,
    "SQL_REMOVE_MANY": operate.remove_many,
    "SQL_RENEW": leases.renew,
    "SQL_REQUEUE": operate.requeue,
    "SQL_REQUEUE_MANY": operate.requeue_many,
    "SQL_RESUME": pauses.resume,
    "SQL_SCALER_DEPTH": stats.scaler_depth,
    "SQL_SLOT_ACQUIRE": slots.acquire,
    "SQL_SLOT_HOLDERS": slots.holders,
    "SQL_SLOT_RELEASE": slots.release,
    "SQL_STATS": stats.stats,
    "SQL_STEPS": steps.steps,
    "SQL_STEP_PUT": steps.put,
    "SQL_STEP_SLEEP": steps.sleep,
    "SQL_STEP_WAIT": steps.wait,
    "SQL_WAITING": inspect.waiting,
    "SQL_WAKE_WAITS": steps.wake_waits,
    "SQL_WAKE": wake.wake,
    "SQL_WORKERS": workers.workers,
    "SQL_WORKER_ANNOUNCE": workers.announce,
    "SQL_WORKER_FORGET": workers.forget,
}
"""The twin of each statement, by the statement's name."""


class MemoryDriver:
    """Runs statements on tables in this process. It never suspends, so it serves blocking and async callers alike.

    Args:
        clock: the present instant, in UTC; by default the process's clock.
        before: called before each statement.
    """

    backend = "memory"

    def __init__(
        self, *, clock: Callable[[], datetime] = process_time, before: Callable[[], None] | None = None
    ) -> None:
        self.store = Store(clock)
        self._before = before
        self._session = Session(self.store, None)

    async def run(self, statement: Statement, **parameters: Any) -> list[Row]:
        """Run the twin of one statement.

        Raises:
            WouldBlock: the statement would wait for another transaction.
            TransactionAborted: a statement of this transaction has failed before.
        """
        if self._before is not None:
            self._before()
        store, session = self.store, self._session
        with store.lock:
            if store.followed:
                for look in tuple(store.followed):
                    look()
            session.now = store.clock()
            if session.transaction is not None:
                return self._inside(session.transaction, statement, parameters)
            return TWINS[statement.name](session, **parameters)

    def _inside(self, transaction: Transaction, statement: Statement, parameters: dict[str, Any]) -> list[Row]:
        """Run the twin inside a transaction, which takes no more statements when it fails."""
        transaction.check()
        try:
            return TWINS[statement.name](self._session, **parameters)
        except BaseException:
            transaction.failed = True
            raise

    async def run_script(self, text: str) -> None:
        """Do nothing: there is no schema to install."""

    async def aclose(self) -> None:
        """Keep the tables: they live as long as the driver."""

    def begin(self) -> MemoryTransaction:
        """Open a transaction: a driver whose writes are hidden from others until it commits."""
        return MemoryTransaction(self)


class MemoryTransaction(MemoryDriver):
    """A driver inside a transaction of another memory driver, with the same tables."""

    def __init__(self, outer: MemoryDriver) -> None:
        self.store = outer.store
        self._before = outer._before  # noqa: SLF001 - the same class
        self._transaction = Transaction(outer.store)
        self._session = Session(outer.store, self._transaction)

    @property
    def open(self) -> bool:
        """Whether it has neither committed nor rolled back."""
        return not self._transaction.ended

    def mark(self) -> int:
        """A savepoint, for `rollback_to`."""
        return len(self._transaction.rows)

    def rollback_to(self, mark: int) -> None:
        """Undo the inserts since that savepoint."""
        self._transaction.rollback_to(mark)

    def commit(self) -> None:
        """Make the writes visible to all."""
        self._transaction.commit()

    def rollback(self) -> None:
        """Undo the writes."""
        self._transaction.rollback()

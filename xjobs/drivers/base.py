"""What operations see of a store: the driver protocol."""

from __future__ import annotations

from typing import Any, Protocol

from xjobs.sql import Statement

Row = tuple[Any, ...]


class Driver(Protocol):
    """Runs named statements, each in a transaction of its own unless the driver stands for a caller's transaction.

    Values go in and come out as Python's own: aware datetimes in UTC, timedelta, UUID, decoded JSON; JSON goes in as
    text. A blocking driver's coroutines never suspend (see `xjobs.bridge`).
    """

    backend: str
    """`memory` or `postgres`."""

    async def run(self, statement: Statement, **parameters: Any) -> list[Row]:
        """Run one statement and answer its rows.

        Raises:
            DriverUnavailable: the store does not answer, or lacks its schema.
            TransactionAborted: the caller's transaction has failed before.
            WouldBlock: in memory, the statement would wait for another transaction.
        """
        ...

    async def run_script(self, text: str) -> None:
        """Run schema text, in one transaction; a store without a schema has nothing to do."""
        ...

    async def aclose(self) -> None:
        """Give back what the driver holds; it may be used again, and connects anew then."""
        ...

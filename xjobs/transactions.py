"""Joining the caller's transaction: which driver writes a job on the connection that an enqueue is given.

On a Postgres queue that is a driver over the very connection. On a memory queue it is a memory transaction that follows
the connection's: the job becomes visible when that has committed, and vanishes when it has rolled back. Libraries are
known by the names of their classes, so that none is imported which the caller does not use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, cast

from xjobs.drivers.base import Driver, Row
from xjobs.errors import ConnectionUnsupported
from xjobs.sql import Statement

if TYPE_CHECKING:
    from xjobs.drivers.memory import MemoryDriver

Colour = Literal["blocking", "async"]


class Integration(Protocol):
    """What a module of `xjobs.integrations` offers for the connections of its library."""

    async def join(self, connection: Any) -> Driver:
        """A driver that writes inside the transaction of a Postgres connection, opening it if need be."""
        ...

    async def follow(self, connection: Any, memory: MemoryDriver) -> Driver:
        """A driver that writes to memory inside a transaction that ends as the connection's does."""
        ...


class Host(Protocol):
    """What a queue's own driver may offer besides: a say in what is written on connections that callers give."""

    def joined(self, driver: Driver) -> Driver:
        """The driver to use in place of `driver`, which writes on the caller's connection.

        Raises:
            ConnectionUnsupported: it leads elsewhere than the queue.
        """
        ...


class _Known(NamedTuple):
    integration: str
    is_async: bool = False


# A class here serves its subclasses too.
_KNOWN = {
    "psycopg.Connection": _Known("xjobs.integrations.psycopg"),
    "psycopg.AsyncConnection": _Known("xjobs.integrations.psycopg", is_async=True),
    "django.utils.connection.ConnectionProxy": _Known("xjobs.integrations.django"),
    "django.db.backends.base.base.BaseDatabaseWrapper": _Known("xjobs.integrations.django"),
    "sqlalchemy.orm.session.Session": _Known("xjobs.integrations.sqlalchemy"),
    "sqlalchemy.orm.scoping.scoped_session": _Known("xjobs.integrations.sqlalchemy"),
    "sqlalchemy.engine.base.Connection": _Known("xjobs.integrations.sqlalchemy"),
    "sqlalchemy.ext.asyncio.session.AsyncSession": _Known("xjobs.integrations.sqlalchemy", is_async=True),
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": _Known("xjobs.integrations.sqlalchemy", is_async=True),
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": _Known("xjobs.integrations.sqlalchemy", is_async=True),
}


def join(driver: Driver, connection: Any, colour: Colour) -> Driver:
    """The driver that writes on `connection`, for a queue whose own driver is `driver`.

    The connection is not touched before the first statement: an input that is refused leaves it as it was.

    Raises:
        ConnectionUnsupported: the connection is of an unknown kind, or an async one in a blocking call.
    """
    known = _known(connection)
    if known.is_async and colour == "blocking":
        raise ConnectionUnsupported(
            f"{type(connection).__name__} is an async connection, and enqueue() is a blocking call",
            "await aenqueue() instead",
        )
    return _Joined(driver, connection, cast("Integration", import_module(known.integration)))


class _Joined:
    """Runs each statement in the transaction that the connection is in then."""

    def __init__(self, driver: Driver, connection: Any, integration: Integration) -> None:
        self.backend = driver.backend
        self._driver = driver
        self._connection = connection
        self._integration = integration

    async def run(self, statement: Statement, **parameters: Any) -> list[Row]:
        """Run one statement.

        Raises:
            ConnectionUnsupported: the connection cannot be joined, or not followed.
            TransactionAborted: its transaction has failed.
        """
        return await (await self._entered()).run(statement, **parameters)

    async def run_script(self, text: str) -> None:
        """Run schema text in the caller's transaction."""
        await (await self._entered()).run_script(text)

    async def aclose(self) -> None:
        """Leave the connection to its owner."""

    async def _entered(self) -> Driver:
        if self.backend == "memory":
            return await self._integration.follow(self._connection, cast("MemoryDriver", self._driver))
        joined = await self._integration.join(self._connection)
        return cast("Host", self._driver).joined(joined) if hasattr(self._driver, "joined") else joined


def _known(connection: Any) -> _Known:
    for kind in type(connection).__mro__:
        known = _KNOWN.get(f"{kind.__module__}.{kind.__qualname__}")
        if known is not None:
            return known
    kind = type(connection)
    raise ConnectionUnsupported(
        f"connection is a {kind.__module__}.{kind.__qualname__}, which the queue cannot join",
        "pass a psycopg 3 connection, a SQLAlchemy 2 session or connection, or Django's connection",
    )

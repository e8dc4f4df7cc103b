"""Joining a psycopg 3 connection, blocking or async."""

from __future__ import annotations

from typing import Any

from psycopg import AsyncConnection

from xjobs.drivers.async_postgres import AsyncConnectionDriver
from xjobs.drivers.base import Driver
from xjobs.drivers.memory import MemoryDriver
from xjobs.drivers.postgres import ConnectionDriver
from xjobs.errors import ConnectionUnsupported


async def join(connection: Any) -> Driver:
    """A driver over the connection itself."""
    return (
        AsyncConnectionDriver(connection) if isinstance(connection, AsyncConnection) else ConnectionDriver(connection)
    )


async def follow(connection: Any, memory: MemoryDriver) -> Driver:  # noqa: ARG001 - the integration's signature
    """Refuse: the library does not say when its transactions end.

    Raises:
        ConnectionUnsupported: always.
    """
    raise ConnectionUnsupported(
        f"a memory queue cannot follow the transactions of a {type(connection).__module__}.{type(connection).__name__}",
        "run this test on Postgres (pytest --xjobs-pg), or enqueue after the commit",
    )

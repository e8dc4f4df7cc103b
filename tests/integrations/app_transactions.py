"""One transaction of an app on Postgres by each library that the queue can join, with the same few methods."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import django
import psycopg
from django.conf import settings
from django.db import connection as proxy, connections, transaction
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import xjobs
from xjobs.bridge import run_sync

if not settings.configured:
    settings.configure(USE_TZ=True, DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
    django.setup()


@dataclass
class App:
    """What an app has in hand: what it gives as `connection=`, and the ways to use and end its transaction."""

    given: Any
    send: Callable[[str], Any]
    end: Callable[[str], Any]
    raw: Callable[[], Any]
    is_async: bool = False

    async def execute(self, statement: str) -> None:
        await settled(self.send(statement))

    async def commit(self) -> None:
        await settled(self.end("commit"))

    async def rollback(self) -> None:
        await settled(self.end("rollback"))

    async def enqueue(self, work: xjobs.JobHandle[Any, Any, Any], n: int) -> xjobs.Enqueued:
        here = work.using(connection=self.given)
        return await here.aenqueue(n=n) if self.is_async else here.enqueue(n=n)


async def settled(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


@asynccontextmanager
async def plain(dsn: str) -> AsyncIterator[App]:
    with psycopg.connect(dsn) as connection:
        yield App(connection, connection.execute, lambda how: getattr(connection, how)(), lambda: connection)


@asynccontextmanager
async def plain_async(dsn: str) -> AsyncIterator[App]:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        yield App(connection, connection.execute, lambda how: getattr(connection, how)(), lambda: connection, True)


@asynccontextmanager
async def core(dsn: str) -> AsyncIterator[App]:
    engine = create_engine(for_sqlalchemy(dsn))
    with engine.connect() as given:
        yield App(
            given,
            lambda sent: given.execute(text(sent)),
            lambda how: getattr(given, how)(),
            lambda: given.connection.driver_connection,
        )
    engine.dispose()


@asynccontextmanager
async def session(dsn: str) -> AsyncIterator[App]:
    engine = create_engine(for_sqlalchemy(dsn))
    with Session(engine) as given:
        yield App(
            given,
            lambda sent: given.execute(text(sent)),
            lambda how: getattr(given, how)(),
            lambda: given.connection().connection.driver_connection,
        )
    engine.dispose()


@asynccontextmanager
async def session_async(dsn: str) -> AsyncIterator[App]:
    engine = create_async_engine(for_sqlalchemy(dsn))
    async with AsyncSession(engine) as given:
        yield App(
            given,
            lambda sent: given.execute(text(sent)),
            lambda how: getattr(given, how)(),
            lambda: given.sync_session.connection().connection.driver_connection,
            True,
        )
    await engine.dispose()


@asynccontextmanager
async def of_django(dsn: str) -> AsyncIterator[App]:
    with django_on(dsn):
        transaction.set_autocommit(False)
        yield App(
            proxy,
            lambda sent: proxy.cursor().execute(sent),
            lambda how: getattr(transaction, how)(),
            lambda: connections["default"].connection,
        )
        transaction.rollback()
        transaction.set_autocommit(True)


@contextmanager
def django_on(dsn: str) -> Any:
    """Django's default database, for the length of a block; a path is of SQLite's."""
    options: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3", "NAME": dsn}
    if not dsn.startswith("/"):
        given = conninfo_to_dict(dsn)
        options = {"ENGINE": "django.db.backends.postgresql", "NAME": given["dbname"]}
        options |= {name.upper(): given[name] for name in ("user", "host", "port")}
    connections.databases["default"] = connections.configure_settings({"default": options})["default"]
    if hasattr(connections._connections, "default"):
        del connections["default"]
    yield
    connections.close_all()
    if hasattr(connections._connections, "default"):
        del connections["default"]


def for_sqlalchemy(dsn: str) -> str:
    return dsn.replace("postgresql://", "postgresql+psycopg://")


LIBRARIES = {
    "psycopg": plain,
    "psycopg async": plain_async,
    "sqlalchemy core": core,
    "sqlalchemy session": session,
    "sqlalchemy async": session_async,
    "django": of_django,
}


def run_in(library: str, dsn: str, scenario: Callable[[App], Awaitable[None]]) -> None:
    """Run a scenario, that of a blocking library in the thread and that of an async one on an event loop."""

    async def opened() -> None:
        async with LIBRARIES[library](dsn) as app:
            await scenario(app)

    if library.endswith("async"):
        asyncio.run(opened())
    else:
        run_sync(opened())

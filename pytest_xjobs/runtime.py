"""What one pytest run holds for Postgres: its server, its databases, and the connections to them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pytest_xjobs.clock import SEARCH_PATH, install_time
from pytest_xjobs.databases import RunDatabases
from pytest_xjobs.drivers import AsyncQueueDriver, QueueDriver, holders
from pytest_xjobs.options import Options
from pytest_xjobs.plugin import OPTIONS, RUNTIME
from pytest_xjobs.provision import Cluster, Existing, PostgresNotFound, Server, ServerError, find_binaries
from pytest_xjobs.provision.url import libpq_url
from pytest_xjobs.reset import KEPT_TABLES, Database
from xjobs.sql import SQL_JOBS_TABLE


class Runtime:
    """The server and databases of this process's part of the run, opened as they are needed."""

    def __init__(self, asker: Asker) -> None:
        self._config = config = asker.config
        self._options: Options = config.stash[OPTIONS]
        given: dict[str, Any] | None = getattr(config, "workerinput", {}).get("xjobs_server")
        if given is None:
            self.server: Server = find_server(asker, self._options)
            self._databases = RunDatabases.start(self.server)
            self._databases.sweep()
        else:
            self.server = Existing.from_dsn(given["dsn"], source="the xdist controller", disposable=given["disposable"])
            self._databases = RunDatabases.join(self.server, given["run"])
        self._shared: Place | None = None
        self._made = 0

    def handover(self) -> dict[str, Any]:
        """What an xdist worker needs for taking part."""
        return {
            "dsn": self.server.dsn(self.server.maintenance_dbname),
            "disposable": self.server.disposable,
            "run": self._databases.run,
        }

    def for_scratch(self) -> tuple[str, str]:
        """Where databases of a moment can be made, and what their names begin with, so that they go with the run."""
        return self.server.dsn(self.server.maintenance_dbname), self._databases.name("ddl")

    def shared(self) -> Place:
        """The database that tests of this process take turns in."""
        if self._shared is None:
            self._shared = self._place("main")
        return self._shared

    def own(self) -> Place:
        """A database for one test alone; the caller gives it back with `drop`."""
        self._made += 1
        return self._place(f"own{self._made}")

    def drop(self, place: Place) -> None:
        """Remove a test's own database."""
        place.close()
        self._databases.drop(place.database)

    def process(self) -> ServerProcess:
        """The server in the shape of pytest-postgresql's process fixtures, with our template to clone from."""
        self._databases.template(self._install)
        worker = getattr(self._config, "workerinput", {}).get("workerid", "")
        server = self.server
        return ServerProcess(
            host=server.host,
            port=server.port,
            user=server.user,
            password=server.password,
            options=f"-c search_path={SEARCH_PATH.replace(' ', '')}",
            dbname=self._databases.name(f"{worker}client"),
            template_dbname=self._databases.name("template"),
            maintenance_dbname=server.maintenance_dbname,
            version=server.version,
        )

    def close(self) -> None:
        """End connections, drop databases, stop the server; nothing happens the second time."""
        shared, self._shared = self._shared, None
        try:
            if shared is not None:
                shared.close()
            self._databases.close()
        finally:
            self.server.stop()

    def _place(self, purpose: str) -> Place:
        self._databases.template(self._install)
        worker = getattr(self._config, "workerinput", {}).get("workerid", "")
        database = self._databases.create(
            f"{worker}{purpose}".lower(),
            mode=self._options.reset.value,
            kept=(*KEPT_TABLES, *self._options.keep.value),
        )
        return Place(database)

    def _install(self, dsn: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            install_time(connection)
            connection.execute(SQL_JOBS_TABLE.encode())
        self._config.hook.pytest_xjobs_database_setup(dsn=dsn)


@dataclass(frozen=True)
class ServerProcess:
    """A server as pytest-postgresql's process fixtures describe one; `factories.postgresql("xjobs_server")` takes it.

    Attributes:
        options: with which clients connect, so that their `now()` follows the clock of the database.
        dbname: of the database that each client fixture makes, from `template_dbname`, which has the queue's tables and
            the app's.
    """

    host: str
    port: int
    user: str
    password: str
    options: str
    dbname: str
    template_dbname: str
    maintenance_dbname: str
    version: str


class Place:
    """A database with the connections that the plugin keeps to it.

    Attributes:
        control: for emptying it and moving its time, apart from the queue's own.
        blocking, awaiting: the queue's drivers.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.control = psycopg.connect(database.dsn, autocommit=True, application_name="pytest-xjobs control")
        self.blocking = QueueDriver(database.dsn, lambda: holders(self.control))
        self.awaiting = AsyncQueueDriver(database.dsn, lambda: holders(self.control))

    def close(self) -> None:
        """Close the connections."""
        self.awaiting.abandon()
        self.blocking.connection().close()
        self.control.close()


_REFUSED = pytest.StashKey[str]()


class Asker(Protocol):
    """Who asks for the runtime: a fixture's request, or xdist's controller for a node."""

    @property
    def config(self) -> pytest.Config:
        """The run's configuration."""
        ...


def runtime(asker: Asker) -> Runtime:
    """The runtime of this process, made at the first call.

    Raises:
        pytest.UsageError: there is no server; found out once, since each attempt may take seconds.
    """
    config = asker.config
    if (refusal := getattr(config, "workerinput", {}).get("xjobs_no_server")) is not None:
        config.stash[_REFUSED] = refusal
    if RUNTIME not in config.stash and _REFUSED not in config.stash:
        try:
            config.stash[RUNTIME] = made = Runtime(asker)
            if isinstance(asker, pytest.FixtureRequest):
                # Before a server that is a fixture ends.
                asker.session.addfinalizer(made.close)
        except (PostgresNotFound, ServerError) as problem:
            config.stash[_REFUSED] = f"xjobs: {problem}"
    if _REFUSED in config.stash:
        raise pytest.UsageError(config.stash[_REFUSED])
    return config.stash[RUNTIME]


def handover(node: Any) -> None:
    """Give an xdist worker its part in the run's server; a run that can do without is told why there is none.

    Raises:
        pytest.UsageError: there is none, and the run asks for Postgres.
    """
    try:
        node.workerinput["xjobs_server"] = runtime(node).handover()
    except pytest.UsageError as problem:
        if "pg" in node.config.stash[OPTIONS].backends.value:
            raise
        node.workerinput["xjobs_no_server"] = str(problem)


def find_server(asker: Asker, options: Options) -> Server:
    """The server to use: the one given, pytest-postgresql's, or one of our own from what is installed.

    Raises:
        pytest.UsageError: the fixture that is to give it does not exist, or gives something else.
        ServerUnreachable: the one given does not answer.
        PostgresNotFound: nothing is given and nothing is installed.
    """
    config, dsn = asker.config, options.dsn
    if options.server_fixture is not None:
        return _server_of_fixture(asker, options.server_fixture)
    if dsn.value is not None:
        return Existing.from_dsn(dsn.value, source=_DSN_SOURCES[dsn.source])
    host, executable = _set_for_postgresql(config, "host"), _set_for_postgresql(config, "exec")
    if host is not None:
        return Existing.from_dsn(_postgresql_dsn(config, host), source="pytest-postgresql's settings")
    # A name without a directory is looked up as pytest-postgresql does.
    found = executable and (shutil.which(executable) or executable)
    return Cluster.start(find_binaries(explicit=found and str(Path(found).parent)))


def _server_of_fixture(asker: Any, name: str) -> Server:
    try:
        process = asker.getfixturevalue(name)
    except pytest.FixtureLookupError:
        raise pytest.UsageError(
            f"xjobs: the dsn names the fixture {name!r}, which does not exist: name a session fixture of"
            " pytest-postgresql, such as fixture:postgresql_proc"
        ) from None
    try:
        parameters = {key: str(getattr(process, key) or "") for key in ("host", "port", "user", "password")}
    except AttributeError as problem:
        raise pytest.UsageError(
            f"xjobs: the fixture {name!r} that the dsn names gives a {type(process).__name__}, which is no server"
            f" ({problem}): name a session fixture of pytest-postgresql, such as fixture:postgresql_proc"
        ) from None
    parameters["dbname"] = getattr(process, "maintenance_dbname", None) or "postgres"
    return Existing.from_dsn(
        libpq_url({key: value for key, value in parameters.items() if value}), source=f"fixture {name}"
    )


_DSN_SOURCES = {"command line": "--xjobs-dsn", "environment": "XJOBS_DSN", "ini": "the ini file's xjobs_dsn"}


def _set_for_postgresql(config: pytest.Config, name: str) -> str | None:
    """A setting of pytest-postgresql that the user made; its defaults do not count."""
    value = config.getoption(f"postgresql_{name}", default=None)
    if value is None:
        try:
            value = config.getini(f"postgresql_{name}")
        except (KeyError, ValueError):  # the plugin is not loaded
            return None
        if str(value) == _POSTGRESQL_DEFAULTS.get(name, ""):
            return None
    return str(value) if value else None


# Of pytest-postgresql's ini keys: what they say when nobody has set them.
_POSTGRESQL_DEFAULTS = {"host": "127.0.0.1", "exec": "/usr/lib/postgresql/14/bin/pg_ctl", "user": "postgres"}


def _postgresql_dsn(config: pytest.Config, host: str) -> str:
    given = {name: _set_for_postgresql(config, name) for name in ("port", "user", "password")}
    return make_conninfo(host=host, **{name: value for name, value in given.items() if value})

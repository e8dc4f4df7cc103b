"""The plugin's fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_xjobs.clock import Clock
    from pytest_xjobs.ddl.fixture import XjobsDdl
    from pytest_xjobs.environment import Environment
    from pytest_xjobs.faults import XjobsFaults
    from pytest_xjobs.queue import XjobsQueue
    from pytest_xjobs.runtime import ServerProcess
    from pytest_xjobs.worker import Workers


@contextmanager
def _refusals_in_short() -> Iterator[None]:
    """Report a mistake in the run's settings by its message: our own code is not where it was made."""
    try:
        yield
    except pytest.UsageError as mistake:
        raise pytest.fail.Exception(str(mistake), pytrace=False) from None


@pytest.fixture
def xjobs_backend(request: pytest.FixtureRequest) -> str:
    """The backend that this test runs on: `memory` or `pg`."""
    from pytest_xjobs.plugin import OPTIONS, _wanted_backends

    given = getattr(request, "param", None)
    if given is not None:
        return str(given)
    of_run, wanted = request.config.stash[OPTIONS].backends.value, _wanted_backends(request.node)
    if wanted is None:
        return of_run[0]
    usable = [name for name in of_run if name in wanted]
    if usable:
        return usable[0]
    if "memory" in wanted:
        return "memory"
    pytest.skip("this test is for Postgres: run it with --xjobs-pg")


@pytest.fixture(scope="session")
def xjobs_backends(pytestconfig: pytest.Config) -> tuple[str, ...]:
    """The backends of this run, in the order in which tests run on them: `memory`, `pg`, or both."""
    from pytest_xjobs.plugin import OPTIONS

    return pytestconfig.stash[OPTIONS].backends.value


@pytest.fixture(scope="session")
def xjobs_session_dsn(request: pytest.FixtureRequest, xjobs_backends: tuple[str, ...]) -> str | None:
    """The URL of the Postgres database that the tests of this process take turns in, for fixtures that outlive a test;
    None when no backend of the run is `pg`.
    """
    if "pg" not in xjobs_backends:
        return None
    from pytest_xjobs.runtime import runtime

    with _refusals_in_short():
        return runtime(request).shared().database.dsn


@pytest.fixture
def xjobs_environment(request: pytest.FixtureRequest, xjobs_backend: str) -> Iterator[Environment]:
    """What the fixtures below share; not for tests."""
    from xjobs.name_clash import check_import_name

    check_import_name()
    from pytest_xjobs.environment import environment

    with _refusals_in_short(), environment(request, xjobs_backend) as opened:
        yield opened


@pytest.fixture
def xjobs_queue(xjobs_environment: Environment) -> Iterator[XjobsQueue]:
    """The queue of this test, empty, and in use for its length: handles enqueue here whatever the app sets up."""
    from pytest_xjobs.queue import XjobsQueue

    with XjobsQueue.in_use(xjobs_environment) as queue:
        yield queue


@pytest.fixture
def xjobs_clock(xjobs_environment: Environment) -> Clock:
    """The clock of this test: moves the queue on both backends, the database's `now()`, and Python's clock."""
    return xjobs_environment.clock


@pytest.fixture
def xjobs_faults() -> Iterator[XjobsFaults]:
    """Faults on demand, over with the test: `xjobs_faults.crash_at("after_step", step="charge")`."""
    from pytest_xjobs.faults import XjobsFaults

    with XjobsFaults.of_test() as faults:
        yield faults


@pytest.fixture
def xjobs_dsn(xjobs_environment: Environment) -> str:
    """The URL of this test's Postgres database, for the app's own settings."""
    if xjobs_environment.dsn is None:
        pytest.fail(
            "xjobs_dsn has no database to name, since this test runs in memory: run it with --xjobs-pg, mark it"
            " @pytest.mark.xjobs(backend='pg'), or ask xjobs_backend first",
            pytrace=False,
        )
    return xjobs_environment.dsn


@pytest.fixture
def xjobs_worker(
    xjobs_queue: XjobsQueue,  # noqa: ARG001 - handles enqueue to it while it is in use
    xjobs_environment: Environment,
    pytestconfig: pytest.Config,
) -> Iterator[Workers]:
    """Starts real workers on this test's queue: `start()` in a thread, `spawn(app)` in a child process on Postgres."""
    from pytest_xjobs.worker import workers

    with workers(xjobs_environment, str(pytestconfig.rootpath)) as started:
        yield started


@pytest.fixture(scope="session")
def xjobs_server(request: pytest.FixtureRequest) -> ServerProcess:
    """The run's Postgres server, for pytest-postgresql: `factories.postgresql("xjobs_server")` clones its template."""
    from pytest_xjobs.runtime import runtime

    return runtime(request).process()


@pytest.fixture(scope="session")
def xjobs_ddl(request: pytest.FixtureRequest) -> XjobsDdl:
    """The DDL checks as functions, on the run's Postgres server, also where tests run in memory."""
    from pytest_xjobs.ddl.fixture import XjobsDdl

    return XjobsDdl(request)

"""What all tests of this repository share: inner pytest runs, and the run's Postgres server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

if TYPE_CHECKING:
    from pytest_xjobs.provision import Server
    from pytest_xjobs.runtime import Runtime

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def _jobs_of_one_test() -> Iterator[None]:
    """Jobs that a test declares in a function are gone after it, also where it uses no queue."""
    from xjobs import registry

    with registry.scope():
        yield


@pytest.fixture(scope="session")
def run(request: pytest.FixtureRequest) -> Runtime:
    """The plugin's own server and databases for this run, whatever backends the run was asked for."""
    from pytest_xjobs.runtime import runtime

    return runtime(request)


@pytest.fixture(scope="session")
def server(run: Runtime) -> Server:
    """The run's Postgres server."""
    return run.server


@pytest.fixture(scope="session")
def database_dsn() -> Iterator[str]:
    """A database on a server of its own, as keywords and values: for tests that change roles, settings and schemas."""
    from pytest_xjobs.provision import Cluster, find_binaries

    with Cluster.start(find_binaries()) as cluster:
        yield make_conninfo("", **conninfo_to_dict(cluster.dsn("postgres")))

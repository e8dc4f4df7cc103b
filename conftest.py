"""What all tests of this repository share: inner pytest runs, and the run's Postgres server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_xjobs.provision import Server
    from pytest_xjobs.runtime import Runtime

pytest_plugins = ["pytester"]


@pytest.fixture(scope="session")
def run(pytestconfig: pytest.Config) -> Runtime:
    """The plugin's own server and databases for this run, whatever backends the run was asked for."""
    from pytest_xjobs.runtime import runtime

    return runtime(pytestconfig)


@pytest.fixture(scope="session")
def server(run: Runtime) -> Server:
    """The run's Postgres server."""
    return run.server

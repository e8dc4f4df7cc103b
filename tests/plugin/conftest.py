"""What the tests of the plugin share: inner pytest runs, and the test's surroundings on both backends."""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Iterator

import freezegun  # noqa: F401 - an inner run in this process forgets what it was the first to import
import psycopg  # noqa: F401
import psycopg_pool  # noqa: F401
import pytest
import time_machine  # noqa: F401
from inner_run import Inner

import pytest_xjobs
import xjobs
from pytest_xjobs.environment import Environment, environment


@pytest.fixture(scope="session")
def _everything_imported() -> None:
    for package in (xjobs, pytest_xjobs):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)


@pytest.fixture
def inner(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    _everything_imported: None,
) -> Inner:
    """Runs pytest inside the test, with nothing of the outer run's settings."""
    for name in list(os.environ):
        if name.startswith(("PYTEST_", "XJOBS_", "PG")) and name != "PYTEST_CURRENT_TEST":
            monkeypatch.delenv(name)
    return Inner(pytester, lambda: request.getfixturevalue("server"))


@pytest.fixture(params=["memory", "pg"])
def xjobs_environment(request: pytest.FixtureRequest) -> Iterator[Environment]:
    """Tests of this directory that use the queue run on both backends, whatever the outer run was asked for."""
    with environment(request, request.param) as opened:
        yield opened

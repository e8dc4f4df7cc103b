"""The hooks that the plugin offers to an app's conftest.py."""

from __future__ import annotations

import pytest


@pytest.hookspec
def pytest_xjobs_database_setup(dsn: str) -> None:
    """Create the app's own tables in the test database.

    Called once per run, when the run uses Postgres: the database holds the queue's tables already, and every test's
    database is a copy of it. Tables are made under the test clock's search path, so their `default now()` follows
    `xjobs_clock`. Close every connection before returning.

    Args:
        dsn: the database's URL, `postgresql://...`.
    """

"""Owns the server of these tests: one of this run's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pytest_xjobs.provision import Cluster, find_binaries


@pytest.fixture(scope="session")
def database_dsn() -> Iterator[str]:
    """Keywords and values that lead to a database of that server, as its superuser."""
    with Cluster.start(find_binaries()) as cluster:
        parameters: dict[str, Any] = dict(conninfo_to_dict(cluster.dsn("postgres")))
        yield make_conninfo("", **parameters)

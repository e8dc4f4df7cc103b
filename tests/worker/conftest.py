"""What tests of the worker share: a database with the queue's tables and the app's, and worker processes on it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import xjobs
from xjobs.drivers.postgres import PostgresDriver

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "apps")]

if TYPE_CHECKING:
    from processes import Fleet
    from serving import FaultyConnections

    from pytest_xjobs.runtime import Place, Runtime


@pytest.fixture
def place(run: Runtime) -> Iterator[Place]:
    """An empty database of the run's server."""
    from processes import SCHEMA

    own = run.own()
    own.control.execute(SCHEMA)
    yield own
    run.drop(own)


@pytest.fixture
def dsn(place: Place) -> str:
    return place.database.dsn


@pytest.fixture
def control(place: Place) -> psycopg.Connection[Any]:
    """For looking at the tables."""
    return place.control


@pytest.fixture
def queue(dsn: str) -> Iterator[xjobs.Queue]:
    queue = xjobs.Queue(PostgresDriver(dsn))
    yield queue
    queue.close()


@pytest.fixture
def workers(dsn: str) -> Iterator[Fleet]:
    """Starts worker processes on the test's database."""
    from processes import fleet

    with fleet(dsn) as started:
        yield started


@pytest.fixture(params=["memory", "postgres"])
def connections(request: pytest.FixtureRequest) -> FaultyConnections:
    """The connections of a worker in this process."""
    from serving import FaultyConnections

    from xjobs.drivers.memory import MemoryDriver
    from xjobs.worker.connections import MemoryConnections, PostgresConnections

    if request.param == "memory":
        return FaultyConnections(MemoryConnections(MemoryDriver()))
    return FaultyConnections(PostgresConnections(request.getfixturevalue("dsn")))


@pytest.fixture
def store(request: pytest.FixtureRequest, connections: FaultyConnections) -> Iterator[xjobs.Queue]:
    """A blocking queue on what the worker serves."""
    if connections.claims.backend == "memory":
        yield xjobs.Queue(connections.blocking)
    else:
        yield request.getfixturevalue("queue")

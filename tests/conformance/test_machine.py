"""Memory and Postgres in step: the same statements with the same parameters, in any order, from three sessions.

`XJOBS_MACHINE_EXAMPLES` says how many stories are tried.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from conformance.machine import TABLES, Opened, opened, run_machine
from conformance.sends import SENDS
from pytest_xjobs.runtime import Runtime
from xjobs.drivers.memory import TWINS
from xjobs.drivers.memory.store import Store

settings.register_profile(
    "machine",
    max_examples=int(os.environ.get("XJOBS_MACHINE_EXAMPLES", "60")),
    backend="afresh",
    stateful_step_count=30,
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


@pytest.fixture
def sessions(run: Runtime) -> Iterator[Opened]:
    with opened(run.shared()) as sessions:
        yield sessions


def test_memory_and_postgres_stay_in_step(sessions: Opened) -> None:
    told = run_machine(sessions, settings.get_profile("machine"))
    assert {name for name, _ in told} == set(TWINS)


def test_every_statement_is_sent_by_the_machine() -> None:
    assert sorted(SENDS) == sorted(TWINS)


def test_every_table_of_memory_is_compared() -> None:
    indexes = {"live", "freeing", "waiting", "running", "waits"}
    assert {name for name, value in vars(Store()).items() if isinstance(value, dict)} - indexes == set(TABLES)

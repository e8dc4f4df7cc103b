"""The detector detects: the state machine finds each planted fault.

The faults that show at once are planted in every run, the rare ones too when `XJOBS_MUTATION_EXAMPLES` says within how
many stories they are to be found: `XJOBS_MUTATION_EXAMPLES=500 pytest -s tests/conformance/test_mutations.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, settings

from conformance.machine import Opened, OutOfStep, opened, run_machine
from conformance.mutations import FAULTS, RARE, planted
from pytest_xjobs.runtime import Runtime
from xjobs.drivers.memory import TWINS

GIVEN = os.environ.get("XJOBS_MUTATION_EXAMPLES")
PLANTED = [what for what in FAULTS if GIVEN or what not in RARE]

PROFILE = settings(
    max_examples=int(GIVEN or 150),
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    backend="afresh",
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    verbosity=Verbosity.quiet,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture
def sessions(run: Runtime) -> Iterator[Opened]:
    with opened(run.shared()) as sessions:
        yield sessions


@pytest.mark.parametrize("what", PLANTED)
def test_the_machine_finds(sessions: Opened, what: str) -> None:
    with planted(FAULTS[what]), pytest.raises(OutOfStep) as found:
        run_machine(sessions, PROFILE)
    print(f"{FAULTS[what].statement}: {what}: in story {found.value.examples}")


def test_every_twin_has_a_fault() -> None:
    assert {fault.statement for fault in FAULTS.values()} == set(TWINS)
    assert set(FAULTS) > RARE

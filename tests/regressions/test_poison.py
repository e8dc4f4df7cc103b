"""Jobs that never end well come to an end, and to the one that their declaration names."""

from __future__ import annotations

import pytest
from conformance.fixtures import Drain
from conformance.stores import Tables

import xjobs
from pytest_xjobs.clock import Clock
from xjobs.operations.drain import DrainSetup, run_next


@pytest.mark.parametrize("attempts", [1, 2, 5])
@pytest.mark.parametrize("dead_letter", [True, False])
async def test_a_job_that_kills_its_worker_is_delivered_as_often_as_it_may(
    queue: xjobs.AsyncQueue, clock: Clock, attempts: int, dead_letter: bool
) -> None:
    """Faults 11 and 12: redelivered for ever, with attempts past the bound, whether it dead-letters or not."""

    @xjobs.job(key="{n}", retry=xjobs.Retry(attempts=attempts, dead_letter=dead_letter))
    def poison(n: int) -> None: ...

    clock.freeze()
    made = await poison.aenqueue(n=1)
    delivered = []
    for _ in range(attempts + 4):
        delivered += (await queue.claim(queues=["default"], worker_id="w", lease=1, limit=9)).jobs
        clock.advance(hours=1)
    assert [job.attempt for job in delivered] == list(range(1, attempts + 1))
    row = await queue.job(made.id)
    assert row is not None
    assert (row.state, row.attempt) == ("dead" if dead_letter else "failed", attempts)


@pytest.mark.parametrize("attempts", [1, 2, 5])
@pytest.mark.parametrize("dead_letter", [True, False])
async def test_a_job_that_always_fails_runs_as_often_as_it_may(
    queue: xjobs.AsyncQueue, tables: Tables, clock: Clock, drain: Drain, attempts: int, dead_letter: bool
) -> None:
    """Fault 12: without dead letters its last failure made it ready again."""

    @xjobs.job(key="{n}", retry=xjobs.Retry(attempts=attempts, dead_letter=dead_letter))
    async def poison(n: int) -> None:
        raise LookupError

    clock.freeze()
    await poison.aenqueue(n=1)
    report = await drain(errors="collect", advance=True, budget=20)
    assert [run.attempt for run in report.runs] == list(range(1, attempts + 1))
    assert [row["state"] for row in tables.jobs()] == ["dead" if dead_letter else "failed"]
    assert sum(counter[4] for counter in tables.counters()) == attempts - 1


async def test_run_next_survives_a_pass_that_only_buries(
    queue: xjobs.AsyncQueue, clock: Clock, drain_setup: DrainSetup
) -> None:
    """It took the last of no runs: IndexError."""

    @xjobs.job(key="{n}", retry=1)
    def poison(n: int) -> None: ...

    clock.freeze()
    await poison.aenqueue(n=1)
    await queue.claim(queues=["default"], worker_id="w", lease=1)
    clock.advance(seconds=1)
    assert await run_next(queue.driver, drain_setup) is None

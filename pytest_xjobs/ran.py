"""What the drains of a test ran, job by job: comparing it with what a test expects, and telling what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from pytest_xjobs.matching import Expected, describe_row
from xjobs.records import JobRow, Run

_SHOWN = 5


class History(NamedTuple):
    """All runs of one job, in order, with its row as it is now, if it still is."""

    runs: list[Run]
    row: JobRow | None

    @property
    def steps(self) -> list[str]:
        """The steps that were carried out, over all attempts."""
        return [step for run in self.runs for step in run.steps]


def run_histories(runs: Sequence[Run], rows: Mapping[UUID, JobRow]) -> list[History]:
    """The runs by job, in the order of the first run of each."""
    by_job: dict[UUID, list[Run]] = {}
    for run in runs:
        by_job.setdefault(run.job_id, []).append(run)
    return [History(of_job, rows.get(job_id)) for job_id, of_job in by_job.items()]


def differences_of(history: History, expected: Expected, steps: Sequence[str] | None, outcome: str) -> list[str]:
    """One line per point in which a job's runs differ from what is expected; empty when they match."""
    last = history.runs[-1]
    if last.job_name != expected.job.name:
        return [f"job is {last.job_name!r}"]
    lines = ["its row is gone, its input cannot be compared"] if history.row is None and expected.input else []
    lines += expected.differences(history.row) if history.row is not None else []
    if last.outcome != outcome:
        error = f" ({type(last.error).__name__}: {last.error})" if last.error is not None else ""
        lines.append(f"outcome is {last.outcome!r}{error}, expected {outcome!r}")
    if steps is not None and history.steps != list(steps):
        lines.append(f"steps were {history.steps}, expected {list(steps)}")
    return lines


def explain_runs(
    histories: Sequence[History], expected: Expected, steps: Sequence[str] | None, outcome: str
) -> list[str]:
    """One line each: the runs of the job, with what differs, and what else ran."""
    same = [history for history in histories if history.runs[-1].job_name == expected.job.name]
    lines: list[str] = []
    for history in same[:_SHOWN]:
        attempts = ", ".join(f"attempt {run.attempt} {run.outcome}" for run in history.runs)
        what = describe_row(history.row) if history.row is not None else str(history.runs[-1].job_id)
        lines.append(f"  ran: {what}: {attempts}")
        lines += [f"    {difference}" for difference in differences_of(history, expected, steps, outcome)]
    if len(same) > _SHOWN:
        lines.append(f"  and {len(same) - _SHOWN} more jobs of that name")
    others = sorted({history.runs[-1].job_name for history in histories} - {expected.job.name})
    if others:
        lines.append(f"  other jobs ran: {', '.join(others)}")
    if not histories:
        lines.append("  no drain of this test has run any job")
    return lines

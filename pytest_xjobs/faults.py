"""Faults on demand: a worker that dies at a named point of a job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

from xjobs import points
from xjobs.errors import Invariant
from xjobs.jobs import JobHandle
from xjobs.limits import check_count, check_text

CRASH_POINTS = tuple(point for point in points.NAMES if point != "enqueued")
_STEP_POINTS = ("before_step", "before_record", "after_step")


class _CrashPlan:
    """One announced crash: where, and how often it is still to happen."""

    def __init__(self, point: str, job: str | None, step: str | None, times: int) -> None:
        self.point = point
        self.job = job
        self.step = step
        self.left = times

    def __str__(self) -> str:
        job = f", job={self.job!r}" if self.job is not None else ""
        step = f", step={self.step!r}" if self.step is not None else ""
        return f"crash_at({self.point!r}{job}{step})"

    def __call__(self, _point: str, facts: dict[str, Any]) -> None:
        if self.left == 0 or self.job not in (None, facts["job"].name) or self.step not in (None, facts.get("step")):
            return
        self.left -= 1
        raise points.Crash


class XjobsFaults:
    """The faults of one test; each is over with the test."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._plans: list[_CrashPlan] = []

    @classmethod
    @contextmanager
    def of_test(cls) -> Iterator[Self]:
        """The faults of a test, undone after it.

        Raises:
            AssertionError: a crash was asked for at a point that no job came to, so it tested nothing.
        """
        with ExitStack() as stack:
            faults = cls(stack)
            yield faults
        missed = [str(plan) for plan in faults._plans if plan.left]
        if missed:
            raise AssertionError(f"no job came to where it was to crash: {', '.join(missed)}")

    def crash_at(
        self,
        point: str,
        *,
        job: JobHandle[Any, Any, Any] | str | None = None,
        step: str | None = None,
        times: int = 1,
    ) -> None:
        """Have the worker die, for the queue, when a job comes to `point`: nothing more of that attempt is written.

        The row stays `running` until its lease lapses; `drain(advance=True)` goes on to that instant and runs the job
        again, as its next attempt. The process itself lives on, so `finally` blocks of the body do run; their steps and
        settles are refused.

        Args:
            point: `claimed`, `before_body`, `before_step`, `before_record` (the step's effect has happened and is not
                recorded), `after_step`, `after_body`, `before_settle` or `after_settle`.
            job: only this job. `step`: only this step, at the points of steps.
            times: so many times.

        Raises:
            Invariant: there is no such point, it has no steps, or `times` is no count.
        """
        if point not in CRASH_POINTS:
            raise Invariant(f"there is no point {point!r} to crash at", f"name one of {', '.join(CRASH_POINTS)}")
        if step is not None and point not in _STEP_POINTS:
            raise Invariant(f"{point!r} is no point of a step", f"name one of {', '.join(_STEP_POINTS)}")
        name = job.name if isinstance(job, JobHandle) else None if job is None else check_text(job, "job")
        plan = _CrashPlan(point, name, step, check_count(times, "times", low=1))
        self._plans.append(plan)
        self._stack.enter_context(points.listening(plan, point))

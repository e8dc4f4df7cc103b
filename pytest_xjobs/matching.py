"""Comparing an expected job with the rows that there are: what differs, in words, and which rows came nearest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from xjobs.errors import Invariant
from xjobs.jobs import Call, JobHandle
from xjobs.limits import check_duration, check_instant
from xjobs.records import JobRow
from xjobs.states import LIVE

_SHOWN = 3
_MISSING = object()


@dataclass(frozen=True)
class Expected:
    """What an assertion looks for; a field that is None is not compared.

    Attributes:
        job: the handle.
        whole: the input must equal `input` and not only contain it.
        input: as JSON values.
        due: `run_at` itself, or the distance from the enqueue to it.
    """

    job: JobHandle[Any, Any, Any]
    input: Mapping[str, Any] | None = None
    whole: bool = False
    queue: str | None = None
    key: str | None = None
    tenant: str | None = None
    due: datetime | timedelta | None = None

    @classmethod
    def of(
        cls,
        job: JobHandle[Any, Any, Any] | Call,
        *,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the column's name
        queue: str | None = None,
        key: str | None = None,
        tenant: str | None = None,
        due: datetime | timedelta | float | None = None,
    ) -> Expected:
        """Read the arguments of an assertion.

        Raises:
            Invariant: `job` is not a handle or a call of one, or a whole call is given together with `input=`.
        """
        if due is not None:
            due = check_instant(due, "due") if isinstance(due, datetime) else check_duration(due, "due")
        if isinstance(job, Call):
            if input is not None:
                raise Invariant(
                    f"both {job!r} and input={input!r} are given", "give the call (whole) or input= (in part)"
                )
            options = job.options
            whole = job.job.codec.lower_partial(job.values)
            return cls(
                job.job,
                whole,
                True,
                queue or options.queue,
                key or options.key,
                tenant or options.tenant,
                due if due is not None else options.run_at if options.run_at is not None else options.delay,
            )
        if not isinstance(job, JobHandle):
            raise Invariant(f"{job!r} is not a job", "give a handle, or handle.call(...)")
        part = None if input is None else job.codec.lower_partial(input)
        return cls(job, part, False, queue, key, tenant, due)

    def __str__(self) -> str:
        arguments = "" if self.input is None else ", ".join(f"{name}={value!r}" for name, value in self.input.items())
        if not self.whole:
            arguments = f"{arguments}, ..." if arguments else "..."
        conditions = [
            f"{name} {value!r}"
            for name, value in (("queue", self.queue), ("key", self.key), ("tenant", self.tenant))
            if value
        ]
        if isinstance(self.due, timedelta):
            conditions.append(f"due {self.due} after its enqueue")
        elif self.due is not None:
            conditions.append(f"due {self.due.isoformat()}")
        return f"{self.job.name}({arguments})" + (f" with {', '.join(conditions)}" if conditions else "")

    def differences(self, row: JobRow) -> list[str]:
        """One line per field in which a row of the job differs; empty when it matches."""
        lines = [] if self.input is None else _input_differences(self.input, row.input, whole=self.whole)
        for name, expected, found in (
            ("queue", self.queue, row.queue),
            ("key", self.key, row.idempotency_key),
            ("tenant", self.tenant, row.tenant_id),
        ):
            if expected is not None and expected != found:
                lines.append(f"{name} is {found!r}, expected {expected!r}")
        return lines + self._due_difference(row)

    def _due_difference(self, row: JobRow) -> list[str]:
        if self.due is None:
            return []
        expected = row.created_at + self.due if isinstance(self.due, timedelta) else self.due
        if row.run_at == expected:
            return []
        distance = row.run_at - expected
        way = "later" if distance > timedelta(0) else "earlier"
        return [f"due {row.run_at.isoformat()}, {abs(distance)} {way} than expected"]


def _input_differences(expected: Mapping[str, Any], found: Any, *, whole: bool) -> list[str]:
    found = found if isinstance(found, dict) else {}
    lines = []
    for name, value in expected.items():
        actual = found.get(name, _MISSING)
        if actual is _MISSING:
            lines.append(f"input.{name} is missing, expected {value!r}")
        elif actual != value or type(actual) is not type(value):
            lines.append(f"input.{name} is {_typed(actual, value)}, expected {_typed(value, actual)}")
    if whole:
        lines += [f"input.{name} is {found[name]!r}, not expected" for name in found if name not in expected]
    return lines


def _typed(value: Any, other: Any) -> str:
    """A value, with its type where the types differ and the texts might not show it."""
    return repr(value) if type(value) is type(other) else f"{value!r} ({type(value).__name__})"


def explain_missing(expected: Expected, rows: Sequence[JobRow]) -> str:
    """Why no row matches: the nearest rows, best first, with what differs in each, and what else is queued."""
    live = [row for row in rows if row.state in LIVE]
    same = [(expected.differences(row), row) for row in rows if row.name == expected.job.name]
    matching = [row for differences, row in same if not differences]
    lines = [f"no live job {expected}"]
    lines += [f"  it would match {row.id}, but that one is {row.state}{_error_of(row)}" for row in matching[:_SHOWN]]
    near = sorted(
        ((differences, row) for differences, row in same if differences and row.state in LIVE), key=lambda c: len(c[0])
    )
    for differences, row in near[:_SHOWN]:
        lines.append(f"  near: {describe_row(row)}")
        lines += [f"    {difference}" for difference in differences[:4]]
        if len(differences) > 4:
            lines.append(f"    and {len(differences) - 4} more differences")
    if len(near) > _SHOWN:
        lines.append(f"  and {len(near) - _SHOWN} more live jobs named {expected.job.name!r}")
    others = Counter(row.name for row in live if row.name != expected.job.name)
    if others:
        lines.append("  other live jobs: " + ", ".join(f"{name} x{count}" for name, count in others.most_common(8)))
    if not rows:
        lines.append("  the queue is empty: nothing has been enqueued")
    return "\n".join(lines)


def describe_row(row: JobRow) -> str:
    """One row in one line."""
    arguments = row.input if isinstance(row.input, dict) else {}
    text = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    text = text if len(text) <= 100 else f"{text[:97]}..."
    return f"{row.name}({text}) {row.state}, queue {row.queue!r}, id {row.id}"


def _error_of(row: JobRow) -> str:
    return f" ({row.last_error.splitlines()[0]})" if row.last_error else ""

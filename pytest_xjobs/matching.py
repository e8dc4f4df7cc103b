"""Comparing an expected job with the rows that there are: what differs, in words, and which rows came nearest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from xjobs import registry
from xjobs.codec import Codec
from xjobs.errors import InputInvalid, Invariant
from xjobs.jobs import Call, JobHandle
from xjobs.limits import check_duration, check_instant, check_text
from xjobs.records import JobRow
from xjobs.states import LIVE

_SHOWN = 3
_WIDTH = 100
_MISSING = object()

# What an assertion may name beside the input, and the column that it is compared with.
_COLUMNS = {
    "queue": "queue",
    "key": "idempotency_key",
    "tenant": "tenant_id",
    "id": "id",
    "run_id": "run_id",
    "enqueued_by": "enqueued_by",
    "traceparent": "traceparent",
}


@dataclass(frozen=True)
class Expected:
    """What an assertion looks for; what is None or not named is not compared.

    Attributes:
        job: the handle.
        input: as JSON values.
        whole: the input must equal `input` and not only contain it.
        columns: values by the names of `_COLUMNS`.
        due: `run_at` itself, or the distance from the enqueue to it.
    """

    job: JobHandle[Any, Any, Any]
    input: Mapping[str, Any] | None
    whole: bool
    columns: Mapping[str, Any]
    due: datetime | timedelta | None

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
        """Read the arguments of an assertion; they go before the options that the handle or the call carries.

        Raises:
            Invariant: `job` is not a handle or a call of one, a whole call is given together with `input=`, or another
                argument cannot be.
        """
        if not isinstance(job, JobHandle | Call):
            raise Invariant(f"{job!r} is not a job", "give a handle, or handle.call(...)")
        if input is not None and not isinstance(input, Mapping):
            raise Invariant(f"input is {input!r}", "give a dict of parameters")
        if isinstance(job, Call) and input is not None:
            raise Invariant(f"both {job!r} and input={input!r} are given", "give the call (whole) or input= (in part)")
        given = {"queue": queue, "key": key, "tenant": tenant}
        handle = job.job if isinstance(job, Call) else job
        options = job.options if isinstance(job, Call) else job._options  # noqa: SLF001 - what `using` gave it
        columns = {name: getattr(options, name) for name in _COLUMNS} | {
            name: check_text(value, name) for name, value in given.items() if value is not None
        }
        if due is not None:
            due = check_instant(due, "due") if isinstance(due, datetime) else check_duration(due, "due")
        elif (due := options.run_at) is None:
            due = options.delay
        values = job.values if isinstance(job, Call) else input
        return cls(
            handle,
            None if values is None else handle.codec.lower_partial(values),
            isinstance(job, Call),
            {name: value for name, value in columns.items() if value is not None},
            due,
        )

    def __str__(self) -> str:
        arguments = "" if self.input is None else ", ".join(f"{n}={_short(v)}" for n, v in self.input.items())
        if not self.whole:
            arguments = f"{arguments}, ..." if arguments else "..."
        conditions = [f"{name} {_shown(value)}" for name, value in self.columns.items()]
        if isinstance(self.due, timedelta):
            conditions.append(f"due {self.due} after its enqueue")
        elif self.due is not None:
            conditions.append(f"due {self.due.isoformat()}")
        return f"{self.job.name}({arguments})" + (f" with {', '.join(conditions)}" if conditions else "")

    def differences(self, row: JobRow) -> list[str]:
        """One line per field in which a row of the job differs; empty when it matches."""
        lines = [] if self.input is None else self._input_differences(row.input)
        for name, expected in self.columns.items():
            found = getattr(row, _COLUMNS[name])
            if expected != found:
                lines.append(f"{name} is {_shown(found)}, expected {_shown(expected)}")
        return lines + self._due_difference(row)

    def _input_differences(self, stored: Any) -> list[str]:
        given = self.input or {}
        stored = stored if isinstance(stored, dict) else {}
        found = _as_received(self.job.codec, stored)
        wanted = _as_received(self.job.codec, {**({} if self.whole else stored), **given})
        lines = []
        for name in given:
            actual, value = found.get(name, _MISSING), wanted[name]
            if actual is _MISSING:
                lines.append(f"input.{name} is missing, expected {_short(value)}")
            elif not _equal(actual, value):
                lines.append(f"input.{name} is {_typed(actual, value)}, expected {_typed(value, actual)}")
        if self.whole:
            lines += [f"input.{name} is {_short(found[name])}, not expected" for name in found if name not in wanted]
        return lines

    def _due_difference(self, row: JobRow) -> list[str]:
        if self.due is None:
            return []
        expected = row.created_at + self.due if isinstance(self.due, timedelta) else self.due
        if row.run_at == expected:
            return []
        distance = row.run_at - expected
        way = "later" if distance > timedelta(0) else "earlier"
        return [f"due {row.run_at.isoformat()}, {abs(distance)} {way} than expected"]


def _as_received(codec: Codec, stored: dict[str, Any]) -> dict[str, Any]:
    """Input as the body would receive it, in JSON again: 3, 3.0 and "3" are the same for a Decimal."""
    try:
        return codec.lower_partial(codec.decode(stored))
    except InputInvalid:
        return stored


def _equal(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same: numbers by their value, but true and false are none."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _typed(value: Any, other: Any) -> str:
    """A value, with its type where the types differ and the texts might not show it."""
    if type(value) is not type(other):
        return f"{_short(value)} ({type(value).__name__})"
    if isinstance(value, str) and len(repr(value)) > _WIDTH:
        pairs = enumerate(zip(value, other, strict=False))
        at = next((index for index, (one, two) in pairs if one != two), min(len(value), len(other)))
        return f"{_short(value[max(0, at - 20) : at + 40])} (from character {max(0, at - 20)} of {len(value)})"
    return _short(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, UUID) else repr(value)


def explain_missing(expected: Expected, rows: Sequence[JobRow]) -> str:
    """Why no row matches."""
    return "\n".join([f"no live job {expected}", *nearest(expected, rows)])


def nearest(expected: Expected, rows: Sequence[JobRow]) -> list[str]:
    """One line each: rows that came near, best first, with what differs in each, and what else is queued."""
    live = [row for row in rows if row.state in LIVE]
    same = [(expected.differences(row), row) for row in rows if row.name == expected.job.name]
    matching = [row for differences, row in same if not differences and row.state not in LIVE]
    lines = [f"  it would match {row.id}, but that one is {row.state}{_error_of(row)}" for row in matching[:_SHOWN]]
    near = sorted(
        ((differences, row) for differences, row in same if differences and row.state in LIVE), key=lambda c: len(c[0])
    )
    for differences, row in near[:_SHOWN]:
        lines.append(f"  near: {describe_row(row)}")
        lines += [f"    {difference}" for difference in differences[:4]]
        if len(differences) > 4:
            lines.append(f"    and {len(differences) - 4} more differences")
    if len(near) > _SHOWN:
        more = len(near) - _SHOWN
        lines.append(f"  and {more} more live job{'s' if more > 1 else ''} named {expected.job.name!r}")
    others = Counter(row.name for row in live if row.name != expected.job.name)
    if others:
        lines.append("  other live jobs: " + ", ".join(f"{name} x{count}" for name, count in others.most_common(8)))
    if not rows:
        lines.append("  the queue is empty: no enqueue has been committed")
    return lines


def describe_row(row: JobRow) -> str:
    """One row in one line."""
    arguments = row.input if isinstance(row.input, dict) else {}
    handle = registry.find(row.name)
    # In the order of the declaration; stored input is in the database's own.
    names = list(handle.codec.parameters) if handle is not None else []
    names = [*(name for name in names if name in arguments), *(name for name in arguments if name not in names)]
    text = ", ".join(f"{name}={arguments[name]!r}" for name in names)
    text = text if len(text) <= 100 else f"{text[:97]}..."
    return f"{row.name}({text}) {row.state}, queue {row.queue!r}, id {row.id}"


def _error_of(row: JobRow) -> str:
    return f" ({row.last_error.splitlines()[0]})" if row.last_error else ""

"""What the report says of DDL checks beside failures: which findings are ignored, and what no server was asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import pytest

__all__ = ["IGNORED", "NOT_ASKED", "summarize"]

# Names of an item's properties, which reach the report also from xdist's workers.
IGNORED: Final = "xjobs_ddl_ignored"
NOT_ASKED: Final = "xjobs_ddl_not_asked"


def summarize(reporter: Any) -> None:
    """Write a section, if there is something to say."""
    ignored = sorted(set(_properties(reporter, IGNORED)))
    not_asked = Counter(_properties(reporter, NOT_ASKED))
    if ignored or not_asked:
        reporter.section("xjobs ddl")
    for text in ignored:
        reporter.line(f"ignored {text}")
    for reason, count in not_asked.items():
        reporter.line(f"not checked: {count} rule{'s' * (count > 1)} that a server is asked about: {reason}")


def _properties(reporter: Any, name: str) -> Iterator[str]:
    for reports in reporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport) and report.when == "call":
                yield from (str(value) for key, value in report.user_properties if key == name)

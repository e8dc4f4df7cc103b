"""Reads the corpus: per rule a file of inputs, each under a line that says what the rule finds in it.

    # right
    # wrong 2:5 3:1      line and column of each finding
    # baseline           the released text, for the inputs below it
    # fixed              what --fix makes of the input above it

`right` and `wrong` may be followed by `queries`, when the text is not DDL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from xjobs.ddl import RULES, Source

DIRECTORY = Path(__file__).parent / "corpus"
_HEADER = re.compile(
    r"^# (?P<kind>right|wrong|baseline|fixed)(?P<queries> queries)?(?P<places>( \d+:\d+)*)\n", re.MULTILINE
)


@dataclass(frozen=True)
class Case:
    rule: str
    number: int
    text: str
    places: tuple[tuple[int, int], ...]
    queries: bool
    baseline: str = ""
    fixed: str | None = None

    @property
    def source(self) -> Source:
        return Source.from_text(self.text, "case", "queries" if self.queries else "ddl")

    def __str__(self) -> str:
        return f"{self.rule}-{self.number}"


def cases() -> Iterator[Case]:
    for path in sorted(DIRECTORY.glob("*.txt")):
        yield from _cases(path.stem, path.read_text(encoding="utf-8"))


def _cases(rule: str, text: str) -> Iterator[Case]:
    headers = list(_HEADER.finditer(text))
    assert headers, rule
    assert headers[0].start() == 0, rule
    ends = [header.start() for header in headers[1:]] + [len(text)]
    bodies = [(header, text[header.end() : end]) for header, end in zip(headers, ends, strict=True)]
    baseline = ""
    for number, (header, body) in enumerate(bodies):
        if header["kind"] == "baseline":
            baseline = body
        elif header["kind"] in ("right", "wrong"):
            after = bodies[number + 1] if number + 1 < len(bodies) else None
            fixed = after[1] if after and after[0]["kind"] == "fixed" else None
            places = tuple(tuple(map(int, place.split(":"))) for place in header["places"].split())
            assert bool(places) == (header["kind"] == "wrong"), header[0]
            yield Case(rule, number, body, places, bool(header["queries"]), baseline, fixed)  # type: ignore[arg-type]


def text_rules() -> list[str]:
    return [rule.id for rule in RULES.values() if rule.kind == "text"]

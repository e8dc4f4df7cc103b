"""Owns what a check answers: the rules, and the places that break them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from xjobs.ddl.script import Found, Script

__all__ = ["Finding", "Findings", "Rule", "RuleKind", "Suppressed"]

RuleKind = Literal["text", "postgres"]


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """A place that breaks a rule. Findings are ordered by source, line, column and rule.

    Attributes:
        source: name of the text: a path, `module:CONSTANT` or `<stdin>`.
        line: where the text begins, from 1.
        column: the same, from 1, in characters.
        rule: id of the rule.
        text: the offending text on one line, cut where it is long.
        message: what is wrong with it.
        fix: what to do.
    """

    source: str
    line: int
    column: int
    rule: str
    text: str
    message: str
    fix: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}: {self.rule}: {self.message}\n  {self.text}\n  fix: {self.fix}"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        id: name of the rule, such as `comment-semicolon`.
        reason: why it is one, on one line.
        fix: what to do about a finding, on one line.
        group: what it belongs to; a group's name stands for its rules wherever rules are named.
        kind: whether the text alone decides ("text") or a server is asked ("postgres").
        needs: what has to be declared beside the DDL for there to be something to check; empty for nothing.
        default: whether it is checked unless it is left out; the others are checked when they are named.
        fixable: whether `xjobs ddl check --fix` can do what `fix` says, at least in the common cases.
        find: the places of a script that break it, with the edits that mend them where that is mechanical; None for
            rules that a server is asked about.
    """

    id: str
    reason: str
    fix: str
    group: str
    kind: RuleKind = "text"
    needs: Literal["", "baseline", "live", "queries", "versions"] = ""
    default: bool = True
    fixable: bool = False
    find: Callable[[Script], Iterator[Found]] | None = field(default=None, repr=False)

    @property
    def page(self) -> str:
        """Its section of the documentation."""
        return f"docs/ddl-rules.md#{self.id}"


@dataclass(frozen=True, slots=True)
class Suppressed:
    """A finding that somebody chose to live with: `reason` is theirs, `by` says where they wrote it."""

    finding: Finding
    reason: str
    by: str


class Findings(list[Finding]):
    """The findings of a check, in order; `suppressed` are those that were ignored for a reason."""

    def __init__(self, findings: Iterable[Finding] = (), suppressed: Iterable[Suppressed] = ()) -> None:
        super().__init__(sorted(findings))
        self.suppressed = sorted(suppressed, key=lambda each: each.finding)

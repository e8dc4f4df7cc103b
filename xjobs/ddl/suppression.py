"""Owns living with findings: comments and options that ignore a rule, each with its reason, and never silently.

    -- xjobs: ignore RULE because REASON

in a statement, above it, or behind it on its last line, is for that statement; RULE may be a list with commas.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from xjobs.ddl.findings import Finding, Findings, Rule, Suppressed
from xjobs.ddl.lexer import Token
from xjobs.ddl.script import Found, Script
from xjobs.ddl.sources import Source
from xjobs.errors import DdlSourceInvalid

__all__ = ["RULES", "parse_ignore", "suppress"]

_FORM = "-- xjobs: ignore RULE because REASON"
_COMMENT = re.compile(r"(?:--|/\*)\s*xjobs:\s*ignore\b(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_REST = re.compile(r"\s+(?P<rules>[\w-]+(?:\s*,\s*[\w-]+)*)\s+because\s+(?P<reason>\S.*?)\s*(?:\*/)?\s*", re.DOTALL)


def parse_ignore(texts: Iterable[str]) -> dict[str, str]:
    """The reasons of texts `RULE=reason`, by rule or group.

    Raises:
        DdlSourceInvalid: a text without a reason.
    """
    reasons = {}
    for text in texts:
        rule, _, reason = (part.strip() for part in text.partition("="))
        if not rule or not reason:
            raise DdlSourceInvalid(f"{text!r} ignores a rule without a reason", "write RULE=reason", rule=rule)
        reasons[rule] = reason
    return reasons


def suppress(
    findings: Iterable[Finding], sources: Iterable[Source], rules: Mapping[str, Rule], ignore: Mapping[str, str]
) -> Findings:
    """Take out the findings that a comment of their statement, or `ignore`, names; the answer keeps them as suppressed.

    Args:
        findings: of any rules, also of those that a server was asked about.
        sources: the texts that they are in.
        rules: all rules by id.
        ignore: reasons by rule or group, for all sources.
    """
    directives = {source.name: list(_directives(source)) for source in sources}
    left, suppressed = [], []
    for finding in findings:
        names = {finding.rule, rules[finding.rule].group}
        reason, by = next(_reasons(finding, names, directives.get(finding.source, ()), ignore), (None, ""))
        if reason is None:
            left.append(finding)
        else:
            suppressed.append(Suppressed(finding, reason, by))
    return Findings(left, suppressed)


@dataclass(frozen=True)
class _Directive:
    """A comment that ignores rules, and from where to where, as line and column, it does."""

    comment: Token
    line: int
    since: tuple[int, int]
    until: tuple[int, int]
    rules: frozenset[str]
    reason: str


def _directives(source: Source) -> Iterator[_Directive]:
    for start, end, comments in _stretches(source):
        since = source.position(min(start, *(comment.start for comment in comments)))
        until = source.position(max(end, *(comment.end for comment in comments)))
        for comment in comments:
            if (match := _COMMENT.match(comment.text)) is not None:
                rest = _REST.fullmatch(match["rest"])
                rules = frozenset(re.split(r"\s*,\s*", rest["rules"])) if rest else frozenset()
                line, _ = source.position(comment.start)
                yield _Directive(comment, line, since, until, rules, rest["reason"] if rest else "")


def _stretches(source: Source) -> Iterator[tuple[int, int, list[Token]]]:
    """What comments stand for, from where to where: a statement with those above, in and behind it, or themselves."""
    for statement, following in zip(source.statements, [*source.statements[1:], None], strict=False):
        tail = following.comments if following else source.tail_comments
        comments = [comment for comment in statement.comments if not _is_behind_another(source.text, comment)]
        comments += [comment for comment in tail if _is_behind_another(source.text, comment)]
        if comments:
            yield statement.start, statement.end, comments
    left = [comment for comment in source.tail_comments if not _is_behind_another(source.text, comment)]
    if left:
        yield left[0].start, left[-1].end, left


def _is_behind_another(text: str, comment: Token) -> bool:
    """Whether the comment stands behind the semicolon of the statement before, on its line."""
    line_before = text[text.rfind("\n", 0, comment.start) + 1 : comment.start]
    return line_before.rstrip().endswith(";")


def _reasons(
    finding: Finding, names: set[str], directives: Iterable[_Directive], ignore: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    for each in directives:
        if names & each.rules and each.since <= (finding.line, finding.column) <= each.until:
            yield each.reason, f"{finding.source}:{each.line}"
    for name in names & ignore.keys():
        yield ignore[name], "option"


def _without_reason(script: Script) -> Iterator[Found]:
    for source in (*script.ddl, *script.queries):
        for each in _directives(source):
            if not each.reason:
                yield Found(source, each.comment.start, each.comment.end, "a rule or a reason is missing")


def _of_no_rule(script: Script) -> Iterator[Found]:
    for source in (*script.ddl, *script.queries):
        for each in _directives(source):
            for name in sorted(each.rules - script.names):
                yield Found(source, each.comment.start, each.comment.end, f"{name} is no rule and no group")


RULES = (
    Rule(
        id="ignore-without-reason",
        group="ignoring",
        reason="A finding that nobody explained looks like one that nobody saw, so such a comment ignores nothing.",
        fix=f"Write {_FORM}.",
        find=_without_reason,
    ),
    Rule(
        id="ignore-of-no-rule",
        group="ignoring",
        reason="A comment that ignores a rule by a wrong name ignores nothing.",
        fix="Name a rule or a group, `xjobs ddl rules` lists them.",
        find=_of_no_rule,
    ),
)

"""Owns mending texts: the edits that text rules offer, applied until nothing mechanical is left to do."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from xjobs.ddl.check import NAMES, RULES, finding_of, select_rules
from xjobs.ddl.script import Edit, Script
from xjobs.ddl.sources import Source
from xjobs.ddl.suppression import suppress

__all__ = ["fixed"]


def fixed(
    source: Source,
    *,
    rules: Collection[str] | None = None,
    baseline: Sequence[Source] = (),
    ignore: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """The text with every mechanical fix of the rules made; findings that are suppressed are left as they are.

    Raises:
        DdlSyntaxInvalid: the text is no SQL.
        DdlSourceInvalid: a name is of no rule and no group.
    """
    edits = _edits(source, rules, baseline, ignore)
    while edits:
        # A fresh source, since what one has read of its text is kept with it.
        source = replace(source, text=_applied(source.text, edits))
        # Edits that overlapped are left over. As there are fewer each time, this ends.
        before, edits = len(edits), _edits(source, rules, baseline, ignore)
        if len(edits) >= before:
            break
    return source.text


def _edits(
    source: Source, rules: Collection[str] | None, baseline: Sequence[Source], ignore: Mapping[str, str]
) -> list[Edit]:
    ddl, queries = ((source,), ()) if source.kind == "ddl" else ((), (source,))
    script = Script(ddl, queries, tuple(baseline), NAMES)
    fixable = [rule for rule in select_rules(rules) if rule.find and rule.fixable]
    pairs = [(finding_of(rule, found), found) for rule in fixable if rule.find for found in rule.find(script)]
    left = set(suppress((finding for finding, _ in pairs), (source,), RULES, ignore))
    return [edit for finding, found in pairs if finding in left for edit in found.edits]


def _applied(text: str, edits: Iterable[Edit]) -> str:
    """The text with the edits made, the later ones first; of edits that overlap, or are equal, one is made."""
    untouched = len(text) + 1
    for edit in sorted(set(edits), reverse=True):
        if edit.end < untouched:
            text = text[: edit.start] + edit.text + text[edit.end :]
            untouched = edit.start
    return text

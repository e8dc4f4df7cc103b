"""Owns the check itself: one pure function from texts to findings, over the table of rules."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from xjobs.ddl.findings import Finding, Findings, Rule
from xjobs.ddl.positions import shown
from xjobs.ddl.rules import TEXT_RULES
from xjobs.ddl.rules.postgres import POSTGRES_RULES
from xjobs.ddl.script import Found, Script
from xjobs.ddl.sources import Source
from xjobs.ddl.suppression import suppress
from xjobs.errors import DdlSourceInvalid

__all__ = ["RULES", "check", "finding_of", "select_rules"]

RULES: Final[Mapping[str, Rule]] = MappingProxyType({rule.id: rule for rule in (*TEXT_RULES, *POSTGRES_RULES)})
"""Every rule by its id."""

NAMES: Final = frozenset(RULES) | {rule.group for rule in RULES.values()}
"""The ids and groups of all rules."""


def check(
    ddl: str | Source | Sequence[Source],
    queries: Sequence[Source] = (),
    *,
    rules: Collection[str] | None = None,
    baseline: str | Source | Sequence[Source] = (),
    ignore: Mapping[str, str] = MappingProxyType({}),
) -> Findings:
    """What breaks the text rules; empty if nothing does. Reads nothing but its arguments.

    Args:
        ddl: what makes the schema, in the order in which it is applied.
        queries: what is sent to that schema.
        rules: ids and groups of rules, `default` and `all`; None for the default ones.
        baseline: the DDL as it was released, for the rules about growing it; those are silent without.
        ignore: reasons to live with findings, by rule or group.

    Raises:
        DdlSyntaxInvalid: a text is no SQL; source, line and column are named.
        DdlSourceInvalid: a name is of no rule and no group.
    """
    selected = select_rules(rules)
    _refuse_unknown(ignore)
    script = Script(_sources(ddl), tuple(queries), _sources(baseline), NAMES)
    for source in (*script.ddl, *script.queries, *script.baseline):
        source.check_commands()
    findings = [finding_of(rule, found) for rule in selected if rule.find for found in rule.find(script)]
    return suppress(findings, (*script.ddl, *script.queries), RULES, ignore)


def select_rules(names: Collection[str] | None = None) -> list[Rule]:
    """The rules that ids, groups, `default` and `all` name, in the table's order; None for the default ones.

    Raises:
        DdlSourceInvalid: a name is of none.
    """
    chosen = {"default"} if names is None else set(names)
    _refuse_unknown(sorted(chosen - {"all", "default"}))
    if "default" in chosen:
        chosen |= {rule.id for rule in RULES.values() if rule.default}
    return [rule for rule in RULES.values() if "all" in chosen or chosen & {rule.id, rule.group}]


def finding_of(rule: Rule, found: Found) -> Finding:
    """What a rule found, with the line and column of its source."""
    line, column = found.source.position(found.start)
    text = shown(found.source.text[found.start : found.end])
    return Finding(found.source.name, line, column, rule.id, text, found.message, rule.fix)


def _sources(given: str | Source | Sequence[Source]) -> tuple[Source, ...]:
    if isinstance(given, str):
        return (Source.from_text(given, "<text>"),)
    return (given,) if isinstance(given, Source) else tuple(given)


def _refuse_unknown(names: Iterable[str]) -> None:
    for name in names:
        if name not in NAMES:
            raise DdlSourceInvalid(f"{name!r} is no rule and no group", "`xjobs ddl rules` lists them", rule=name)

"""Each text rule on inputs that keep it and inputs that break it."""

from __future__ import annotations

import pytest

from ddl.corpus import Case, cases, text_rules
from xjobs.ddl import RULES, check
from xjobs.ddl.fixing import fixed
from xjobs.ddl.sources import Source

CASES = list(cases())


def found(case: Case, text: str | None = None) -> tuple[tuple[int, int], ...]:
    source = case.source if text is None else Source(case.source.name, text, case.source.kind)
    ddl, queries = ((), (source,)) if case.queries else ((source,), ())
    baseline = case.baseline or ()
    findings = check(ddl, queries, rules=[case.rule], baseline=baseline)
    assert {finding.rule for finding in findings} <= {case.rule}
    return tuple((finding.line, finding.column) for finding in findings)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rule_finds_exactly_the_wrong_places(case: Case) -> None:
    assert found(case) == case.places


@pytest.mark.parametrize("case", [case for case in CASES if case.fixed is not None], ids=str)
def test_a_mechanical_fix_gives_the_right_text(case: Case) -> None:
    assert fixed(case.source, rules=[case.rule]) == case.fixed


@pytest.mark.parametrize("rule", text_rules())
def test_each_rule_has_a_right_and_a_wrong_input(rule: str) -> None:
    kinds = {bool(case.places) for case in CASES if case.rule == rule}
    assert kinds == {True, False}
    assert RULES[rule].fixable == any(case.fixed not in (None, case.text) for case in CASES if case.rule == rule)


def test_each_input_is_of_a_rule() -> None:
    assert {case.rule for case in CASES} == set(text_rules())

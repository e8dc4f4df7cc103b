"""docs/ddl-rules.md says of each rule what the rule says of itself, with the first examples of the corpus."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddl.corpus import Case, cases, text_rules
from xjobs.ddl import RULES

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "ddl-rules.md").read_text(encoding="utf-8")


def section(rule: str) -> str:
    """How a rule's section begins; what follows is free."""
    described = RULES[rule]
    when = "Checked by default." if described.default else "Checked when it, or its group, is named."
    fix = f"{described.fix} `--fix` does it." if described.fixable else described.fix
    all_of_it = [case for case in cases() if case.rule == rule]
    wrong = next(case for case in all_of_it if case.places)
    right = next(case for case in all_of_it if not case.places)
    released = f"\nReleased:\n\n{block(wrong.baseline)}" if wrong.baseline else ""
    examples = f"Wrong:\n\n{block(wrong)}\nRight:\n\n{block(right)}"
    return f"### {rule}\n\n{described.reason}\n{fix}\n{when}\n{released}\n{examples}"


def block(example: Case | str) -> str:
    text = example if isinstance(example, str) else example.text
    return f"```sql\n{text}```\n"


@pytest.mark.parametrize("rule", text_rules())
def test_a_text_rule_has_its_section(rule: str) -> None:
    assert section(rule) in PAGE


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_an_anchor(rule: str) -> None:
    assert f"\n### {rule}\n" in PAGE


def test_groups_come_in_the_order_of_the_table() -> None:
    headings = [line.removeprefix("## ") for line in PAGE.splitlines() if line.startswith("## ")]
    groups = list(dict.fromkeys(rule.group for rule in RULES.values()))
    assert [heading for heading in headings if heading in groups] == groups

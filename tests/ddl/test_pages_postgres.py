"""docs/ddl-rules.md says of each rule that a server is asked about what the rule says of itself, with an example."""

from __future__ import annotations

import pytest

from ddl.test_pages import PAGE
from ddl.test_postgres_rules import RIGHT, WRONG, Case
from xjobs.ddl import RULES

NEEDS = {
    "": "Asked of a server.",
    "queries": "Asked of a server, where queries are declared.",
    "versions": "Asked of a server, where earlier versions are named.",
    "live": "Asked of a server, where a live database is named.",
}


def section(rule: str) -> str:
    """How a rule's section begins; what follows is free."""
    described = RULES[rule]
    says = f"### {rule}\n\n{described.reason}\n{described.fix}\n{NEEDS[described.needs]}\n"
    if rule not in WRONG:
        return says
    return f"{says}\nWrong:\n\n{example(WRONG[rule][0])}\nRight:\n\n{example(RIGHT[rule][0])}"


def example(case: Case) -> str:
    queries = [*case.queries, *(f"-- xjobs: uses {pair.index}\n{pair.query}" for pair in case.pairs)]
    earlier = "".join(f"\nover\n\n{block(text)}" for text in case.versions)
    return block(case.ddl) + "".join(f"\nwith\n\n{block(query)}" for query in queries) + earlier


def block(text: str) -> str:
    return f"```sql\n{text.strip()}\n```\n"


@pytest.mark.parametrize("rule", [rule.id for rule in RULES.values() if rule.kind == "postgres"])
def test_a_rule_has_its_section(rule: str) -> None:
    assert section(rule) in PAGE

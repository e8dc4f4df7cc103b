"""The shipped DDL broken in many ways: the text rules find each change that they are for, and nothing else."""

from __future__ import annotations

import pytest

from ddl.mutations import HARMFUL, HARMLESS, MUTATIONS, SCHEMA, Mutation
from ddl.test_own_schema import PROMISED, RELEASES
from xjobs.ddl import RULES, Source, check, load


def found(mutation: Mutation) -> set[str]:
    """The rules that find something, with either of the released schemas as the baseline."""
    text = mutation.apply()
    if mutation.target != SCHEMA:
        return {finding.rule for finding in check((), [Source(mutation.target, text, "queries")], rules=["all"])}
    results = [check(Source(SCHEMA, text), rules=PROMISED, baseline=load(str(release))) for release in RELEASES]
    return {finding.rule for result in results for finding in result}


def text_rules(mutation: Mutation) -> set[str]:
    return {rule for rule in mutation.caught_by if rule in RULES and RULES[rule].kind == "text"}


@pytest.mark.parametrize("mutation", [each for each in HARMFUL if text_rules(each)], ids=str)
def test_a_change_of_meaning_is_found_by_its_rules(mutation: Mutation) -> None:
    assert text_rules(mutation) <= found(mutation)


@pytest.mark.parametrize("mutation", HARMLESS, ids=str)
def test_a_change_that_means_nothing_is_not_found(mutation: Mutation) -> None:
    assert found(mutation) == set()


def test_the_table_is_whole() -> None:
    assert len(HARMFUL) >= 40
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
    assert all(mutation.caught_by for mutation in HARMFUL)
    assert not any(mutation.caught_by for mutation in HARMLESS)

"""The shipped schema and the shipped queries under the rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from xjobs.ddl import Source, check, load
from xjobs.sql import SQL_JOBS_TABLE, statements

SCHEMA = "xjobs.sql:SQL_JOBS_TABLE"
SQL = Path(__file__).parents[1] / "sql"
RELEASES = [SQL / "schema_1_2_0.sql", SQL / "seed_schema.sql"]

# What the schema promises over the default rules.
PROMISED = ["default", "split", "statement-form", "enforced-by-database"]


@pytest.mark.parametrize("release", [None, *RELEASES], ids=lambda path: path.stem if path else "alone")
def test_the_shipped_schema_keeps_all_that_it_promises(release: Path | None) -> None:
    baseline = load(str(release)) if release else ()
    findings = check(load(SCHEMA), rules=PROMISED, baseline=baseline)
    assert findings == []
    assert [(each.finding.rule, each.finding.text) for each in findings.suppressed] == [
        ("volatile-default", "add column if not exists run_id uuid not null default gen_random_uuid()")
    ]


def test_the_other_rules_find_only_what_the_page_explains() -> None:
    findings = check(SQL_JOBS_TABLE, rules=["all"])
    assert {finding.rule for finding in findings} == {
        "index-not-concurrent",
        "lock-timeout",
        "statement-timeout",
        "table-schema",
    }


@pytest.mark.parametrize("name", sorted(statements()))
def test_the_shipped_queries_keep_every_rule(name: str) -> None:
    findings = check((), [Source(name, statements()[name], "queries")], rules=["all"])
    assert findings == []
    assert findings.suppressed == []

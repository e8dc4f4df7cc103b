"""The check as a function: which rules run, what findings say, and how one lives with them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ddl.corpus import Case, cases
from xjobs.ddl import RULES, Finding, Source, check, parse_ignore, select_rules
from xjobs.ddl.positions import shown
from xjobs.errors import DdlSourceInvalid, DdlSyntaxInvalid

WRONG = "create table if not exists t (id serial primary key, name varchar(40), at timestamp);\n"


def rules_of(findings: list[Finding]) -> list[str]:
    return [finding.rule for finding in findings]


def test_findings_come_in_the_order_of_their_places() -> None:
    sources = [Source("b.sql", WRONG), Source("a.sql", WRONG)]
    findings = check(sources)
    places = [(finding.source, finding.line, finding.column) for finding in findings]
    assert places == sorted(places)
    assert rules_of(findings) == ["narrow-key", "varchar-limit", "timestamp-without-zone"] * 2


@pytest.mark.parametrize("case", [case for case in cases() if case.places], ids=str)
def test_a_finding_begins_with_the_text_at_its_place(case: Case) -> None:
    source = case.source
    ddl, queries = ((), (source,)) if source.kind == "queries" else ((source,), ())
    for finding in check(ddl, queries, rules=["all"]):
        line = source.text.split("\n")[finding.line - 1]
        begins = shown(line[finding.column - 1 :]).removesuffix("...")
        assert begins.startswith(finding.text[:20]) or finding.text.startswith(begins[:20])
        assert finding.fix == RULES[finding.rule].fix
        assert finding.message


def test_a_finding_reads_as_place_rule_message_text_and_fix() -> None:
    (finding,) = check("select 1;\n  select * from t;", rules=["select-star"])
    assert str(finding) == (
        "<text>:2:3: select-star: every column of a row, whatever columns there are\n"
        "  select *\n"
        "  fix: Name the columns."
    )


def test_long_texts_are_cut_to_one_line() -> None:
    (finding,) = check("drop table\n" + ",\n".join(f"t{number}" for number in range(100)), rules=["table-dropped"])
    assert finding.text.startswith("drop table t0, t1, ")
    assert finding.text.endswith("...")
    assert len(finding.text) == 100


# --- which rules ---------------------------------------------------------------------------------


def test_the_default_rules_are_those_not_marked() -> None:
    default = {rule.id for rule in select_rules()}
    assert default == {rule.id for rule in RULES.values() if rule.default}
    assert {rule.id for rule in select_rules(["all"])} == set(RULES)
    assert {rule.id for rule in select_rules(["default", "lock-timeout"])} == default | {"lock-timeout"}
    assert {rule.id for rule in select_rules(["clock"])} == {"clock-keyword", "clock-function", "clock-literal"}
    assert select_rules([]) == []


@pytest.mark.parametrize("given", ["rules", "ignore"])
def test_a_name_of_no_rule_is_refused(given: str) -> None:
    with pytest.raises(DdlSourceInvalid, match="'nonsense' is no rule and no group"):
        check("select 1", **{given: ["nonsense"] if given == "rules" else {"nonsense": "why"}})  # type: ignore[arg-type]


def test_what_is_no_sql_is_refused_by_source_and_place() -> None:
    with pytest.raises(DdlSyntaxInvalid, match=r"a\.sql:2:8: a string does not end") as caught:
        check(Source("a.sql", "select 1;\nselect 'a"))
    assert (caught.value.source, caught.value.line, caught.value.column) == ("a.sql", 2, 8)


MISSPELT = {
    "hello world": (1, 1, "hello begins no statement of Postgres: correct it, or put it in a comment"),
    "select 1;\n creat table t (id int)": (2, 2, "creat begins no statement of Postgres: perhaps create is meant"),
    "create /* a */ tabel t (id int)": (1, 16, "tabel is nothing that Postgres can create: perhaps table is meant"),
    "drop indx t": (1, 6, "indx is nothing that Postgres can drop: perhaps index is meant"),
    "'a'": (1, 1, "'a' begins no statement of Postgres"),
    '"select" 1': (1, 1, '"select" begins no statement of Postgres'),
}


@pytest.mark.parametrize(("text", "expected"), MISSPELT.items(), ids=MISSPELT)
def test_what_begins_no_statement_is_refused_at_its_place(text: str, expected: tuple[int, int, str]) -> None:
    line, column, message = expected
    source = Source("a.sql", text)
    for ddl, queries, baseline in (([source], [], []), ([], [source], []), ([], [], [source])):
        with pytest.raises(DdlSyntaxInvalid) as caught:
            check(ddl, queries, baseline=baseline)
        assert str(caught.value).startswith(f"a.sql:{line}:{column}: {message}")
        assert (caught.value.line, caught.value.column) == (line, column)


def test_every_rule_is_documented_by_itself() -> None:
    for rule in RULES.values():
        assert rule.page == f"docs/ddl-rules.md#{rule.id}"
        assert rule.reason.endswith(".")
        assert rule.fix.endswith(".")
        assert "\n" not in rule.reason + rule.fix


# --- living with findings ------------------------------------------------------------------------

WHY = "xjobs: ignore varchar-limit because the standard says 40"
ADD = "alter table t add a varchar(40)"

IGNORED = {
    "above": f"-- {WHY}\n{ADD};",
    "further above": f"-- {WHY}\n-- A column.\n\nalter table t\n  add a varchar(40);",
    "within": f"alter table t -- {WHY}\n add a varchar(40);",
    "behind": f"{ADD}; -- {WHY}\n",
    "behind, and more": f"{ADD}; -- {WHY}\nselect 1;",
    "as a block": f"/* {WHY} */ {ADD};",
    "with others": f"-- xjobs: ignore long-name, varchar-limit because the standard says 40\n{ADD};",
    "by group": f"-- xjobs: ignore types because the standard says 40\n{ADD};",
}


@pytest.mark.parametrize("text", IGNORED.values(), ids=IGNORED)
def test_a_comment_ignores_a_rule_for_its_statement(text: str) -> None:
    findings = check(text, rules=["types", "ignoring"])
    assert findings == []
    (suppressed,) = findings.suppressed
    assert suppressed.finding.rule == "varchar-limit"
    assert suppressed.reason == "the standard says 40"
    assert suppressed.by == f"<text>:{text[: text.index('xjobs:')].count(chr(10)) + 1}"


NOT_IGNORED = {
    "without a reason": f"-- xjobs: ignore varchar-limit\n{ADD};",
    "another rule": f"-- xjobs: ignore long-name because it is so\n{ADD};",
    "the statement before": f"select 1 /* {WHY} */; {ADD};",
    "the statement after": f"{ADD};\n-- {WHY}\nselect 1;",
    "in a string": f"select '-- {WHY}'; {ADD};",
}


@pytest.mark.parametrize("text", NOT_IGNORED.values(), ids=NOT_IGNORED)
def test_nothing_else_does(text: str) -> None:
    findings = check(text, rules=["varchar-limit"])
    assert rules_of(findings) == ["varchar-limit"]
    assert findings.suppressed == []


def test_a_comment_of_no_statement_stands_for_itself() -> None:
    alone = "-- xjobs: ignore comment-only-chunk because the file is to be filled"
    for text in (alone, f"select 1;\n{alone}"):
        assert [each.finding.rule for each in check(text).suppressed] == ["comment-only-chunk"]
    assert rules_of(check(f"{ADD};\n-- {WHY}\n", rules=["varchar-limit"])) == ["varchar-limit"]
    assert rules_of(check(f"{ADD};\n-- xjobs: ignore x", rules=["ignoring"])) == ["ignore-without-reason"]


def test_options_ignore_a_rule_or_a_group_everywhere() -> None:
    ignore = parse_ignore(["varchar-limit=the standard says 40", "narrow-key = few rows = few keys"])
    findings = check(WRONG, ignore=ignore)
    assert rules_of(findings) == ["timestamp-without-zone"]
    assert [(each.finding.rule, each.reason, each.by) for each in findings.suppressed] == [
        ("narrow-key", "few rows = few keys", "option"),
        ("varchar-limit", "the standard says 40", "option"),
    ]
    assert check(WRONG, ignore={"types": "old"}) == []


@pytest.mark.parametrize("text", ["varchar-limit", "varchar-limit=", "varchar-limit= ", "=why", ""])
def test_an_option_without_a_reason_is_refused(text: str) -> None:
    with pytest.raises(DdlSourceInvalid, match="without a reason"):
        parse_ignore([text])


# --- what it costs to have -----------------------------------------------------------------------


def test_importing_the_queue_imports_no_checks_and_checks_import_no_database() -> None:
    code = "import sys, xjobs; assert 'xjobs.ddl' not in sys.modules; import xjobs.ddl.reports"
    loaded = "print(sorted({'psycopg', 'pytest', 'sqlparse', 'click'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", f"{code}; {loaded}"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

"""The command `xjobs ddl`: what it prints in each form, what it exits with, and how it says that it could not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from xjobs.cli import command
from xjobs.ddl import RULES

RIGHT = "create table if not exists jobs (id uuid primary key);\n"
WRONG = "-- Jobs; all of them.\ncreate table jobs (\n  id uuid primary key, name varchar(40)\n);\n"
FIXED = "-- Jobs, all of them.\ncreate table if not exists jobs (\n  id uuid primary key, name varchar(40)\n);\n"
PLACES = [("comment-semicolon", 1, 8), ("not-repeatable", 2, 1), ("varchar-limit", 3, 24)]


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "right.sql").write_text(RIGHT)
    (tmp_path / "wrong.sql").write_text(WRONG)
    return tmp_path


def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(command, ["ddl", *arguments], input=stdin, prog_name="xjobs")


def check(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return run("check", *arguments, stdin=stdin)


# --- exit codes ----------------------------------------------------------------------------------


def test_nothing_found_exits_with_0() -> None:
    result = check("right.sql")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "1 statement checked: 0 findings, 0 findings ignored with a reason.\n"


def test_findings_exit_with_1_and_are_read_as_text() -> None:
    result = check("right.sql", "wrong.sql")
    assert (result.exit_code, result.stderr) == (1, "")
    places = [f"wrong.sql:{line}:{column}: {rule}: " for rule, line, column in PLACES]
    lines = result.stdout.splitlines()
    assert [line[: len(place)] for line, place in zip(lines[::3], places, strict=False)] == places
    assert lines[-1] == "2 statements checked: 3 findings, 0 findings ignored with a reason."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], ""),
        (["nowhere.sql"], "there is no file nowhere.sql"),
        (["."], ". is a directory"),
        (["latin.sql"], "latin.sql is not UTF-8: byte 8 (line 1) is 0xe9"),
        (["empty.sql"], "empty.sql is empty"),
        (["open.sql"], "open.sql:2:9: ( is not closed: close it with )"),
        (["right.sql", "open.sql"], "open.sql:2:9"),
        (["case_nothing:DDL"], "module case_nothing cannot be imported"),
        (["xjobs.sql:NOTHING"], "module xjobs.sql has no NOTHING"),
        (["xjobs.states:LIVE[0]"], "there is no file xjobs.states:LIVE[0]"),
        (["xjobs.limits:__doc__", "xjobs.retry:Retry"], "name a text"),
        (["right.sql", "--queries", "nowhere.sql"], "there is no file nowhere.sql"),
        (["right.sql", "--baseline", "nowhere.sql"], "there is no file nowhere.sql"),
        (["right.sql", "--rules", "nonsense"], "'nonsense' is no rule and no group"),
        (["right.sql", "--ignore", "nonsense=why"], "'nonsense' is no rule and no group"),
        (["right.sql", "--ignore", "long-name"], "'long-name' ignores a rule without a reason"),
        (["right.sql", "--format", "xml"], "xml"),
        (["--explain", "nonsense"], "'nonsense' is no rule"),
    ],
    ids=str,
)
def test_what_cannot_be_checked_exits_with_2_and_one_message(
    directory: Path, arguments: list[str], message: str
) -> None:
    (directory / "latin.sql").write_bytes(b"select '\xe9'")
    (directory / "empty.sql").write_bytes(b"")
    (directory / "open.sql").write_text("select 1;\nselect f((1);")
    result = check(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_as_a_process_it_leaves_no_traceback(directory: Path) -> None:
    (directory / "case_module.py").write_text("DDL = 7\nTEXT = 'create table jobs (id uuid)'\n")
    for reference, code in (("case_module:DDL", 2), ("case_module:TEXT", 1), ("right.sql", 0), ("/dev/null", 2)):
        done = subprocess.run(
            [sys.executable, "-m", "xjobs.cli", "ddl", "check", reference], capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr


# --- what is checked -----------------------------------------------------------------------------


def test_standard_input() -> None:
    result = check("-", stdin=WRONG)
    assert result.exit_code == 1
    assert result.stdout.startswith("<stdin>:1:8: comment-semicolon")
    assert check("-", stdin=b"\xff").exit_code == 2


def test_constants_queries_rules_baselines_and_ignoring(directory: Path) -> None:
    (directory / "case_app.py").write_text(
        '"""App."""\n\nDDL = """\ncreate table if not exists jobs (id uuid primary key, tenant text);\n"""\n'
        'QUERIES = {"all": "select * from jobs"}\n'
    )
    result = check("case_app:DDL", "--queries", "case_app:QUERIES", "--baseline", "right.sql")
    assert result.exit_code == 1
    assert [line.split(" ")[:2] for line in result.stdout.splitlines()[::3][:-1]] == [
        ["case_app:DDL:4:1:", "shipped-table-edited:"],
        ["case_app:QUERIES[all]:6:20:", "select-star:"],
    ]
    assert check("case_app:DDL", "--baseline", "right.sql", "--rules", "types,clock", "--rules", "split").exit_code == 0
    ignored = check(
        "wrong.sql", "--ignore", "split=sent whole", "--ignore", "install=runs once", "--ignore", "types=old"
    )
    assert ignored.exit_code == 0
    assert "0 findings, 3 findings ignored with a reason." in ignored.stdout


# --- forms ---------------------------------------------------------------------------------------


@pytest.fixture
def ignoring(directory: Path) -> str:
    comment = "-- xjobs: ignore not-repeatable because it runs once\n"
    (directory / "sub dir").mkdir()
    (directory / "sub dir" / "wrong.sql").write_text(WRONG.replace("create", f"{comment}create"))
    return "sub dir/wrong.sql"


def test_json(ignoring: str) -> None:
    report = json.loads(check(ignoring, "--format", "json").stdout)
    first, second = report["findings"]
    assert first == {
        "rule": "comment-semicolon",
        "source": ignoring,
        "path": ignoring,
        "line": 1,
        "column": 8,
        "text": "; all of them.",
        "message": "a semicolon in the comment -- Jobs; all of them.",
        "fix": RULES["comment-semicolon"].fix,
        "page": "docs/ddl-rules.md#comment-semicolon",
    }
    assert (second["rule"], second["line"], second["column"]) == ("varchar-limit", 4, 24)
    (suppressed,) = report["suppressed"]
    assert suppressed["rule"] == "not-repeatable"
    assert (suppressed["because"], suppressed["ignored_by"]) == ("it runs once", f"{ignoring}:2")
    assert report["sources"] == [{"name": ignoring, "kind": "ddl", "statements": 1}]


def test_github_annotations(ignoring: str) -> None:
    result = check(ignoring, "-", "--format", "github", stdin="drop table a, b -- 100%\n")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith(
        "::error title=not-repeatable::<stdin>:1:1: drop table without `if exists` fails when it is applied again%0A"
    )
    assert (
        f"::error file={ignoring},line=1,col=8,title=comment-semicolon::a semicolon in the comment -- Jobs" in lines[2]
    )
    assert lines[-1].startswith("::notice title=xjobs ddl::2 statements checked: ")
    assert all(line.startswith("::") for line in lines)


def test_github_values_are_escaped(directory: Path) -> None:
    (directory / "a,b:c%.sql").write_text("drop table if exists a;")
    (line, _) = check("a,b:c%.sql", "--format", "github").stdout.splitlines()
    assert line.startswith("::error file=a%2Cb%3Ac%25.sql,line=1,col=1,title=table-dropped::")


def test_sarif(ignoring: str) -> None:
    report: dict[str, Any] = json.loads(check(ignoring, "--format", "sarif").stdout)
    assert report["version"] == "2.1.0"
    (only,) = report["runs"]
    rules = [rule["id"] for rule in only["tool"]["driver"]["rules"]]
    assert rules == ["comment-semicolon", "not-repeatable", "varchar-limit"]
    assert [rules[result["ruleIndex"]] for result in only["results"]] == [each["ruleId"] for each in only["results"]]
    first = only["results"][0]["locations"][0]["physicalLocation"]
    assert first["artifactLocation"]["uri"] == "sub%20dir/wrong.sql"
    assert (first["region"]["startLine"], first["region"]["startColumn"]) == (1, 8)
    suppressed = [result for result in only["results"] if "suppressions" in result]
    assert [each["suppressions"] for each in suppressed] == [[{"kind": "inSource", "justification": "it runs once"}]]


@pytest.mark.parametrize("form", ["text", "json", "github", "sarif"])
def test_each_form_exits_alike(form: str) -> None:
    assert check("right.sql", "--format", form).exit_code == 0
    assert check("wrong.sql", "--format", form).exit_code == 1


# --- fixing and explaining -----------------------------------------------------------------------


def test_fix_rewrites_files_and_reports_what_is_left(directory: Path) -> None:
    result = check("wrong.sql", "--fix")
    assert result.exit_code == 1
    assert (directory / "wrong.sql").read_text() == FIXED
    assert [line.split(" ")[1] for line in result.stdout.splitlines()[::3][:-1]] == ["varchar-limit:"]
    before = (directory / "right.sql").stat().st_mtime_ns
    assert check("right.sql", "--fix").exit_code == 0
    assert (directory / "right.sql").stat().st_mtime_ns == before


def test_fix_keeps_line_breaks_and_what_is_ignored(directory: Path) -> None:
    path = directory / "wrong.sql"
    path.write_bytes(b"-- xjobs: ignore split because a; b\r\ndrop table a;\r\n")
    check("wrong.sql", "--fix")
    assert path.read_bytes() == b"-- xjobs: ignore split because a; b\r\ndrop table if exists a;\r\n"


def test_fix_of_standard_input_goes_to_standard_output() -> None:
    result = check("-", "--fix", stdin=WRONG)
    assert (result.exit_code, result.stdout) == (1, FIXED)
    assert "varchar-limit" in result.stderr


def test_fix_leaves_constants_alone(directory: Path) -> None:
    module = directory / "case_fixed.py"
    module.write_text("DDL = 'drop index a'\n")
    assert check("case_fixed:DDL", "--fix").exit_code == 1
    assert module.read_text() == "DDL = 'drop index a'\n"


@pytest.mark.parametrize("rule", RULES)
def test_explain(rule: str) -> None:
    result = check("--explain", rule)
    assert result.exit_code == 0
    for part in (rule, RULES[rule].reason, RULES[rule].fix, RULES[rule].page):
        assert part in result.stdout


def test_rules_are_listed() -> None:
    lines = run("rules").stdout.splitlines()
    for rule in RULES.values():
        assert f"{rule.group}:" in lines
        assert any(line.split()[0] == rule.id and ("*" in line.split()[1]) != rule.default for line in lines if line)

"""DDL checks as pytest items: which there are, how they are selected, what they and the report say."""

from __future__ import annotations

from pathlib import Path

import pytest
from inner_run import Inner

from xjobs.ddl import RULES

SCHEMA = """\
create table if not exists orders (id bigint primary key, at timestamptz not null default now());
create index if not exists orders_at_idx on orders (at);
"""
BROKEN = """\
create table if not exists orders (
  id bigint primary key,
  at timestamptz not null default current_timestamp
);
create table events (id bigint primary key);
"""
TEXT = {rule.id for rule in RULES.values() if rule.kind == "text" and rule.default}
POSTGRES = {rule.id for rule in RULES.values() if rule.kind == "postgres" and rule.default}
# What there is nothing to check for where only a schema is named.
NEEDY = {rule.id for rule in RULES.values() if rule.needs}


class Project:
    """A project with a schema, a module and a test."""

    def __init__(self, inner: Inner) -> None:
        self.inner = inner
        self.path = inner.pytester.path
        self.write("db/schema.sql", SCHEMA)
        self.write("app/__init__.py", "")
        self.write("app/models.py", f'DDL = """{BROKEN}"""\n')
        inner.file("def test_it(): pass")
        self.ini("db/schema.sql", "app.models:DDL")

    def write(self, name: str, text: str) -> None:
        path = self.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def ini(self, *lines: str, more: tuple[str, ...] = ()) -> None:
        self.inner.ini("pythonpath = .", "xjobs_ddl =", *(f"    {line}" for line in lines), *more)

    def run(self, *args: str) -> pytest.RunResult:
        return self.inner.run(self.inner.pg, "--xjobs-backend=memory", "--xjobs-ddl", "-rA", *args)


@pytest.fixture
def project(inner: Inner) -> Project:
    return Project(inner)


def outcomes(result: pytest.RunResult) -> dict[str, str]:
    """What became of each item, by its id."""
    words = (line.split(" - ")[0].split(maxsplit=1) for line in result.outlines)
    return {w[1]: w[0] for w in words if len(w) == 2 and w[0] in ("PASSED", "FAILED", "ERROR") and "::" in w[1]}


def rules_of(result: pytest.RunResult, prefix: str) -> set[str]:
    return {each.removeprefix(prefix) for each in outcomes(result) if each.startswith(prefix)}


# --- which there are -----------------------------------------------------------------------------


def test_there_is_an_item_for_each_rule_and_schema(project: Project) -> None:
    found = outcomes(project.run())
    assert found["test_it.py::test_it"] == "PASSED"
    rules = (TEXT | POSTGRES) - (NEEDY & POSTGRES) - {"schema-drift"}
    for prefix in ("db/schema.sql::", "app/models.py::DDL::"):
        assert {each.removeprefix(prefix) for each in found if each.startswith(prefix)} >= rules - NEEDY
        assert not {each.removeprefix(prefix) for each in found if each.startswith(prefix)} & NEEDY
    failed = {item for item, outcome in found.items() if outcome == "FAILED"}
    assert failed == {
        f"app/models.py::DDL::{rule}"
        for rule in ("clock-keyword", "default-clock", "not-repeatable", "reapply-changes")
    }


def test_without_the_option_there_is_none(project: Project) -> None:
    project.inner.run(project.inner.pg).assert_outcomes(passed=1)


def test_the_environment_asks_for_them_too(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XJOBS_DDL", "1")
    result = project.inner.run(project.inner.pg, "--xjobs-backend=memory", "-rA", "db/schema.sql")
    assert rules_of(result, "db/schema.sql::")
    result.stdout.fnmatch_lines(["xjobs: *ddl (environment)*"])


def test_where_ini_names_nothing_it_is_the_queues_schema_with_its_statements(inner: Inner) -> None:
    inner.file("def test_it(): pass")
    result = inner.run(inner.pg, "--xjobs-ddl", "-rA")
    items = {item.partition("::SQL_JOBS_TABLE::")[2]: outcome for item, outcome in outcomes(result).items()}
    assert {"index-unused", "sequential-scan", "query-fails"} <= items.keys()
    assert set(items.values()) == {"PASSED"}
    result.stdout.fnmatch_lines(["ignored xjobs.sql:SQL_JOBS_TABLE:*: index-covered: databases of the original*"])


def test_rules_may_be_named(project: Project) -> None:
    project.ini("db/schema.sql", more=("xjobs_ddl_rules = clock-keyword meaning",))
    found = rules_of(project.run(), "db/schema.sql::")
    assert found == {"clock-keyword"} | POSTGRES - NEEDY


def test_what_is_declared_beside_adds_the_rules_about_it(project: Project) -> None:
    project.write("db/q.sql", "-- xjobs: uses orders_at_idx\nselect id from orders where at < now();\nselect nope")
    project.write("db/old/1.sql", "create table orders (id bigint primary key);")
    project.ini("db/schema.sql queries=db/q.sql versions=db/old/*.sql", more=("xjobs_ddl_rules = meaning",))
    result = project.run()
    found = outcomes(result)
    assert {item for item, outcome in found.items() if outcome == "FAILED"} == {
        "db/schema.sql::query-fails",
        "db/schema.sql::upgrade-differs",
    }
    assert found["db/schema.sql::index-unused"] == "PASSED"
    result.stdout.fnmatch_lines(['db/q.sql:3:8: query-fails: * column "nope" does not exist*'])
    result.stdout.fnmatch_lines(['*over db/old/1.sql it is refused: column "at" does not exist*'])


# --- what a failure says -------------------------------------------------------------------------


def test_a_failure_is_the_line_the_text_and_the_fix_and_no_traceback(project: Project) -> None:
    result = project.run("app/models.py::DDL::clock-keyword", "app/models.py::DDL::reapply-changes")
    result.stdout.fnmatch_lines(
        [
            "*_ clock-keyword in app.models:DDL _*",
            "app.models:DDL:3:35: clock-keyword: *",
            "  current_timestamp",
            "  fix: *",
            "why: *(docs/ddl-rules.md#clock-keyword)",
        ]
    )
    result.stdout.fnmatch_lines(['app.models:DDL:5:1: reapply-changes: *relation "events" already exists*'])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*items.py*")


def test_refused_ddl_fails_one_item_and_the_rest_says_that_it_was_not_asked(project: Project) -> None:
    project.write("db/schema.sql", "create table if not exists orders (id no_type);")
    project.ini("db/schema.sql", more=("xjobs_ddl_rules = meaning",))
    result = project.run("db")
    result.assert_outcomes(failed=1, skipped=len(POSTGRES - NEEDY) - 1)
    result.stdout.fnmatch_lines(["FAILED db/schema.sql::ddl-refused - *"])
    result.stdout.fnmatch_lines(
        ["not checked: * rules that a server is asked about: the DDL cannot be applied*no_type*"]
    )


# --- selecting -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["test_it.py"], set()),
        (["db/schema.sql::reapply-changes"], {"db/schema.sql::reapply-changes"}),
        (["app/models.py::DDL::reapply-changes"], {"app/models.py::DDL::reapply-changes"}),
        (["db", "-k", "reapply"], {"db/schema.sql::reapply-changes"}),
        (["-k", "reapply"], {"db/schema.sql::reapply-changes", "app/models.py::DDL::reapply-changes"}),
        (["db/schema.sql", "-k", "schema.sql and covered"], {"db/schema.sql::index-covered"}),
    ],
    ids=[  # of the arguments alone: a set has no order, and xdist compares what its workers collect
        "none",
        "item",
        "item of a constant",
        "directory",
        "all",
        "file",
    ],
)
def test_items_are_selected_as_tests_are(project: Project, args: list[str], expected: set[str]) -> None:
    ids = {item for item in outcomes(project.run(*args)) if not item.startswith("test_it")}
    assert ids == expected


def test_a_whole_constant_may_be_named(project: Project) -> None:
    assert rules_of(project.run("app/models.py::DDL"), "app/models.py::DDL::") >= TEXT - NEEDY


@pytest.mark.parametrize("testpaths", ["test_it.py", "test_it.py db", "."])
def test_testpaths_do_not_hide_them_and_nothing_comes_twice(project: Project, testpaths: str) -> None:
    project.ini("db/schema.sql", more=(f"testpaths = {testpaths}", "xjobs_ddl_rules = reapply-changes"))
    assert set(outcomes(project.run())) == {"test_it.py::test_it", "db/schema.sql::reapply-changes"}
    project.run().assert_outcomes(passed=2)


def test_ini_in_another_directory_than_the_run(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.ini("db/schema.sql", more=("xjobs_ddl_rules = reapply-changes",))
    monkeypatch.chdir(project.path / "app")
    project.run(f"--rootdir={project.path}", f"-c{project.path / 'tox.ini'}").assert_outcomes(passed=1)


# --- suppression ---------------------------------------------------------------------------------

IGNORED = "create table if not exists a (id int primary key, at timestamptz default {});"


def test_a_comment_with_a_reason_suppresses_and_the_report_shows_it(project: Project) -> None:
    text = "-- xjobs: ignore clock-keyword, default-clock because nobody reads it\n" + IGNORED
    project.write("db/schema.sql", text.format("current_timestamp"))
    result = project.run("db", "-k", "clock-keyword or default-clock")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [
            "*= xjobs ddl =*",
            "ignored db/schema.sql:2:*: default-clock: nobody reads it (db/schema.sql:1)",
            "ignored db/schema.sql:2:*: clock-keyword: nobody reads it (db/schema.sql:1)",
        ]
    )


def test_ini_suppresses_with_a_reason_and_the_report_shows_it(project: Project) -> None:
    project.write("db/schema.sql", IGNORED.format("current_timestamp"))
    ignore = ("xjobs_ddl_ignore =", " clock-keyword=we sleep", " default-clock=so do we")
    project.ini("db/schema.sql", more=ignore)
    result = project.run("db", "-k", "clock-keyword or default-clock")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["ignored *: default-clock: so do we (*", "ignored *: clock-keyword: we sleep (*"])


def test_nothing_is_said_where_there_is_nothing_to_say(project: Project) -> None:
    project.run("db").stdout.no_fnmatch_line("*xjobs ddl*")


# --- servers -------------------------------------------------------------------------------------


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No server can be found: what is named as its programs is an empty directory."""
    monkeypatch.setenv("XJOBS_PG_BIN", str(tmp_path))


def test_without_a_server_text_rules_run_and_the_others_are_said_not_to(project: Project, no_server: None) -> None:
    result = project.inner.run("--xjobs-ddl", "db")
    count = len(POSTGRES - NEEDY)
    result.assert_outcomes(passed=len(TEXT - NEEDY), skipped=count)
    result.stdout.fnmatch_lines(
        [f"not checked: {count} rules that a server is asked about: no PostgreSQL server found*"]
    )


def test_a_run_on_postgres_without_a_server_fails(project: Project, no_server: None) -> None:
    result = project.inner.run("--xjobs-ddl", "--xjobs-pg", "db", "-k", "reapply")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no PostgreSQL server found*"])


def test_the_server_of_the_run_is_not_found_twice_nor_left_with_databases(project: Project) -> None:
    import psycopg

    project.run("db").assert_outcomes(passed=len(TEXT | POSTGRES) - len(NEEDY))
    with psycopg.connect(project.inner.pg.partition("=")[2]) as connection:
        rows = connection.execute("select datname from pg_database where datname like '%ddl%'").fetchall()
    assert rows == []


def test_workers_share_one_server_and_reports_come_through(project: Project) -> None:
    project.write("db/schema.sql", "-- xjobs: ignore default-clock because of this\n" + IGNORED.format("current_date"))
    result = project.inner.subprocess("--xjobs-ddl", "-n2", "-rA", "db", "app", "test_it.py", "-v")
    ids = [item for _, _, item in (line.partition("] ") for line in result.outlines) if "::" in item]
    assert len(set(ids)) > len(TEXT)
    result.stdout.fnmatch_lines(["ignored db/schema.sql:2:*: default-clock: of this (db/schema.sql:1)"])
    result.stdout.fnmatch_lines(["app.models:DDL:5:1: reapply-changes: *"])


def test_workers_without_a_server_say_so_once(project: Project, no_server: None) -> None:
    result = project.inner.subprocess("--xjobs-ddl", "-n2", "db")
    result.assert_outcomes(passed=len(TEXT - NEEDY), skipped=len(POSTGRES - NEEDY))
    assert sum("not checked: " in line for line in result.outlines) == 1


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("db/missing.sql", "*there is no file *db/missing.sql*"),
        ("db", "*db is a directory*"),
        ("db/empty.sql", "*db/empty.sql is empty*"),
        ("db/bytes.sql", "*db/bytes.sql is not UTF-8*"),
        ("db/open.sql", "*db/open.sql:2:8: *"),
        ("app.models:NONE", "*module app.models has no NONE*"),
        ("app.models:NUMBER", "*app.models:NUMBER is 7, of type int*"),
    ],
)
def test_a_text_that_cannot_be_read_is_one_message(project: Project, line: str, message: str) -> None:
    project.write("db/empty.sql", "\n")
    project.write("db/open.sql", "select 1;\nselect 'open")
    (project.path / "db/bytes.sql").write_bytes(b"select '\xff'")
    project.write("app/models.py", "NUMBER = 7\n")
    project.ini(line)
    result = project.run()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([message])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*sources.py*")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["xjobs_ddl = no.such.module:X"], "*xjobs_ddl names 'no.such.module:X'*"),
        (["xjobs_ddl = db/schema.sql querys=x"], "*xjobs_ddl has 'querys=x' in the line*write REFERENCE*"),
        (["xjobs_ddl = 'db/schema.sql"], "*xjobs_ddl has the line*No closing quotation*"),
        (["xjobs_ddl_ignore = clock-keyword"], "*'clock-keyword' ignores a rule without a reason*"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(project: Project, lines: list[str], message: str) -> None:
    project.inner.ini("pythonpath = .", *lines)
    result = project.run()
    assert result.ret != 0
    result.stderr.fnmatch_lines([message])


def test_a_server_that_refuses_is_one_message(project: Project) -> None:
    result = project.inner.run(
        "--xjobs-dsn=postgresql://nobody:secret@127.0.0.1:1/x", "--xjobs-ddl", "db", "-k", "reapply"
    )
    result.assert_outcomes(failed=1)
    assert "secret" not in result.stdout.str()
    result.stdout.no_fnmatch_line("*Traceback*")

"""The named statements: the form of the files, what a statement knows, and that the declared names are the names."""

from __future__ import annotations

import ast
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import xjobs.sql
from xjobs.sql import Statement, statements
from xjobs.sql.statement import parse
from xjobs.states import COUNTED, FINISHED, LIVE, WAITING

ONE = """-- Owns an example.

-- name: SQL_ONE (first, second)
-- Changes nothing.
select $2::text as second, $1::text as first
"""


def only(text: str) -> Statement:
    (statement,) = parse(text, "example.sql")
    return statement


def declared_names() -> set[str]:
    tree = ast.parse(Path(xjobs.sql.__file__).read_text(encoding="utf-8"))
    return {
        node.target.id
        for node in tree.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(node.annotation, ast.Name)
        and node.annotation.id == "Statement"
        and node.value is None
    }


def test_declared_names_are_the_names_in_the_files() -> None:
    assert declared_names() == set(statements())


def test_every_statement_is_an_attribute_of_the_module() -> None:
    for name, statement in statements().items():
        assert getattr(xjobs.sql, name) is statement
        assert statement.name == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="SQL_NO_SUCH_THING"):
        xjobs.sql.SQL_NO_SUCH_THING  # type: ignore[attr-defined]  # noqa: B018


def test_schema_is_the_text_of_its_file() -> None:
    path = Path(xjobs.sql.__file__).with_name("schema.sql")
    assert path.read_text(encoding="utf-8") == xjobs.sql.SQL_JOBS_TABLE


def test_import_reads_no_statement() -> None:
    code = "import xjobs.sql as s; assert not s._loaded and 'SQL_JOBS_TABLE' not in vars(s)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_statement_is_its_text_and_knows_its_header() -> None:
    statement = only(ONE)
    assert statement == "select $2::text as second, $1::text as first"
    assert statement.name == "SQL_ONE"
    assert statement.parameters == ("first", "second")
    assert statement.guarantee == "Changes nothing."


def test_several_statements_in_one_file() -> None:
    text = ONE + "\n-- name: SQL_TWO ()\n-- Changes nothing either.\nselect 2\n  -- why two\n  as two\n"
    one, two = parse(text, "example.sql")
    assert one == only(ONE)
    assert (two, two.parameters) == ("select 2\n  -- why two\n  as two", ())


def test_a_statement_pickles() -> None:
    copy = pickle.loads(pickle.dumps(only(ONE)))
    assert (copy, copy.name, copy.bind(first=1, second=2)) == (only(ONE), "SQL_ONE", (1, 2))


@pytest.mark.parametrize("names", [(), ("a",), ("a", "b"), ("c", "a", "b")], ids=len)
def test_bind_orders_by_the_header(names: tuple[str, ...]) -> None:
    numbers = ", ".join(f"${number}" for number, _ in enumerate(names, 1))
    statement = only(f"-- name: SQL_X ({', '.join(names)})\n-- Orders.\nselect {numbers}")
    assert statement.bind(**{name: name.upper() for name in sorted(names)}) == tuple(name.upper() for name in names)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "missing first, second;"),
        ({"first": 1}, "missing second;"),
        ({"first": 1, "second": 2, "third": 3}, "unknown third;"),
        ({"first": 1, "third": 3}, "missing second; unknown third;"),
    ],
    ids=["all missing", "one missing", "one too many", "another name"],
)
def test_bind_names_what_does_not_fit(values: dict[str, int], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        only(ONE).bind(**values)
    assert message in str(caught.value)
    assert str(caught.value).startswith("SQL_ONE: ")
    assert str(caught.value).endswith("its parameters are (first, second)")


def test_numbers_in_comments_and_literals_are_no_parameters() -> None:
    text = "-- name: SQL_X (a)\n-- Reads.\nselect '$2 it''s $3', \"$4\", $1 -- $5\n/* $6\n$7 */"
    assert only(text).parameters == ("a",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("select 1\n" + ONE, "example.sql:1: SQL before the first header"),
        ("select 1", "example.sql:1: SQL before the first header"),
        ("-- name: SQL_X\n-- G.\nselect 1", "example.sql:1: malformed header '-- name: SQL_X'"),
        ("-- name: sql_x ()\n-- G.\nselect 1", "example.sql:1: malformed header"),
        ("--name: SQL_X ()\n-- G.\nselect 1", "example.sql:1: malformed header"),
        ("-- name: SQL_X (a,b)\n-- G.\nselect $1, $2", "example.sql:1: malformed header"),
        ("-- name: SQL_X (a, )\n-- G.\nselect $1", "example.sql:1: malformed header"),
        ("-- name: SQL_X (A)\n-- G.\nselect $1", "example.sql:1: malformed header"),
        (ONE + "-- name: SQL_X () -- more\n-- G.\nselect 1", "example.sql:6: malformed header"),
        ("-- name: SQL_X (a, a)\n-- G.\nselect $1, $2", "example.sql:1: SQL_X names a parameter twice: (a, a)"),
        ("-- name: SQL_X ()\nselect 1", "example.sql:1: SQL_X lacks its second line"),
        ("-- name: SQL_X ()\n-- \nselect 1", "example.sql:1: SQL_X lacks its second line"),
        ("-- name: SQL_X ()\n-- G.\n-- no more\n", "example.sql:1: SQL_X has no SQL under its header"),
        ("-- name: SQL_X (a)\n-- G.\nselect $1, $2", "example.sql:1: SQL_X uses $2, and its header names 1 parameters"),
        ("-- name: SQL_X (a)\n-- G.\nselect $1, $0", "example.sql:1: SQL_X uses $0, and its header names 1 parameters"),
        ("-- name: SQL_X (a, b)\n-- G.\nselect $1", "example.sql:1: SQL_X does not use its parameters b"),
    ],
)
def test_a_malformed_file_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        list(parse(text, "example.sql"))
    assert str(caught.value).startswith(message)


def test_a_name_in_two_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text(ONE)
    (tmp_path / "b.sql").write_text(ONE)
    with pytest.raises(ValueError, match=r"b\.sql: SQL_ONE is already in a\.sql"):
        xjobs.sql._read(tmp_path)


def test_the_schema_name_is_taken(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text(ONE.replace("SQL_ONE", "SQL_JOBS_TABLE"))
    with pytest.raises(ValueError, match=r"a\.sql: SQL_JOBS_TABLE is already in schema\.sql"):
        xjobs.sql._read(tmp_path)


def test_the_schema_file_is_no_statement_file(tmp_path: Path) -> None:
    (tmp_path / "schema.sql").write_text("create table x ();")
    (tmp_path / "a.sql").write_text(ONE)
    assert list(xjobs.sql._read(tmp_path)) == ["SQL_ONE"]


def code(statement: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"--[^\n]*", "", statement))


STAR = re.compile(r"\b(?:select|returning)\b(?: [\w.]+,)* (?:(?P<alias>\w+)\.)?\*", re.IGNORECASE)


def stars(text: str) -> list[str]:
    """Where columns come by `*`, but for those of a function's rows that the text itself names: `) as g(id, name)`."""
    text = code(text)
    return [
        match[0]
        for match in STAR.finditer(text)
        if not (match["alias"] and re.search(rf"\)(?: with ordinality)? as {match['alias']} ?\(", text))
    ]


def test_no_statement_returns_whole_rows() -> None:
    package = Path(xjobs.sql.__file__).parents[1]
    for path in [*package.rglob("*.sql"), *package.rglob("*.py")]:
        assert stars(path.read_text(encoding="utf-8")) == [], path


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("select * from x_jobs", 1),
        ("update x_jobs j set a = 1 returning j.*", 1),
        ("insert into x_jobs as j (id) values ($1)\nreturning j.id, j.*", 1),
        ("select g.*, 1 from unnest($1) with ordinality as g(id, n)", 0),
        ("select count(*), a * 2 from x_jobs -- select *", 0),
    ],
)
def test_a_star_is_found(text: str, found: int) -> None:
    assert len(stars(text)) == found


def waits_for_places(text: str) -> bool:
    """Whether a statement goes by places of rows that it may have waited for: it misses those that were moved."""
    return "ctid" in code(text) and bool(re.search(r"for update(?! skip locked)", code(text)))


def test_no_statement_goes_by_the_places_of_rows_that_it_waited_for() -> None:
    assert [name for name, text in statements().items() if waits_for_places(text)] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("select ctid from x_jobs for update", True),
        ("select ctid from x_jobs for update skip locked", False),
        (
            "select ctid from (select ctid from x_jobs for update skip locked) a, (select id from x_jobs for update) b",
            True,
        ),
        ("select id from x_jobs for update", False),
    ],
)
def test_going_by_places_is_found(text: str, found: bool) -> None:
    assert waits_for_places(text) is found


def test_the_conflict_target_is_spelled_as_the_live_index() -> None:
    (index,) = re.findall(
        r"create unique index .+? on x_jobs \((.+)\) with \(.+?\) where (state in \(.+?\))", xjobs.sql.SQL_JOBS_TABLE
    )
    targets = {
        match.groups()
        for statement in statements().values()
        for match in re.finditer(r"on conflict \((name, .+?)\) where (state in \(.+?\)) do", code(statement))
    }
    assert targets <= {index}


@pytest.mark.parametrize(
    ("index", "states"),
    [
        ("x_jobs_name_tenant_idempotency_live_idx", LIVE),
        ("x_jobs_claim_idx", WAITING),
        ("x_jobs_order_idx", WAITING),
        ("x_jobs_finished_idx", FINISHED),
        ("x_jobs_depth_idx", COUNTED),
    ],
)
def test_partial_indexes_list_the_states_that_python_names(index: str, states: tuple[str, ...]) -> None:
    (found,) = re.findall(rf"index if not exists {index} .+ where state in \((.+)\);", xjobs.sql.SQL_JOBS_TABLE)
    assert found == ", ".join(f"'{state}'" for state in states)


def test_the_depth_index_serves_the_stats() -> None:
    if "SQL_STATS" in statements():
        listed = ", ".join(f"'{state}'" for state in COUNTED)
        assert f" from x_jobs where state in ({listed}) " in code(statements()["SQL_STATS"])

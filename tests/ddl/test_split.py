"""Splitting scripts into statements: known traps, what is no SQL, and generated scripts beside what Postgres sees."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from xjobs.ddl import Statement, split_statements
from xjobs.ddl.lexer import tokenize
from xjobs.errors import DdlSyntaxInvalid
from xjobs.sql import SQL_JOBS_TABLE

TRAPS = {
    "nothing": ("", []),
    "spaces and comments": (" -- a; b\n/* c; */ ;; ", []),
    "no semicolon at the end": ("select 1; select 2", ["select 1", "select 2"]),
    "comments around": ("-- one\nselect 1 /* in */ ; -- two\nselect 2 -- three", ["select 1", "select 2"]),
    "comments within": ("select /* a; */ 1;", ["select /* a; */ 1"]),
    "nested comments": ("/* a /* b; */ c; */ select 1; select 2", ["select 1", "select 2"]),
    "a comment that looks nested": ("/* --/* ; */ */ select 1", ["select 1"]),
    "quotes": ("select 'a;b'; select 'it''s;'", ["select 'a;b'", "select 'it''s;'"]),
    "a backslash is plain": ("select 'a\\'; select 2", ["select 'a\\'", "select 2"]),
    "a backslash escapes": ("select e'a\\';b'; select 2", ["select e'a\\';b'", "select 2"]),
    "escapes go on": ("select E'a'\n 'b\\';c'; select 2", ["select E'a'\n 'b\\';c'", "select 2"]),
    "escapes go on after comments": ("select E'a' --'\n--'\n'b\\';c'; x", ["select E'a' --'\n--'\n'b\\';c'", "x"]),
    "escapes end on a line": ("select E'a' 'b\\'; x", ["select E'a' 'b\\'", "x"]),
    "plain strings do not": ("select 'a'\n 'b\\'; select 2", ["select 'a'\n 'b\\'", "select 2"]),
    "quoted names": ('select 1 as "a;""b;"; select 2', ['select 1 as "a;""b;"', "select 2"]),
    "unicode strings": ("select U&'\\0041;' as u&\"b;\"; select 2", ["select U&'\\0041;' as u&\"b;\"", "select 2"]),
    "dollar quotes": ("select $$a;$b$;$$; select 2", ["select $$a;$b$;$$", "select 2"]),
    "tagged dollar quotes": ("do $ä$ $$;$$ $a$ $ä$; select 2", ["do $ä$ $$;$$ $a$ $ä$", "select 2"]),
    "dollars in names": ("select a$$b; select $1", ["select a$$b", "select $1"]),
    "rules": (
        "create rule r as on insert to t do also (a; b); c",
        ["create rule r as on insert to t do also (a; b)", "c"],
    ),
    "bodies": (
        "create or replace function f() begin atomic select case when a then 1 end; select 1 as end; end; select 2",
        ["create or replace function f() begin atomic select case when a then 1 end; select 1 as end; end", "select 2"],
    ),
    "empty bodies": ("create procedure p() begin atomic end; x", ["create procedure p() begin atomic end", "x"]),
    "transactions": ("begin; select 1; end; begin", ["begin", "select 1", "end", "begin"]),
    "names that look like bodies": (
        "create table t (begin int, atomic int); x",
        ["create table t (begin int, atomic int)", "x"],
    ),
    "windows": ("select 1;\r\n-- a;\r\nselect 2;\r\n", ["select 1", "select 2"]),
    "old macs": ("-- a\rselect 1;", ["select 1"]),
}


@pytest.mark.parametrize(("text", "expected"), TRAPS.values(), ids=TRAPS)
def test_a_semicolon_ends_a_statement_only_where_it_does_in_postgres(text: str, expected: list[str]) -> None:
    assert [statement.text for statement in split_statements(text)] == expected


def test_a_statement_says_where_it_is() -> None:
    text = "-- ä\n  select 1;\tselect\n 'ü' ;"
    first, second = split_statements(text)
    assert (first.text, first.start, first.line, first.column) == ("select 1", 7, 2, 3)
    assert (second.text, second.start, second.line, second.column) == ("select\n 'ü'", 17, 2, 13)
    for statement in (first, second):
        assert text[statement.start : statement.end] == statement.text
        assert statement.semicolon is not None
        assert text[statement.semicolon.start] == ";"


NO_SQL = {
    "string": ("select 1;\nselect 'a", 2, 8, "a string does not end"),
    "escaped string": ("select E'a\\'", 1, 8, "a string does not end"),
    "continued string": ("select E'a'\n'b\\'", 2, 1, "a string does not end"),
    "name": ('select "a', 1, 8, "a quoted name does not end"),
    "dollar quote": ("do\n  $a$ $$ $b$", 2, 3, "a dollar-quoted string does not end"),
    "comment": ("select 1 /* a /* b */", 1, 10, "a comment does not end"),
    "parenthesis": ("create table t (\n a int;\n", 1, 16, "( is not closed"),
    "closing parenthesis": ("select 1);", 1, 9, ") closes nothing"),
    "wrong parenthesis": ("select (array[1)]", 1, 16, ") closes nothing"),
    "body": ("create function f() begin atomic select 1;", 1, 27, "atomic has no end"),
    "psql": ("select 1;\n\\d jobs", 2, 1, "'\\\\' begins nothing in SQL"),
    "nul": ("select 'a'; \0", 1, 13, "'\\x00' begins nothing in SQL"),
    "template": ("create table {name} (id int)", 1, 14, "'{' begins nothing in SQL"),
}


@pytest.mark.parametrize(("text", "line", "column", "fact"), NO_SQL.values(), ids=NO_SQL)
def test_what_is_no_sql_is_refused_at_its_place(text: str, line: int, column: int, fact: str) -> None:
    with pytest.raises(DdlSyntaxInvalid) as caught:
        split_statements(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert str(caught.value).startswith(f"line {line}, column {column}: {fact}")
    assert caught.value.remedy


@given(st.text(alphabet=st.sampled_from("a;'\"$/*-\\E()[]\n &Uxé1.:{"), max_size=40) | st.text(max_size=40))
def test_any_text_is_cut_without_loss_or_refused(text: str) -> None:
    try:
        statements = split_statements(text)
    except DdlSyntaxInvalid:
        return
    assert "".join(token.text for token in tokenize(text)) == text
    for statement in statements:
        assert text[statement.start : statement.end] == statement.text
        assert statement.text.strip(" \t\n\r\f\v") == statement.text != ""


def test_the_naive_split_of_the_shipped_schema_is_the_true_one() -> None:
    naive = [chunk.rsplit("\n", 1)[-1].strip() for chunk in SQL_JOBS_TABLE.split(";")]
    assert [statement.text for statement in split_statements(SQL_JOBS_TABLE)] == [chunk for chunk in naive if chunk]


# --- beside Postgres -----------------------------------------------------------------------------


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


INSIDE = st.text(alphabet=st.sampled_from("a;b '\"$-/*\\é\nE("), max_size=8)
IN_COMMENTS = st.text(alphabet="a;'\"$- \n(", max_size=6)
TAGS = st.sampled_from(["$$", "$a$", "$b_1$", "$ä$"])
BLOCKS = st.recursive(
    st.builds("/*{}*/".format, IN_COMMENTS),
    lambda inner: st.builds("/*{}{}{}*/".format, IN_COMMENTS, inner, IN_COMMENTS),
    max_leaves=3,
)
LINES = st.builds("--{}\n".format, st.text(alphabet="a;'\"$/* (", max_size=8))
GAPS = st.lists(st.sampled_from([" ", "\n", "\t", "\r\n"]) | BLOCKS | LINES, max_size=3).map(
    lambda parts: "".join([" ", *parts])
)

PLAIN = INSIDE.map(lambda text: "'" + text.replace("'", "''") + "'")
ESCAPED = INSIDE.map(lambda text: f"E'{escaped(text)}'")
CONTINUED = st.builds("{}{}\n'{}'".format, ESCAPED, st.just(" ") | LINES, INSIDE.map(escaped))
DOLLARS = st.builds(lambda tag, text: tag + text.replace("$", "") + tag, TAGS, INSIDE)
STRINGS = PLAIN | ESCAPED | CONTINUED | DOLLARS
NAMES = st.text(alphabet="a;b '$-*/é", min_size=1, max_size=5).map('"{}"'.format) | st.sampled_from(["plain", "end_"])

QUERIES = st.builds("select{}{}{}as {}".format, GAPS, STRINGS, GAPS, NAMES)
CASES = st.builds("select case when true then {} end as {}".format, STRINGS, st.sampled_from(["one", "end", "case"]))
BODIES = st.lists(QUERIES | CASES, min_size=1, max_size=3).map("; ".join)
FORMS = st.one_of(
    QUERIES,
    st.builds("create table if not exists {}{}(a text default{}{}, begin int)".format, NAMES, GAPS, GAPS, STRINGS),
    st.builds("comment on table base is{}{}".format, GAPS, STRINGS),
    st.builds("do{}{tag} begin perform 1; end {tag}".format, GAPS, tag=TAGS),
    st.builds("create or replace view shown as{}select case when true then {} end as end".format, GAPS, STRINGS),
    st.builds(
        "create or replace function f() returns text language sql{}begin atomic {};{}end".format, GAPS, BODIES, GAPS
    ),
    st.builds("create or replace function g() returns text language plpgsql as{}{}".format, GAPS, DOLLARS),
    st.builds("create or replace rule r as on update to base do also ({}; {})".format, QUERIES, QUERIES),
)
ENDS = st.builds("{};{}".format, GAPS, st.sampled_from(["", " ; ", ";\n"]))
SCRIPTS = st.builds(
    lambda lead, parts, last: "".join([lead, *map("".join, parts), last]),
    GAPS,
    st.lists(st.tuples(FORMS, ENDS, GAPS), max_size=4),
    FORMS,
)

FRESH = """
reset all;
drop schema if exists scripts cascade;
create schema scripts;
set search_path = scripts;
set check_function_bodies = off;
create table base (a text)
"""

LEFT_BEHIND = """
select 'comment', obj_description('base'::regclass)
union all
select p.proname, pg_get_functiondef(p.oid) from pg_proc p where p.pronamespace = 'scripts'::regnamespace
union all
select v.viewname, v.definition from pg_views v where v.schemaname = 'scripts'
union all
select r.rulename, r.definition from pg_rules r where r.schemaname = 'scripts'
union all
select c.table_name || '.' || c.column_name, c.column_default
  from information_schema.columns c
 where c.table_schema = 'scripts'
order by 1, 2
"""

Seen = list[tuple[str, ...]]


class Postgres:
    """What a server makes of scripts, each in a schema of its own."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def sees(self, script: str) -> Seen | None:
        """The statements of a script that is sent whole, by what each answers, and what they leave behind.

        None if it refuses the script.
        """
        self._begin()
        self.connection.pgconn.send_query(script.encode())
        results = []
        while (result := self.connection.pgconn.get_result()) is not None:
            results.append(result)
        if any(result.status == ExecStatus.FATAL_ERROR for result in results):
            return None
        return [*map(_answer, results), *self._left_behind()]

    def sees_each(self, statements: list[Statement]) -> Seen:
        """The same of statements that are sent alone, by the protocol that takes only one at a time."""
        self._begin()
        results = [self.connection.pgconn.exec_params(each.text.encode(), []) for each in statements]
        for result in results:
            assert result.status != ExecStatus.FATAL_ERROR, result.error_message.decode()
        return [*map(_answer, results), *self._left_behind()]

    def _begin(self) -> None:
        if self.connection.info.transaction_status is not TransactionStatus.IDLE:
            self.connection.rollback()
        self.connection.execute(FRESH)

    def _left_behind(self) -> Seen:
        return [tuple(map(str, row)) for row in self.connection.execute(LEFT_BEHIND)]


def _answer(result: PGresult) -> tuple[str, ...]:
    values = [result.get_value(row, column) for row in range(result.ntuples) for column in range(result.nfields)]
    return ((result.command_status or b"").decode(), *((value or b"").decode() for value in values))


@pytest.fixture(scope="module")
def postgres(database_dsn: str) -> Iterator[Postgres]:
    with psycopg.connect(database_dsn, autocommit=True) as maintenance:
        maintenance.execute("create database split encoding 'UTF8' template template0")
        try:
            with psycopg.connect(database_dsn, autocommit=True, dbname="split") as connection:
                yield Postgres(connection)
        finally:
            maintenance.execute("drop database split with (force)")


BESIDE = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@BESIDE
@given(script=SCRIPTS)
@example(script="/* a /* ; */ ; */ select 1; select E'a'\n'b\\';' as \"x;y\";;")
def test_generated_scripts_are_split_as_postgres_sees_them(postgres: Postgres, script: str) -> None:
    whole = postgres.sees(script)
    assert whole is not None
    assert postgres.sees_each(split_statements(script)) == whole


@BESIDE
@given(script=SCRIPTS, data=st.data())
def test_of_broken_scripts_those_that_postgres_takes_are_split_alike(
    postgres: Postgres, script: str, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(script)))
    broken = script[:start] + script[start + data.draw(st.integers(1, 6)) :]
    whole = postgres.sees(broken)
    if whole is not None:
        assert postgres.sees_each(split_statements(broken)) == [answer for answer in whole if answer != ("",)]

"""Owns the rule about the clock: a column's default takes its time from functions that a test can replace."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import psycopg

from xjobs.ddl.findings import Finding
from xjobs.ddl.postgres.bench import Bench, install
from xjobs.ddl.postgres.places import origin
from xjobs.ddl.postgres.scratch import connected
from xjobs.ddl.rules.postgres import DEFAULT_CLOCK

__all__ = ["default_clock"]

# The functions that the test clock of pytest-xjobs puts before the built-in ones, here with the real time.
_STAND_INS: Final = """
create schema xjobs_time;
create function xjobs_time.now() returns timestamptz language sql stable as 'select pg_catalog.now()';
create function xjobs_time.transaction_timestamp() returns timestamptz language sql stable
  as 'select pg_catalog.transaction_timestamp()';
create function xjobs_time.statement_timestamp() returns timestamptz language sql stable
  as 'select pg_catalog.statement_timestamp()';
create function xjobs_time.clock_timestamp() returns timestamptz language sql volatile
  as 'select pg_catalog.clock_timestamp()';
"""
_PATH: Final = "public, xjobs_time, pg_catalog"

# What a deparsed text holds of the clock: strings are passed over.
_CLOCK: Final = re.compile(
    r"'(?:[^']|'')*'"
    r"|(?<![\w.])(?P<keyword>CURRENT_(?:TIMESTAMP|DATE|TIME)|LOCALTIME(?:STAMP)?)\b"
    r"|(?<![\w.])(?P<function>now|transaction_timestamp|statement_timestamp|clock_timestamp|timeofday)\(\)"
)
_CONSTANT: Final = re.compile(r"'(?P<value>[^']*)'::(?:date|timestamp(?:\(\d\))? with(?:out)? time zone)")


def default_clock(bench: Bench) -> Iterator[Finding]:
    """A default that is bound to a clock that no test can move, or to the instant at which the DDL was applied.

    A live database is looked at where it has the clock of tests: its tables may have been made outside of its path.
    """
    with bench.server.database() as dsn:
        with connected(dsn) as connection:
            connection.execute(_STAND_INS)
            ((since,),) = connection.execute("select pg_catalog.clock_timestamp()").fetchall()
        install(bench.ddl, dsn, _PATH)
        with connected(dsn, "pg_catalog") as connection:
            yield from _unmoved(bench, connection, since)
    if bench.live is not None:
        with connected(bench.live, "pg_catalog") as connection:
            if connection.execute("select from pg_namespace where nspname = 'xjobs_time'").fetchone() is not None:
                yield from _unmoved(bench, connection, None)


def _unmoved(bench: Bench, connection: psycopg.Connection[Any], since: datetime | None) -> Iterator[Finding]:
    within = f" in database {connection.info.dbname}" if since is None else ""
    for table, column, default in connection.execute(_DEFAULTS).fetchall():
        problem = _immovable(default)
        if problem is None and since is not None and _is_of_install(connection, default, since):
            problem = "has the instant at which the DDL was applied for a default"
        if problem is not None:
            place = origin(bench.ddl, "column", f"{table}.{column}")
            yield place.finding(DEFAULT_CLOCK, f"column {table}.{column}{within} {problem}: {default}")


_DEFAULTS = """
select c.relname::text, a.attname::text, pg_get_expr(d.adbin, d.adrelid)
  from pg_attrdef d
       join pg_class c on c.oid = d.adrelid
       join pg_namespace n on n.oid = c.relnamespace
       join pg_attribute a on a.attrelid = d.adrelid and a.attnum = d.adnum
 where a.attgenerated = '' and n.nspname !~ '^pg_' and n.nspname not in ('information_schema', 'xjobs_time')
 order by d.oid
"""


def _immovable(default: str) -> str | None:
    for match in _CLOCK.finditer(default):
        name = match["keyword"] or (f"{match['function']}()" if match["function"] else None)
        if name is not None:
            return f"takes its default from {name}, which no test can move"
    return None


def _is_of_install(connection: psycopg.Connection[Any], default: str, since: datetime) -> bool:
    """Whether a default is a constant that lies in the time of the install, as what was 'now' does."""
    if _CONSTANT.fullmatch(default) is None:
        return False
    query = f"select ({default})::timestamptz between date_trunc('day', %s) and clock_timestamp()"
    row = connection.execute(query.encode(), [since]).fetchone()
    return row is not None and row[0] is True

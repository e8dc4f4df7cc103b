"""Owns reading what a Postgres schema really holds, in a form that two schemas can be compared by.

The queries are here and not among the named statements, because those are what every driver answers, and memory has no
catalog. Texts are read under `search_path = pg_catalog`, so they do not depend on the reader's path, and without the
schema's own name, so that equal schemas of different names have equal catalogs.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from xjobs.errors import TransactionAborted
from xjobs.sql import SQL_JOBS_TABLE

__all__ = [
    "Catalog",
    "Column",
    "Constraint",
    "Difference",
    "Function",
    "Index",
    "Sequence",
    "Table",
    "Trigger",
    "Type",
    "expected_catalog",
    "read_catalog",
]


@dataclass(frozen=True)
class Table:
    """A table, view or foreign table: `kind` and `persistence` in words; `query` is a view's."""

    kind: str
    persistence: str
    row_security: bool
    query: str | None = None


@dataclass(frozen=True)
class Column:
    """A column; `identity`, `generated` and `collation` are None where they do not apply or are the type's own."""

    table: str
    type: str
    not_null: bool
    default: str | None
    identity: str | None
    generated: str | None
    collation: str | None


@dataclass(frozen=True)
class Constraint:
    """A constraint other than not null, which is read with the column."""

    table: str
    definition: str
    validated: bool


@dataclass(frozen=True)
class Index:
    """An index that backs no constraint; `keys` are its columns and expressions, `valid` that queries may use it."""

    table: str
    keys: tuple[str, ...]
    predicate: str | None
    unique: bool
    valid: bool
    # The whole text is told only where no finer field differs: access method, operator class, included columns.
    definition: str = field(metadata={"whole": True})


@dataclass(frozen=True)
class Sequence:
    """A sequence; `owner` is the `table.column` it is dropped with."""

    owner: str | None
    type: str
    start: int
    increment: int
    minimum: int
    maximum: int
    cycles: bool

    @property
    def table(self) -> str | None:
        """The table of the owner."""
        return self.owner.partition(".")[0] if self.owner is not None else None


@dataclass(frozen=True)
class Trigger:
    """A trigger; `enabled` in words."""

    table: str
    definition: str
    enabled: str


@dataclass(frozen=True)
class Type:
    """A type of its own; `labels` are an enum's, in their order, None for another kind."""

    kind: str
    labels: tuple[str, ...] | None


@dataclass(frozen=True)
class Function:
    """A function or procedure, by the whole text that makes it."""

    definition: str


Item = Function | Type | Table | Column | Constraint | Index | Sequence | Trigger


@dataclass(frozen=True)
class Catalog:
    """The objects of one schema by name; columns, constraints and triggers as `table.name`, functions as `name(types)`.

    What belongs to an extension is not among them.
    """

    types: Mapping[str, Type] = field(default_factory=dict, metadata={"noun": "type"})
    tables: Mapping[str, Table] = field(default_factory=dict, metadata={"noun": "table"})
    columns: Mapping[str, Column] = field(default_factory=dict, metadata={"noun": "column"})
    constraints: Mapping[str, Constraint] = field(default_factory=dict, metadata={"noun": "constraint"})
    indexes: Mapping[str, Index] = field(default_factory=dict, metadata={"noun": "index"})
    sequences: Mapping[str, Sequence] = field(default_factory=dict, metadata={"noun": "sequence"})
    triggers: Mapping[str, Trigger] = field(default_factory=dict, metadata={"noun": "trigger"})
    functions: Mapping[str, Function] = field(default_factory=dict, metadata={"noun": "function"})

    def difference(self, other: Catalog) -> list[str]:
        """What keeps this catalog from being `other`, the expected one; empty if nothing does.

        One line per object that is missing or unexpected and per property that differs. A table that only one of them
        has is one line, without lines for what hangs off it.
        """
        return [str(each) for each in self.differences(other)]

    def differences(self, other: Catalog) -> list[Difference]:
        """The lines of `difference`, each with the object that it is about."""
        lonely = self.tables.keys() ^ other.tables.keys()
        return [
            each
            for kind in fields(Catalog)
            for each in _differences(kind.metadata["noun"], getattr(self, kind.name), getattr(other, kind.name), lonely)
        ]

    def of_tables(self, tables: Container[str | None]) -> Catalog:
        """What of this catalog belongs to these tables; what belongs to no table is left out."""
        return Catalog(
            tables={name: item for name, item in self.tables.items() if name in tables},
            columns={name: item for name, item in self.columns.items() if item.table in tables},
            constraints={name: item for name, item in self.constraints.items() if item.table in tables},
            indexes={name: item for name, item in self.indexes.items() if item.table in tables},
            sequences={name: item for name, item in self.sequences.items() if item.table in tables},
            triggers={name: item for name, item in self.triggers.items() if item.table in tables},
        )


@dataclass(frozen=True)
class Difference:
    """One line of a comparison: about which object, such as the column `x_jobs.state`, and what of it differs."""

    noun: str
    name: str
    text: str

    def __str__(self) -> str:
        return self.text


def _differences(
    noun: str, found: Mapping[str, Item], expected: Mapping[str, Item], lonely: set[str]
) -> Iterator[Difference]:
    for name in sorted(found.keys() | expected.keys()):
        here, there = found.get(name), expected.get(name)
        if here is not None and there is not None:
            for change in _changes(f"{noun} {name}", here, there):
                yield Difference(noun, name, change)
        elif getattr(here or there, "table", None) not in lonely:
            yield Difference(noun, name, f"{'missing' if here is None else 'unexpected'} {noun} {name}")


def _changes(subject: str, found: Item, expected: Item) -> Iterator[str]:
    differing = [part for part in fields(found) if getattr(found, part.name) != getattr(expected, part.name)]
    finer = [part for part in differing if "whole" not in part.metadata]
    for part in finer or differing:
        name = part.name.replace("_", " ")
        yield f"{subject}: {name} {_shown(getattr(found, part.name))}, expected {_shown(getattr(expected, part.name))}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return f"({', '.join(value)})"
    return "none" if value is None else str(value)


def read_catalog(
    connection: psycopg.Connection[Any], schema: str = "public", prefix: str = "x_", *, normalise_clock: bool = False
) -> Catalog:
    """Read the objects of a schema whose names begin with a prefix, and the columns of those tables.

    Leaves the connection as it was: in a transaction it works behind a savepoint that it rolls back, otherwise in a
    short transaction of its own. A schema that does not exist is an empty catalog.

    Args:
        connection: any psycopg connection that is not in a failed transaction.
        schema: name of the schema, not quoted.
        prefix: what the names begin with; other objects belong to the app. Empty for all.
        normalise_clock: read calls of the virtual clock of test databases, `xjobs_time.now()`, as `now()`.

    Raises:
        TransactionAborted: the connection's transaction has failed and answers nothing.
        psycopg.Error: what Postgres or the network refused.
    """
    _refuse_failed_transaction(connection)
    with connection.transaction(force_rollback=True):
        return _read(connection, schema, prefix, normalise_clock)


def expected_catalog(connection: psycopg.Connection[Any]) -> Catalog:
    """What xjobs' own schema is on this very server: it is applied to a schema of its own, read and rolled back.

    Takes no lock on the queue's tables. A role that may not create schemas gets the same answer from temporary tables.
    Defaults are bound to the real clock, so read a test database with `normalise_clock=True` to compare.

    Raises:
        TransactionAborted: the connection's transaction has failed and answers nothing.
        psycopg.Error: what Postgres or the network refused, such as a server that is read-only.
    """
    _refuse_failed_transaction(connection)
    try:
        with connection.transaction(force_rollback=True):
            return _applied(connection, _create_scratch_schema(connection))
    except psycopg.errors.InsufficientPrivilege:
        with connection.transaction(force_rollback=True):
            return _as_permanent(_applied(connection, "pg_temp"))


def _refuse_failed_transaction(connection: psycopg.Connection[Any]) -> None:
    if connection.info.transaction_status is TransactionStatus.INERROR:
        raise TransactionAborted(
            "the connection's transaction has failed, so its catalog cannot be read", "roll it back first"
        )


def _create_scratch_schema(connection: psycopg.Connection[Any]) -> str:
    name = f"xjobs_expected_{uuid.uuid4().hex}"
    _execute(connection, sql.SQL("create schema {}").format(sql.Identifier(name)))
    return name


def _applied(connection: psycopg.Connection[Any], schema: str) -> Catalog:
    # "does not exist, skipping" is no news to the caller's notice handlers.
    _execute(connection, "select set_config('client_min_messages', 'warning', true)")
    _execute(connection, "select set_config('search_path', %(schema)s, true)", {"schema": schema})
    _execute(connection, SQL_JOBS_TABLE.encode())
    return _read(connection, schema, "x_", normalise_clock=False)


def _as_permanent(catalog: Catalog) -> Catalog:
    tables = {name: replace(table, persistence="permanent") for name, table in catalog.tables.items()}
    return replace(catalog, tables=tables)


def _read(connection: psycopg.Connection[Any], schema: str, prefix: str, normalise_clock: bool) -> Catalog:
    # Local to the transaction or savepoint around, whose rollback takes it back.
    _execute(connection, "select set_config('search_path', 'pg_catalog', true)")
    ((oid,),) = _execute(connection, _SCHEMA, {"schema": schema})
    if oid is None:
        return Catalog()
    scope = {"schema": oid, "prefix": prefix}
    text = _TextReader(schema, normalise_clock)
    return Catalog(
        types={
            name: Type(kind, labels and tuple(labels)) for name, kind, labels in _execute(connection, _TYPES, scope)
        },
        tables={
            name: Table(kind, persistence, row_security, text(query))
            for name, kind, persistence, row_security, query in _execute(connection, _TABLES, scope)
        },
        columns={
            f"{table}.{name}": Column(table, text(kind), not_null, text(default), identity, text(generated), collation)
            for table, name, kind, not_null, default, identity, generated, collation in _execute(
                connection, _COLUMNS, scope
            )
        },
        constraints={
            f"{table}.{name}": Constraint(table, text(definition), validated)
            for table, name, definition, validated in _execute(connection, _CONSTRAINTS, scope)
        },
        indexes={
            name: Index(table, tuple(map(text, keys)), text(predicate), unique, valid, text(definition))
            for name, table, keys, predicate, unique, valid, definition in _execute(connection, _INDEXES, scope)
        },
        sequences={name: Sequence(*rest) for name, *rest in _execute(connection, _SEQUENCES, scope)},
        triggers={
            f"{table}.{name}": Trigger(table, text(definition), enabled)
            for table, name, definition, enabled in _execute(connection, _TRIGGERS, scope)
        },
        functions={
            text(name): Function(text(definition)) for name, definition in _execute(connection, _FUNCTIONS, scope)
        },
    )


def _execute(
    connection: psycopg.Connection[Any],
    query: LiteralString | bytes | sql.Composed,
    values: dict[str, Any] | None = None,
) -> list[tuple[Any, ...]]:
    # Not the connection's own cursor and row classes, which may be any.
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        cursor.execute(query, values, prepare=False)
        return cursor.fetchall() if cursor.description else []


class _TextReader:
    """Takes the schema's name, and on request that of the virtual clock, out of texts that Postgres deparsed."""

    def __init__(self, schema: str, normalise_clock: bool) -> None:
        quoted = schema if re.fullmatch(r"[a-z_][a-z0-9_]*", schema) else '"' + schema.replace('"', '""') + '"'
        prefixes = [rf"(?:{re.escape(quoted)}|pg_temp_[0-9]+)" if schema == "pg_temp" else re.escape(quoted)]
        if normalise_clock:
            prefixes.append("xjobs_time")
        names = "|".join(prefixes)
        # Literals are passed over, except where one names an object.
        self._pattern = re.compile(rf"'(?:{names})\.(?=[^']*'::regclass)|'(?:[^']|'')*'|(?<![\w\".$])(?:{names})\.")

    def __call__(self, text: Any) -> Any:
        return None if text is None else self._pattern.sub(_without_qualifier, text)


def _without_qualifier(match: re.Match[str]) -> str:
    found = match[0]
    if not found.startswith("'"):
        return ""
    return found if found.endswith("'") else "'"


# `pg_temp` is an alias, the session's own schema of that kind has a number.
_SCHEMA = """
select case when %(schema)s = 'pg_temp' then pg_my_temp_schema()
            else (select oid from pg_namespace where nspname = %(schema)s) end
"""

_TABLES = """
select c.relname::text,
       case c.relkind when 'r' then 'table' when 'p' then 'partitioned table' when 'f' then 'foreign table'
                      when 'v' then 'view' else 'materialized view' end,
       case c.relpersistence when 'p' then 'permanent' when 'u' then 'unlogged' else 'temporary' end,
       c.relrowsecurity,
       case when c.relkind in ('v', 'm') then pg_get_viewdef(c.oid) end
  from pg_class c
 where c.relnamespace = %(schema)s::oid
   and c.relkind in ('r', 'p', 'f', 'v', 'm')
   and starts_with(c.relname::text, %(prefix)s)
   and not exists (select from pg_depend e
                    where e.classid = 'pg_class'::regclass and e.objid = c.oid and e.deptype = 'e')
"""

_TYPES = """
select t.typname::text, case t.typtype when 'e' then 'enum' when 'd' then 'domain' else 'range' end,
       case when t.typtype = 'e' then array(select e.enumlabel::text from pg_enum e
                                             where e.enumtypid = t.oid order by e.enumsortorder) end
  from pg_type t
 where t.typnamespace = %(schema)s::oid
   and t.typtype in ('e', 'd', 'r')
   and starts_with(t.typname::text, %(prefix)s)
   and not exists (select from pg_depend e
                    where e.classid = 'pg_type'::regclass and e.objid = t.oid and e.deptype = 'e')
"""

_FUNCTIONS = """
select p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')', pg_get_functiondef(p.oid)
  from pg_proc p
 where p.pronamespace = %(schema)s::oid
   and p.prokind in ('f', 'p')
   and starts_with(p.proname::text, %(prefix)s)
   and not exists (select from pg_depend e
                    where e.classid = 'pg_proc'::regclass and e.objid = p.oid and e.deptype in ('e', 'i'))
"""

_COLUMNS = """
select c.relname::text, a.attname::text, format_type(a.atttypid, a.atttypmod), a.attnotnull,
       case when a.attgenerated = '' then pg_get_expr(d.adbin, d.adrelid) end,
       case a.attidentity when 'a' then 'always' when 'd' then 'by default' end,
       case when a.attgenerated <> '' then pg_get_expr(d.adbin, d.adrelid) end,
       case when a.attcollation <> t.typcollation
            then (select l.collname::text from pg_collation l where l.oid = a.attcollation) end
  from pg_attribute a
       join pg_class c on c.oid = a.attrelid
       join pg_type t on t.oid = a.atttypid
       left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
 where c.relnamespace = %(schema)s::oid
   and c.relkind in ('r', 'p', 'f', 'v', 'm')
   and starts_with(c.relname::text, %(prefix)s)
   and a.attnum > 0 and not a.attisdropped
"""

_CONSTRAINTS = """
select c.relname::text, k.conname::text, pg_get_constraintdef(k.oid), k.convalidated
  from pg_constraint k
       join pg_class c on c.oid = k.conrelid
 where c.relnamespace = %(schema)s::oid
   and starts_with(c.relname::text, %(prefix)s) and starts_with(k.conname::text, %(prefix)s)
   and k.contype <> 'n'
"""

_INDEXES = """
select i.relname::text, c.relname::text,
       array(select pg_get_indexdef(x.indexrelid, k, false)
                    || case when x.indoption[k - 1] & 1 = 1 then ' DESC' else '' end
               from generate_series(1, x.indnkeyatts) k order by k),
       pg_get_expr(x.indpred, x.indrelid), x.indisunique, x.indisvalid and x.indisready,
       regexp_replace(pg_get_indexdef(x.indexrelid), ' WITH [(][^)]*[)]', '')
  from pg_index x
       join pg_class i on i.oid = x.indexrelid
       join pg_class c on c.oid = x.indrelid
 where c.relnamespace = %(schema)s::oid
   and starts_with(c.relname::text, %(prefix)s) and starts_with(i.relname::text, %(prefix)s)
   and not exists (select from pg_constraint k where k.conindid = x.indexrelid and k.contype in ('p', 'u', 'x'))
"""

_SEQUENCES = """
select c.relname::text,
       (select o.relname || '.' || a.attname
          from pg_depend p
               join pg_class o on o.oid = p.refobjid
               join pg_attribute a on a.attrelid = p.refobjid and a.attnum = p.refobjsubid
         where p.classid = 'pg_class'::regclass and p.objid = c.oid and p.deptype in ('a', 'i')),
       format_type(s.seqtypid, null), s.seqstart, s.seqincrement, s.seqmin, s.seqmax, s.seqcycle
  from pg_sequence s
       join pg_class c on c.oid = s.seqrelid
 where c.relnamespace = %(schema)s::oid
   and starts_with(c.relname::text, %(prefix)s)
"""

_TRIGGERS = """
select c.relname::text, t.tgname::text, pg_get_triggerdef(t.oid),
       case t.tgenabled when 'O' then 'yes' when 'D' then 'no' when 'R' then 'replica' else 'always' end
  from pg_trigger t
       join pg_class c on c.oid = t.tgrelid
 where c.relnamespace = %(schema)s::oid
   and starts_with(c.relname::text, %(prefix)s) and starts_with(t.tgname::text, %(prefix)s)
   and not t.tgisinternal
"""

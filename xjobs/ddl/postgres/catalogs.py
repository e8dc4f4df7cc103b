"""Owns comparing what databases hold: all schemas of one with all schemas of another."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import psycopg

from xjobs.catalog import Catalog, Difference, read_catalog
from xjobs.ddl.postgres.places import Place, origin
from xjobs.ddl.sources import Source

__all__ = ["declared_only", "differences", "of_database", "place"]

Catalogs = Mapping[str, Catalog]


def of_database(connection: psycopg.Connection[Any]) -> Catalogs:
    """The catalog of each schema that is not Postgres' own, nor that of the test clock, by its name."""
    rows = connection.execute(
        "select nspname::text from pg_catalog.pg_namespace "
        "where nspname !~ '^pg_' and nspname not in ('information_schema', 'xjobs_time')"
    ).fetchall()
    # Whether the clock of tests is in the path must not show: it is told apart by a rule of its own.
    catalogs = {name: read_catalog(connection, name, prefix="", normalise_clock=True) for (name,) in rows}
    return {name: catalog for name, catalog in catalogs.items() if catalog != Catalog()}


def differences(found: Catalogs, expected: Catalogs) -> Iterator[Difference]:
    """What keeps the one from meaning the same as the other, schema by schema."""
    for name in sorted(found.keys() | expected.keys()):
        here, there = (_canonical(catalogs.get(name, Catalog())) for catalogs in (found, expected))
        for each in here.differences(there):
            yield each if name == "public" else Difference(each.noun, each.name, f"schema {name}: {each.text}")


# A list of constants that something is compared with. Postgres keeps its order, and it means nothing.
_ITEM: Final = re.compile(r"'(?:[^']|'')*'::[^,\]']+")
_LIST: Final = re.compile(
    rf"(?P<test>= ANY|<> ALL) (?P<open>\(+)ARRAY\[(?P<list>{_ITEM.pattern}(?:, {_ITEM.pattern})*)\]"
)


def _canonical(catalog: Catalog) -> Catalog:
    """A catalog in which what lists the same constants reads the same."""
    return replace(
        catalog,
        indexes={
            name: replace(item, predicate=_sorted(item.predicate), definition=_sorted(item.definition))
            for name, item in catalog.indexes.items()
        },
        constraints={
            name: replace(item, definition=_sorted(item.definition)) for name, item in catalog.constraints.items()
        },
    )


def _sorted(text: Any) -> Any:
    return None if text is None else _LIST.sub(_sorted_list, text)


def _sorted_list(match: re.Match[str]) -> str:
    items = sorted(set(_ITEM.findall(match["list"])))
    return f"{match['test']} {match['open']}ARRAY[{', '.join(items)}]"


def declared_only(found: Catalogs, expected: Catalogs) -> Catalogs:
    """Of a database's catalogs, what belongs to the tables that another has, and of the rest what it names."""
    return {name: _of(found.get(name, Catalog()), catalog) for name, catalog in expected.items()}


def _of(found: Catalog, expected: Catalog) -> Catalog:
    return replace(
        found.of_tables(expected.tables),
        types={name: item for name, item in found.types.items() if name in expected.types},
        functions={name: item for name, item in found.functions.items() if name in expected.functions},
        sequences={
            name: item
            for name, item in found.sequences.items()
            if name in expected.sequences or item.table in expected.tables
        },
    )


def place(sources: Sequence[Source], difference: Difference) -> Place:
    """Where in the sources the object of a difference comes from."""
    return origin(sources, difference.noun, difference.name)

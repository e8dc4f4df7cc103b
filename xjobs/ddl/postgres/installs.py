"""Owns the rules about installing: a schema gives the same again, over its earlier versions, and in a live database."""

from __future__ import annotations

from collections.abc import Iterator

from xjobs.ddl.findings import Finding
from xjobs.ddl.postgres import catalogs
from xjobs.ddl.postgres.bench import Bench, install
from xjobs.ddl.postgres.scratch import connected
from xjobs.ddl.rules.postgres import REAPPLY_CHANGES, SCHEMA_DRIFT, UPGRADE_DIFFERS

__all__ = ["reapply_changes", "schema_drift", "upgrade_differs"]


def reapply_changes(bench: Bench) -> Iterator[Finding]:
    """A second application that fails, or leaves another schema than the first."""
    with bench.server.database() as dsn:
        install(bench.ddl, dsn)
        refusal = install(bench.ddl, dsn)
        if refusal is not None:
            message = f"applied a second time it is refused: {refusal.message}"
            yield refusal.place.finding(REAPPLY_CHANGES, message)
            return
        with connected(dsn) as connection:
            twice = catalogs.of_database(connection)
    for each in catalogs.differences(twice, catalogs.of_database(bench.connection)):
        place = catalogs.place(bench.ddl, each)
        yield place.finding(REAPPLY_CHANGES, f"applied a second time it changes the schema: {each}")


def upgrade_differs(bench: Bench) -> Iterator[Finding]:
    """An earlier version over which the schema fails, or becomes another than on an empty database."""
    expected = catalogs.of_database(bench.connection)
    for version in bench.versions:
        with bench.server.database() as dsn:
            refusal = install([version], dsn)
            if refusal is not None:
                message = f"this earlier version is refused: {refusal.message}"
                yield refusal.place.finding(UPGRADE_DIFFERS, message, "record what was really released")
                continue
            refusal = install(bench.ddl, dsn)
            if refusal is not None:
                message = f"over {version.name} it is refused: {refusal.message}"
                yield refusal.place.finding(UPGRADE_DIFFERS, message)
                continue
            with connected(dsn) as connection:
                upgraded = catalogs.of_database(connection)
        for each in catalogs.differences(upgraded, expected):
            message = f"over {version.name} it gives another schema than on an empty database: {each}"
            yield catalogs.place(bench.ddl, each).finding(UPGRADE_DIFFERS, message)


def schema_drift(bench: Bench) -> Iterator[Finding]:
    """What a live database has otherwise than the schema says; tables of which the schema says nothing do not count."""
    if bench.live is None:
        return
    expected = catalogs.of_database(bench.connection)
    with connected(bench.live) as connection:
        found = catalogs.declared_only(catalogs.of_database(connection), expected)
        database = connection.info.dbname
    for each in catalogs.differences(found, expected):
        place = catalogs.place(bench.ddl, each)
        message = f"database {database} is not what it says: {each}"
        yield place.finding(SCHEMA_DRIFT, message)

"""Owns `xjobs schema`: printing the queue's tables, installing them, and checking that a database has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from xjobs.cli.database import connected, dsn_option

if TYPE_CHECKING:
    import psycopg

__all__ = ["schema"]

_LOCK_SECONDS = 10


@click.group()
def schema() -> None:
    """Print, install and check the queue's tables."""


@schema.command("print")
def print_schema() -> None:
    """Print the DDL, for a migration tool or for psql."""
    from xjobs.sql import SQL_JOBS_TABLE

    click.echo(SQL_JOBS_TABLE, nl=not SQL_JOBS_TABLE.endswith("\n"))


@schema.command("install")
@dsn_option
@click.option(
    "--lock-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=_LOCK_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for other transactions. Jobs that arrive meanwhile wait, too.",
)
def install_schema(dsn: str | None, lock_timeout: float) -> None:
    """Install or upgrade the tables, all in one transaction.

    What is there already stays, so it may be run again. It goes to the first schema of the search_path.
    """
    with connected(dsn) as (connection, target):
        with connection.transaction():
            _install(connection, lock_timeout)
            place = schema_of_queue(connection)
        click.echo(f"The queue's tables are installed in schema {place} ({target}).")


@schema.command("check")
@dsn_option
@click.pass_context
def check_schema(context: click.Context, dsn: str | None) -> None:
    """Compare the tables in a database with those this version installs.

    Exits with 0 if they are equal, with 1 if they differ, with 2 if they could not be compared. Changes nothing.
    Objects whose names do not begin with x_ are the app's and are not looked at.
    """
    from xjobs.catalog import expected_catalog, read_catalog

    with connected(dsn) as (connection, target):
        place = schema_of_queue(connection)
        differences = read_catalog(connection, place).difference(expected_catalog(connection))
    if not differences:
        click.echo(f"Schema {place} is what this version of xjobs installs ({target}).")
        return
    click.echo(f"Schema {place} is not what this version of xjobs installs ({target}):")
    for line in differences:
        click.echo(f"  {line}")
    click.echo(_remedy(differences))
    context.exit(1)


def _remedy(differences: list[str]) -> str:
    missing = [line for line in differences if line.startswith("missing ")]
    steps = []
    if missing:
        steps.append("Run `xjobs schema install` to add what is missing.")
    if len(missing) < len(differences):
        steps.append(
            "What is unexpected or differs was not made by xjobs, and install leaves it as it is: drop such an index "
            "and install again, change columns with alter table. `xjobs schema print` has the definitions."
        )
    return "\n".join(steps)


def _install(connection: psycopg.Connection[Any], lock_seconds: float) -> None:
    from xjobs.sql import SQL_JOBS_TABLE

    connection.execute("select set_config('lock_timeout', %s, true)", [f"{max(1, round(lock_seconds * 1000))}ms"])
    # `if not exists` does not keep two installers apart: both look, both create, and the second gets an error.
    connection.execute("select pg_advisory_xact_lock(hashtextextended('xjobs schema install', 0))")
    connection.execute(SQL_JOBS_TABLE.encode())


def schema_of_queue(connection: psycopg.Connection[Any]) -> str:
    """Where unqualified statements find the queue's table; if there is none, where install would make it."""
    row = connection.execute(
        """
        select coalesce((select n.nspname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
                          where c.oid = to_regclass('x_jobs')), current_schema()::text, 'public')
        """
    ).fetchone()
    assert row is not None  # noqa: S101 - a select without from has one row
    return str(row[0])

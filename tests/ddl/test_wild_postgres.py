"""The DDL of other queues on a server: no rule stumbles over it, and docs/ddl.md lists what is found.

Needs the directory that tests/ddl/test_wild.py describes.
"""

from __future__ import annotations

import re
from collections import Counter

import psycopg
import pytest

from ddl.test_wild import PAGE, TEXTS, WILD, files
from pytest_xjobs.provision import Server
from xjobs.ddl import Source
from xjobs.ddl.postgres import check_live
from xjobs.ddl.postgres.scratch import Server as ScratchServer

pytestmark = pytest.mark.skipif(not WILD, reason="XJOBS_WILD names no directory with other queues' packages")

SCHEMAS = ("procrastinate 3.10.0, schema", "pgqueuer 1.6.0, install", "oban 0.7.0, install")
INSTALLERS = {"install.sql", "uninstall.sql"}


@pytest.fixture(scope="module")
def dsn(server: Server) -> str:
    return server.dsn(server.maintenance_dbname)


def queries(name: str) -> list[Source]:
    if not name.startswith("oban"):
        return []
    found = files("oban/queries/*.sql")
    return [source for source in found if source.path is not None and source.path.name not in INSTALLERS]


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_page_lists_what_is_found(dsn: str, name: str) -> None:
    findings = check_live(dsn, TEXTS[name](), queries(name), rules=["meaning"])
    found = Counter(finding.rule for finding in findings)
    listed = ", ".join(f"{rule} {count}" for rule, count in sorted(found.items()))
    assert re.search(rf"\| {re.escape(name)} \| {listed}( \||[;:])", PAGE.read_text(encoding="utf-8")), listed


def test_migrations_of_procrastinate_make_what_its_schema_says(dsn: str) -> None:
    migrations = TEXTS["procrastinate 3.10.0, migrations"]()
    assert f"its {len(migrations)} migrations" in PAGE.read_text(encoding="utf-8")
    with ScratchServer(dsn).database() as live:
        for migration in migrations:
            with psycopg.connect(live) as connection:
                connection.execute(migration.text.encode())
        schema = TEXTS["procrastinate 3.10.0, schema"]()
        assert check_live(dsn, schema, live=live, rules=["schema-drift"]) == []
        with psycopg.connect(live) as connection:
            connection.execute("drop index procrastinate_jobs_queueing_lock_idx_v1")
        (finding,) = check_live(dsn, schema, live=live, rules=["schema-drift"])
    assert finding.text.startswith("CREATE UNIQUE INDEX procrastinate_jobs_queueing_lock_idx_v1")

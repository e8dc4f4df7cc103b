"""The shipped DDL broken in many ways: the rules that a server is asked about find each change that they are for."""

from __future__ import annotations

import pytest

from ddl.mutations import HARMFUL, HARMLESS, SCHEMA, Mutation
from ddl.test_own_schema import RELEASES
from pytest_xjobs.provision import Server
from xjobs.ddl import RULES, Source, load
from xjobs.ddl.postgres import check_live
from xjobs.ddl.postgres.queue import queue_queries
from xjobs.sql import SQL_JOBS_TABLE


@pytest.fixture(scope="module")
def dsn(server: Server) -> str:
    return server.dsn(server.maintenance_dbname)


def found(dsn: str, mutation: Mutation) -> set[str]:
    """The rules that find something in the whole: schema, statements and released versions."""
    changed = {mutation.target: mutation.apply()}
    schema = Source(SCHEMA, changed.get(SCHEMA, SQL_JOBS_TABLE))
    versions = [source for release in RELEASES for source in load(str(release))]
    findings = check_live(dsn, schema, queue_queries(changed), versions=versions, rules=["meaning"])
    return {finding.rule for finding in findings}


def postgres_rules(mutation: Mutation) -> set[str]:
    return {rule for rule in mutation.caught_by if RULES[rule].kind == "postgres"}


@pytest.mark.parametrize("mutation", [each for each in HARMFUL if postgres_rules(each)], ids=str)
def test_a_change_of_meaning_is_found_by_its_rules(dsn: str, mutation: Mutation) -> None:
    assert postgres_rules(mutation) <= found(dsn, mutation)


@pytest.mark.parametrize("mutation", HARMLESS, ids=str)
def test_a_change_that_means_nothing_is_not_found(dsn: str, mutation: Mutation) -> None:
    assert found(dsn, mutation) == set()

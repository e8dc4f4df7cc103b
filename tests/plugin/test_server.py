"""`xjobs_server`: the plugin's server for users of pytest-postgresql."""

from __future__ import annotations

from inner_run import Inner

CONFTEST = """
import psycopg
from pytest_postgresql import factories

postgresql = factories.postgresql("xjobs_server")

def pytest_xjobs_database_setup(dsn):
    with psycopg.connect(dsn) as connection:
        connection.execute("create table orders (id int, at timestamptz default now())")
"""
TESTS = """
import pytest

@pytest.mark.parametrize("again", [1, 2])
def test_a_clone_of_the_template_per_test(postgresql, again):
    assert postgresql.execute("select count(*) from orders").fetchone() == (0,)
    assert postgresql.execute("select count(*) from x_jobs").fetchone() == (0,)
    postgresql.execute("insert into orders values (1)")
    postgresql.commit()

def test_beside_the_queue(postgresql, xjobs_queue, xjobs_dsn):
    assert postgresql.info.dbname not in xjobs_dsn
"""


def test_client_fixtures_of_pytest_postgresql_clone_our_template(inner: Inner) -> None:
    inner.pytester.makeconftest(CONFTEST)
    inner.file(TESTS)
    inner.subprocess(inner.pg).assert_outcomes(passed=3)


def test_each_worker_has_its_own_with_xdist(inner: Inner) -> None:
    inner.pytester.makeconftest(CONFTEST)
    inner.file(TESTS)
    inner.subprocess(inner.pg, "-n", "2").assert_outcomes(passed=3)

"""Transactions that are open around a test, as Django's TestCase holds them: neither named as leaks nor ended."""

from __future__ import annotations

from inner_run import Inner

APP = """
import xjobs

@xjobs.job(key="{number}")
def note(number: int): ...
"""
HELD = """
import datetime, psycopg, pytest
from app import note

@pytest.fixture(scope="module")
def held(xjobs_session_dsn):
    with psycopg.connect(xjobs_session_dsn) as connection:
        connection.execute("create temp table t (n int)")
        yield connection
        assert connection.execute("select count(*) from t").fetchone() == (2,)
        connection.rollback()

@pytest.mark.parametrize("number", [1, 2])
def test_it(held, xjobs_queue, xjobs_clock, number):
    assert xjobs_queue.jobs() == []
    xjobs_clock.move_to(datetime.datetime(2001 + number, 1, 1, tzinfo=datetime.UTC))
    held.execute("insert into t values (1)")
    note.using(connection=held).enqueue(number=number)
    note.enqueue(number=number + 10)
    assert len(xjobs_queue.drain().runs) == 1
"""
DJANGO = """
import pytest
from django.conf import settings
from django.db import connection, connections
from django.test import TestCase
from psycopg.conninfo import conninfo_to_dict

from app import note

@pytest.fixture(scope="session", autouse=True)
def django(xjobs_session_dsn):
    given = conninfo_to_dict(xjobs_session_dsn)
    settings.configure(DATABASES={"default": {
        "ENGINE": "django.db.backends.postgresql", "NAME": given["dbname"],
        **{key.upper(): given.get(key, "") for key in ("user", "password", "host", "port")},
    }})
    import django
    django.setup()
    yield
    connections.close_all()

@pytest.fixture(autouse=True)
def queue(xjobs_queue, request):
    request.instance.queue = xjobs_queue

class Tests(TestCase):
    databases = {"default"}

    def look(self):
        with connection.cursor() as cursor:
            cursor.execute("select count(*) from x_jobs")
            assert cursor.fetchone() == (0,)

    def test_1(self):
        self.look()
        note.using(connection=connection).enqueue(number=1)
        self.queue.assert_not_enqueued(note)

    def test_2(self):
        self.look()
        note.enqueue(number=1)
        assert len(self.queue.drain().runs) == 1

    def test_3(self):
        self.look()
"""


def test_a_transaction_that_is_older_than_the_test_is_left_alone(inner: Inner) -> None:
    inner.file(APP, name="app")
    inner.file(HELD)
    inner.run(inner.pg).assert_outcomes(passed=2)


def test_one_that_the_test_opens_beside_it_is_ended(inner: Inner) -> None:
    inner.file(APP, name="app")
    inner.file(
        HELD
        + """
leaked = []

def test_that_leaks(held, xjobs_queue, xjobs_dsn, xjobs_clock):
    xjobs_clock.move_to(datetime.datetime(1999, 1, 1, tzinfo=datetime.UTC))
    leaked.append(psycopg.connect(xjobs_dsn))
    leaked[0].execute("select 'the leaked statement'")

def test_after(xjobs_queue):
    with pytest.raises(psycopg.OperationalError):
        leaked[0].execute("select 1")
    leaked[0].close()
"""
    )
    result = inner.run(inner.pg, "-W", "default::pytest.PytestWarning")
    result.assert_outcomes(passed=4, warnings=1)
    result.stdout.fnmatch_lines("*pid *, idle in transaction for * s, last statement: select 'the leaked statement'")


def test_the_atomic_block_of_a_django_test_class_survives_its_tests(inner: Inner) -> None:
    inner.file(APP, name="app")
    inner.file(DJANGO)
    # In a process of its own, since Django is set up once in each.
    inner.subprocess(inner.pg, "-p", "no:django").assert_outcomes(passed=3)


def test_session_fixtures_know_the_backends_and_the_database(inner: Inner) -> None:
    inner.file(
        """
        import pytest

        @pytest.fixture(scope="session")
        def known(xjobs_backends, xjobs_session_dsn):
            return xjobs_backends, xjobs_session_dsn

        def test_it(known, xjobs_queue):
            backends, dsn = known
            assert {"memory": "memory", "postgres": "pg"}[xjobs_queue.backend] in backends
            assert (dsn is None) == (backends == ("memory",))
            assert xjobs_queue.dsn in (None, dsn)
        """
    )
    inner.run().assert_outcomes(passed=1)
    inner.run(inner.pg).assert_outcomes(passed=1)
    inner.run(*inner.both).assert_outcomes(passed=2)

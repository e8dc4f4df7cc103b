"""What a failing test's report says besides: on which backend and at which time it failed, and what is uncommitted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from inner_run import Inner

from pytest_xjobs.environment import Environment
from pytest_xjobs.queue import XjobsQueue
from xjobs import job

APP = """
from datetime import UTC, datetime
import xjobs

@xjobs.job(key="{number}")
def note(number: int): ...

def test_fails(xjobs_queue, xjobs_clock):
    xjobs_clock.move_to(datetime(2030, 1, 2, tzinfo=UTC))
    assert False

def test_passes(xjobs_queue):
    note.enqueue(number=1)

def test_has_no_queue():
    assert False
"""


@pytest.mark.parametrize("backend", ["memory", "pg"])
def test_a_failure_says_where_and_when_it_was_and_how_to_repeat_it(inner: Inner, backend: str) -> None:
    inner.pytester.makepyfile(APP)
    arguments = ["--xjobs-seed=7"] + ([inner.pg] if backend == "pg" else [])
    result = inner.run(*arguments)
    result.assert_outcomes(failed=2, passed=1)
    result.stdout.fnmatch_lines(
        [
            "*- xjobs -*",
            f"backend {backend}, the clock shows 2030-01-02T00:00:00+00:00",
            "--xjobs-seed=7 repeats the jitter of retries",
        ]
    )
    assert result.stdout.str().count("- xjobs -") == 1, "only a failed test that used the queue"


def test_an_uncommitted_enqueue_is_pointed_out(xjobs_environment: Environment, tmp_path: Path) -> None:
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session

    dsn = xjobs_environment.dsn
    engine = create_engine(
        f"sqlite:///{tmp_path}/app.db" if dsn is None else dsn.replace("postgresql://", "postgresql+psycopg://")
    )

    @job(key="{number}")
    def note(number: int) -> None: ...

    with XjobsQueue.in_use(xjobs_environment) as queue, Session(engine) as session:
        made = note.using(connection=session).enqueue(number=1)
        with pytest.raises(AssertionError, match=r"no enqueue has been committed\n.*not been committed"):
            queue.assert_enqueued(note)
        for claim in (
            lambda: queue.assert_enqueued(note, count=1),
            lambda: queue.assert_state(made, "done"),
            lambda: queue.assert_ran(note),
            lambda: queue.assert_ran(note, count=1),
        ):
            with pytest.raises(AssertionError, match=r"\n  .*not been committed"):
                claim()
        with pytest.raises(AssertionError, match="0 live jobs") as refused:
            queue.assert_enqueued(note, count=1)
        assert "Django" not in str(refused.value)
        session.commit()
        queue.assert_enqueued(note)
        with pytest.raises(AssertionError, match="job is ready") as refused:
            queue.assert_state(made, "done")
        assert "not been committed" not in str(refused.value)
    engine.dispose()


IN_ATOMIC = """
import pytest, xjobs
from django.conf import settings
from django.db import connection, transaction
from psycopg.conninfo import conninfo_to_dict

@xjobs.job(key="{number}")
def note(number: int): ...

@pytest.fixture(scope="session", autouse=True)
def django(xjobs_session_dsn):
    options = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    if xjobs_session_dsn is not None:
        given = conninfo_to_dict(xjobs_session_dsn)
        options = {key.upper(): given.get(key, "") for key in ("user", "password", "host", "port")}
        options |= {"ENGINE": "django.db.backends.postgresql", "NAME": given["dbname"]}
    settings.configure(DATABASES={"default": options})
    import django
    django.setup()
    yield
    connection.close()

def test_it(xjobs_queue):
    with transaction.atomic():
        note.using(connection=connection).enqueue(number=1)
        with pytest.raises(AssertionError) as refused:
            xjobs_queue.assert_enqueued(note)
    first, second = str(refused.value).splitlines()[-2:]
    assert "not been committed" in first
    assert second == (
        "    it is the atomic block of Django's connection 'default', which never commits under db and TestCase: use"
        " transactional_db or TransactionTestCase"
    )
"""


@pytest.mark.parametrize("backend", ["memory", "pg"])
def test_an_atomic_block_of_django_is_named(inner: Inner, backend: str) -> None:
    inner.file(IN_ATOMIC)
    arguments = [inner.pg] if backend == "pg" else []
    # In a process of its own, since Django is set up once in each.
    inner.subprocess("-p", "no:django", *arguments).assert_outcomes(passed=1)


UNITTEST = """
import pytest, unittest, xjobs

@pytest.fixture(autouse=True)
def queue(request, xjobs_queue):
    if request.instance is not None:
        request.instance.queue = xjobs_queue

class Tests(unittest.TestCase):
    def test_one(self):
        assert self.queue.backend == "memory"

    def test_two(self): ...

    @unittest.skip("later")
    def test_three(self): ...

@pytest.mark.xjobs(backend="memory")
class OnMemory(unittest.TestCase):
    def test_four(self): ...

def test_a_function(): ...
"""


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["alone", "xdist"])
def test_unittest_tests_that_ran_on_one_backend_are_counted(inner: Inner, workers: tuple[str, ...]) -> None:
    inner.file(UNITTEST)
    result = inner.subprocess(*inner.both, *workers)
    result.assert_outcomes(passed=5, skipped=1)
    result.stdout.fnmatch_lines(
        "xjobs: 2 unittest tests ran on memory only, since pytest runs methods of a unittest.TestCase once: run them"
        " with --xjobs-backend=memory and with --xjobs-backend=pg"
    )
    assert "unittest tests ran" not in inner.run().stdout.str()


def test_the_unrelated_package_of_our_import_name_is_named(tmp_path: Path) -> None:
    installed = tmp_path / "site" / "xjobs-9.9.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: xjobs\nVersion: 9.9\n")
    (tmp_path / "test_it.py").write_text("def test_it(xjobs_queue): ...\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    ran = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(installed.parent)}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1, ran.stdout
    assert "the unrelated package xjobs 9.9 is installed in" in ran.stdout
    assert "pip uninstall xjobs && pip install --force-reinstall pytest-xjobs" in ran.stdout

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
        note.using(connection=session).enqueue(number=1)
        with pytest.raises(AssertionError, match=r"no enqueue has been committed\n.*not been committed"):
            queue.assert_enqueued(note)
        session.commit()
        queue.assert_enqueued(note)
    engine.dispose()


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

"""What the plugin costs a run that does not use it, and an app module that only declares jobs: no heavy import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from inner_run import Inner

HEAVY = {
    "psycopg",
    "psycopg_pool",
    "hypothesis",
    "sqlparse",
    "freezegun",
    "msgspec",
    "asyncio",
    "cronsim",
    "click",
    "rich",
}

# Plugins of this environment that bring in one of them on their own.
ALONE = [
    f"-pno:{name}"
    for name in (
        "anyio",
        "asyncio",
        "cacheprovider",
        "faker",
        "freezer",
        "hypothesispytest",
        "logging",
        "postgresql",
        "pytest_cov",
        "randomly",
        "time_machine",
        "xdist",
        "xdist.looponfail",
    )
]
REPORT = """
import atexit, json, os, sys

@atexit.register
def _report():
    with open(os.environ["MODULES"], "w") as file:
        json.dump(sorted(sys.modules), file)
"""
TESTS = """
import pytest

@pytest.fixture
def number():
    return 1

def test_passing(number):
    assert number

@pytest.mark.parametrize("n", range(3))
def test_failing(number, n):
    assert number == 0
"""


def modules(inner: Inner, monkeypatch: pytest.MonkeyPatch, *args: str) -> set[str]:
    """What is imported when the process of an inner run ends."""
    file = inner.pytester.path / "modules.json"
    monkeypatch.setenv("MODULES", str(file))
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *ALONE, *args],
        cwd=inner.pytester.path,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "passed" in result.stdout, result.stdout + result.stderr
    return set(json.loads(file.read_text()))


def tops(names: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


@pytest.fixture
def quiet(inner: Inner) -> Inner:
    inner.pytester.makeini("[pytest]\n")
    inner.file(REPORT, name="conftest")
    return inner


def test_a_run_without_our_fixtures_imports_nothing_heavy(quiet: Inner, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet.file(TESTS)
    without = modules(quiet, monkeypatch, "-pno:xjobs")
    # Otherwise the comparison would not see it.
    assert not tops(without) & HEAVY
    with_plugin = modules(quiet, monkeypatch)
    assert "pytest_xjobs.plugin" in with_plugin
    assert not tops(with_plugin) & HEAVY
    # Nor anything else that is not ours, nor the queue itself.
    assert tops(with_plugin - without) == {"pytest_xjobs"}


@pytest.mark.parametrize("option", ["--xjobs-pg", "--xjobs-seed=1", "-v", "--help"])
def test_nor_do_options(quiet: Inner, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    quiet.file(TESTS + "# passed: the help has no outcome\n")
    if option == "--help":
        monkeypatch.setenv("MODULES", str(quiet.pytester.path / "modules.json"))
        subprocess.run([sys.executable, "-m", "pytest", *ALONE, option], cwd=quiet.pytester.path, check=True, stdout=-3)
        names = set(json.loads((quiet.pytester.path / "modules.json").read_text()))
    else:
        names = modules(quiet, monkeypatch, option)
    assert not tops(names) & HEAVY


def test_a_test_in_memory_that_uses_the_queue_imports_no_database_and_freezes_nothing(
    quiet: Inner, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet.file(
        """
        import xjobs

        @xjobs.job(key=xjobs.NO_KEY)
        def note(number: int): ...

        def test_it(xjobs_queue):
            note.enqueue(number=1)
            assert len(xjobs_queue.drain().runs) == 1
        """
    )
    assert not tops(modules(quiet, monkeypatch)) & {"psycopg", "hypothesis", "sqlparse", "freezegun", "cronsim"}


def test_ddl_checks_of_the_text_import_no_database(quiet: Inner, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet.pytester.makeini("[pytest]\nxjobs_ddl = schema.sql\nxjobs_ddl_rules = types clock split install")
    (quiet.pytester.path / "schema.sql").write_text("create table if not exists a (id bigint primary key);\n")
    loaded = modules(quiet, monkeypatch, "--xjobs-ddl")
    assert "pytest_xjobs.ddl.items" in loaded
    assert not tops(loaded) & HEAVY
    quiet.file(TESTS)
    assert not {name for name in modules(quiet, monkeypatch) if name.startswith(("pytest_xjobs.ddl", "xjobs.ddl"))}


def test_an_app_module_that_declares_jobs_imports_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        """
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID
import xjobs
from xjobs import AsyncContext, Context, Retry, job

@dataclass
class Address:
    street: str

@job(key="welcome:{user_id}", queue="mail", retry=5, tenant=lambda user_id: "t")
def welcome(ctx: Context, user_id: int, at: datetime | None = None, to: Address | None = None): ...

@job(key=lambda order_id: str(order_id), retry=Retry(attempts=8, backoff="linear", delay=timedelta(minutes=1)))
async def ship(ctx: AsyncContext, order_id: UUID): ...

later = welcome.using(delay=timedelta(hours=1))
"""
    )
    code = "import sys, app; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    loaded = set(result.stdout.split())
    assert "xjobs" in loaded
    assert not loaded & (HEAVY | {"pytest", "pytest_xjobs"})

"""`xjobs worker`: what it takes, and how it says that it cannot begin. What it does is in tests/worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner, Result

from xjobs.cli import command
from xjobs.sql import SQL_JOBS_TABLE

GOOD = """
import xjobs

@xjobs.job(key=xjobs.NO_KEY, queue="mail")
async def send() -> None: ...
"""


@pytest.fixture(autouse=True)
def _no_database_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in list(os.environ):
        if variable in ("XJOBS_DSN", "DATABASE_URL") or variable.startswith("PG"):
            monkeypatch.delenv(variable)


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with an app, to be worked in."""
    (tmp_path / "goodapp.py").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["worker", *arguments], prog_name="xjobs")


def assert_failed(result: Result, *parts: str) -> None:
    assert result.exit_code == 2, result.output
    for part in parts:
        assert part in result.output
    assert "xjobs/cli" not in result.output, "our own code is in the message"


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("nosuchapp", ["no module 'nosuchapp'", "PYTHONPATH"]),
        ("goodapp.jobs", ["no module 'goodapp.jobs'"]),
        ("nosuchapp:app", ["no module 'nosuchapp'"]),
        ("goodapp:snd", ["module 'goodapp' has no attribute 'snd'", "did you mean 'send'"]),
        ("goodapp:", ["--app is 'goodapp:'", "module:attribute"]),
        ("", ["--app is ''"]),
        ("good app", ["--app is 'good app'"]),
        ("../goodapp.py", ["--app is '../goodapp.py'"]),
    ],
)
def test_an_app_that_is_not_there(app: Path, path: str, parts: list[str]) -> None:
    assert_failed(run("--app", path), *parts)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("import xjobs\n\ndef f():\n    raise ValueError('boo')\n\nf()\n", ["ValueError: boo", "line 4, in f"]),
        ("import nosuchlibrary\n", ["No module named 'nosuchlibrary'", "line 1"]),
        ("def\n", ["SyntaxError", "badapp.py"]),
        (GOOD + GOOD.replace("queue", "retry=0, queue"), ["retry"]),
    ],
)
def test_an_app_that_raises_is_shown_with_its_own_traceback(app: Path, text: str, parts: list[str]) -> None:
    (app / "badapp.py").write_text(text)
    result = run("--app", "badapp")
    assert_failed(result, "badapp raised", *parts)
    assert "importlib" not in result.output


def test_a_factory_that_raises_is_shown_the_same(app: Path) -> None:
    (app / "factory.py").write_text(GOOD + "\ndef make():\n    raise KeyError('config')\n")
    assert_failed(run("--app", "factory:make"), "factory:make raised", "KeyError: 'config'", "in make")


def test_an_app_without_jobs(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from xjobs import registry

    monkeypatch.setattr(registry, "_jobs", {})
    (app / "empty.py").write_text("")
    assert_failed(run("--app", "empty"), "importing empty declared no job")


def test_no_app() -> None:
    result = run()
    assert result.exit_code == 2
    assert "--app" in result.output


@pytest.mark.parametrize("slots", ["0", "-1", "x", "1.5", "mail=", "=3", "mail=x", "3,mail=4", "mail=0"])
def test_slots_that_cannot_be(app: Path, slots: str) -> None:
    result = run("--app", "goodapp", "--concurrency", slots)
    assert result.exit_code == 2
    assert "--concurrency" in result.output


def test_slots_for_a_queue_that_is_not_served(app: Path, database_dsn: str) -> None:
    _install(database_dsn)
    result = run("--app", "goodapp", "--queues", "mail", "--concurrency", "post=3", "--dsn", database_dsn)
    assert_failed(result, "queue 'post', which is not served")


def test_no_database_is_named(app: Path) -> None:
    assert_failed(run("--app", "goodapp"), "no database is named", "XJOBS_DSN")


def test_a_dsn_that_cannot_be_read_is_not_repeated(app: Path) -> None:
    result = run("--app", "goodapp", "--dsn", "postgres//me:s3cr3t@host/name")
    assert_failed(result, "--dsn is not a connection string")
    assert "s3cr3t" not in result.output


def test_a_database_that_does_not_answer(app: Path) -> None:
    assert_failed(run("--app", "goodapp", "--dsn", "postgresql://localhost:1/x"), "no connection", "port 1")


def test_a_schema_that_is_missing_or_older(app: Path, database_dsn: str) -> None:
    with psycopg.connect(database_dsn, autocommit=True) as admin:
        admin.execute("create database worker_case")
        try:
            dsn = database_dsn.replace("dbname=postgres", "dbname=worker_case")
            remedy = "run `xjobs schema install`"
            assert_failed(run("--app", "goodapp", "--dsn", dsn), "schema is missing or older", "x_jobs", remedy)
            with psycopg.connect(dsn, autocommit=True) as older:
                older.execute(SQL_JOBS_TABLE.encode())
                older.execute("alter table x_jobs drop column claims")
            assert_failed(run("--app", "goodapp", "--dsn", dsn), "missing column", "claims", remedy)
        finally:
            admin.execute("drop database worker_case with (force)")


def _install(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SQL_JOBS_TABLE.encode())


def test_it_says_what_it_serves_and_reports_a_queue_that_nothing_declares_once(app: Path, database_dsn: str) -> None:
    _install(database_dsn)
    options = ["--queues", "mail,typo", "--queues", "mail", "--concurrency", "mail=3"]
    lines: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-m", "xjobs.cli", "worker", "--app", "goodapp:send", *options],
        env={**os.environ, "DATABASE_URL": database_dsn, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if "jobs.wake.live" in line:
                process.terminate()
        assert process.wait(20) == 0
    text = "".join(lines)
    assert "queue mail, 3 slots: send" in text
    assert "queue typo, 8 slots: no declared job" in text
    assert text.count("jobs.worker.queue-unregistered queue=typo") == 1
    assert "jobs.worker.stopped" in text


@pytest.mark.parametrize(("own", "seen"), [("", [True, 5_000]), ("import gc; gc.set_threshold(900)", [False, 900])])
def test_the_collector_is_spared_unless_the_app_has_settled_it(
    app: Path, database_dsn: str, own: str, seen: list[object]
) -> None:
    (app / "gcapp.py").write_text(
        f"""
import gc, json, os, signal, xjobs
{own}

@xjobs.job(key=xjobs.NO_KEY)
async def tell() -> None:
    print("collector", json.dumps([gc.get_freeze_count() > 0, gc.get_threshold()[0]]), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
"""
    )
    _install(database_dsn)
    with psycopg.connect(database_dsn, autocommit=True) as connection:
        connection.execute(
            "insert into x_jobs (id, name, queue, input, idempotency_key, run_id)"
            " values (gen_random_uuid(), 'tell', 'default', '{}', gen_random_uuid()::text, gen_random_uuid())"
        )
    ran = subprocess.run(
        [sys.executable, "-m", "xjobs.cli", "worker", "--app", "gcapp", "--dsn", database_dsn],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert f"collector {json.dumps(seen)}" in ran.stdout, ran.stderr
    assert ran.returncode == 0


def test_an_event_loop_that_is_not_installed(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert_failed(run("--app", "goodapp", "--loop", "uvloop"), "uvloop, which is not installed", "pytest-xjobs[uvloop]")


def test_an_app_that_would_have_to_be_awaited(app: Path) -> None:
    """It was called and never awaited, and the worker began without what it sets up."""
    (app / "asyncapp.py").write_text("async def setup() -> None: ...")
    assert_failed(run("--app", "asyncapp:setup"), "asyncapp:setup is an async def function")


@pytest.mark.parametrize("given", ["", ",", " , "])
def test_queues_that_are_none(app: Path, given: str) -> None:
    """What a variable of the shell that is not set leaves: it served every queue."""
    assert_failed(run("--app", "goodapp", "--queues", given), "names no queue")

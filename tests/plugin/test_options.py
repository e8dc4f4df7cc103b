"""The plugin's options: their three places, which of them wins, what the header says, and what is refused."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from inner_run import IN_PROCESS, Inner

from pytest_xjobs.options import read_options

DSN = "postgresql://nobody@127.0.0.1:1/none"

# Option, the attribute that holds it, its text in three places (command line, environment, ini), what each becomes.
VALUED: list[tuple[str, str, tuple[str, str, str], tuple[Any, Any, Any]]] = [
    ("backend", "backends", ("memory,pg", "pg", "memory"), (("memory", "pg"), ("pg",), ("memory",))),
    ("dsn", "dsn", (f"{DSN}1", f"{DSN}2", f"{DSN}3"), (f"{DSN}1", f"{DSN}2", f"{DSN}3")),
    ("isolation", "isolation", ("database", "delete", "database"), ("database", "delete", "database")),
    ("reset", "reset", ("truncate", "none", "delete"), ("truncate", "none", "delete")),
    ("keep", "keep", ("a,b", "c d_*", "e"), (("a", "b"), ("c", "d_*"), ("e",))),
    ("seed", "seed", ("7", "8", "9"), (7, 8, 9)),
    ("drain_budget", "drain_budget", ("7", "8", "9"), (7, 8, 9)),
]
IDS = [row[0] for row in VALUED]
BAD = [
    ("backend", "redis", "name one or both of memory, pg"),
    ("backend", ",", "name one or both of memory, pg"),
    ("backend", "memory;pg", "name one or both of memory, pg"),
    ("isolation", "rollback", "name one of delete, database"),
    ("reset", "drop", "name one of delete, truncate, none"),
    ("seed", "-1", "give a whole number from 0"),
    ("seed", "0x10", "give a whole number from 0"),
    ("drain_budget", "0", "give a whole number from 1"),
    ("drain_budget", "many", "give a whole number from 1"),
]


@pytest.fixture
def configure(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Reads the options of a run with the given arguments, environment and ini lines."""
    for name in ("PYTEST_ADDOPTS", "XJOBS_BACKEND", "XJOBS_DSN", "XJOBS_PG"):
        monkeypatch.delenv(name, raising=False)

    def configure(*args: str, ini: str = "", **environ: str) -> Any:
        pytester.makeini(f"[pytest]\n{ini}")
        config = pytester.parseconfig(*IN_PROCESS, *args)
        return read_options(config, environ)

    return configure


def option(name: str) -> str:
    return f"--xjobs-{name.replace('_', '-')}"


@pytest.mark.parametrize(("name", "field", "texts", "values"), VALUED, ids=IDS)
def test_the_command_line_beats_the_environment_which_beats_the_ini_file(
    configure: Any, name: str, field: str, texts: tuple[str, str, str], values: tuple[Any, Any, Any]
) -> None:
    argument, environ, ini = (
        f"{option(name)}={texts[0]}",
        {f"XJOBS_{name.upper()}": texts[1]},
        f"xjobs_{name}={texts[2]}",
    )

    def read(*args: str, **kwargs: str) -> tuple[Any, str]:
        setting = getattr(configure(*args, **kwargs), field)
        return setting.value, setting.source

    assert read(argument, ini=ini, **environ) == (values[0], "command line")
    assert read(ini=ini, **environ) == (values[1], "environment")
    assert read(ini=ini) == (values[2], "ini")
    assert read()[1] == "default"


@pytest.mark.parametrize(
    ("args", "ini", "environ", "backends"),
    [
        (["--xjobs-pg"], "", {}, (("pg",), "command line")),
        ([], "", {"XJOBS_PG": "1"}, (("pg",), "environment")),
        ([], "xjobs_pg = true", {}, (("pg",), "ini")),
        ([], "", {"XJOBS_PG": "off"}, (("memory",), "environment")),
        (["--xjobs-pg"], "xjobs_backend = memory", {"XJOBS_BACKEND": "memory"}, (("pg",), "command line")),
        ([], "xjobs_pg = true", {"XJOBS_PG": "false"}, (("memory",), "environment")),
        ([], "xjobs_pg = true", {"XJOBS_BACKEND": "memory"}, (("memory",), "environment")),
        (["--xjobs-backend=memory"], "xjobs_pg = true", {"XJOBS_PG": "1"}, (("memory",), "command line")),
        (["--xjobs-pg", "--xjobs-backend=memory,pg"], "", {}, (("memory", "pg"), "command line")),
        (["--xjobs-backend=pg,memory"], "", {}, (("pg", "memory"), "command line")),
        (["--xjobs-backend=memory, memory"], "", {}, (("memory",), "command line")),
        # A server that is named on the command line is wanted; one in the environment is there in case.
        ([f"--xjobs-dsn={DSN}"], "xjobs_pg = false", {"XJOBS_BACKEND": "memory"}, (("pg",), "--xjobs-dsn")),
        ([], "", {"XJOBS_DSN": DSN}, (("memory",), "default")),
        ([], "", {"XJOBS_BACKEND": "", "XJOBS_PG": ""}, (("memory",), "default")),
    ],
)
def test_which_backends_a_run_uses(
    configure: Any, args: list[str], ini: str, environ: dict[str, str], backends: tuple[tuple[str, ...], str]
) -> None:
    setting = configure(*args, ini=ini, **environ).backends
    assert (setting.value, setting.source) == backends


@pytest.mark.parametrize(
    ("args", "ini", "environ", "source"),
    [
        (["--xjobs-pg", "--xjobs-backend=memory"], "", {}, "command line"),
        ([], "", {"XJOBS_PG": "1", "XJOBS_BACKEND": "memory"}, "environment"),
        ([], "xjobs_pg = true\nxjobs_backend = memory", {}, "ini"),
    ],
)
def test_one_place_that_asks_for_both_kinds_is_refused(
    configure: Any, args: list[str], ini: str, environ: dict[str, str], source: str
) -> None:
    with pytest.raises(pytest.UsageError) as refused:
        configure(*args, ini=ini, **environ)
    assert str(refused.value) == f"xjobs: {source} asks for Postgres and for backend=memory: leave one of them out"


@pytest.mark.parametrize(("name", "text", "remedy"), BAD)
def test_a_bad_value_names_itself_its_place_and_the_remedy(configure: Any, name: str, text: str, remedy: str) -> None:
    for source, args, environ in (
        ("command line", [f"{option(name)}={text}"], {}),
        ("environment", [], {f"XJOBS_{name.upper()}": text}),
    ):
        with pytest.raises(pytest.UsageError) as refused:
            configure(*args, **environ)
        assert str(refused.value) == f"xjobs: {source} sets {name} to {text!r}: {remedy}"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("xjobs_backend = redis", "xjobs: ini sets backend to 'redis': name one or both of memory, pg"),
        ("xjobs_isolation = rollback", "xjobs: ini sets isolation to 'rollback': name one of delete, database"),
        ("xjobs_seed = -1", "xjobs: ini sets seed to -1: give a whole number from 0"),
        ("xjobs_seed = many", r"xjobs: ini sets seed: .*'many': give a whole number"),
        ("xjobs_drain_budget = 0", "xjobs: ini sets drain_budget to 0: give a whole number from 1"),
        ("xjobs_pg = maybe", "xjobs: ini sets pg: invalid truth value 'maybe': give true or false"),
    ],
)
def test_a_bad_ini_value_is_named_too(configure: Any, line: str, message: str) -> None:
    with pytest.raises(pytest.UsageError) as refused:
        configure(ini=line)
    assert re.fullmatch(message, str(refused.value))


def test_a_bad_flag_in_the_environment(configure: Any) -> None:
    with pytest.raises(pytest.UsageError, match=r"^xjobs: environment sets pg to 'maybe': give true or false$"):
        configure(XJOBS_PG="maybe")


def test_toml_tables_hold_values_of_their_own_types(pytester: pytest.Pytester) -> None:
    pytester.path.joinpath("pyproject.toml").write_text(
        '[tool.pytest]\nxjobs_pg = true\nxjobs_seed = 3\nxjobs_drain_budget = 5\nxjobs_isolation = "database"\n'
    )
    options = read_options(pytester.parseconfig(*IN_PROCESS), {})
    assert (options.backends.value, options.seed.value, options.drain_budget.value) == (("pg",), 3, 5)
    assert {options.backends.source, options.seed.source, options.isolation.source} == {"ini"}


# In whole runs -------------------------------------------------------------------------------------------------------


def test_a_bad_value_ends_the_run_with_one_line(inner: Inner) -> None:
    inner.file("def test_nothing(): pass")
    result = inner.run("--xjobs-backend=redis")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        "ERROR: xjobs: command line sets backend to 'redis': name one or both of memory, pg", consecutive=True
    )
    assert "Traceback" not in result.stderr.str()


@pytest.mark.parametrize(
    ("args", "ini", "environ", "header"),
    [
        ([], "", {}, None),
        (["-v"], "", {}, r"xjobs: backend=memory \(default\), seed=\d+"),
        (["--xjobs-backend=memory"], "", {}, r"xjobs: backend=memory \(command line\), seed=\d+"),
        ([], "xjobs_pg = true", {}, r"xjobs: backend=pg \(ini\), seed=\d+"),
        ([], "", {"XJOBS_BACKEND": "memory,pg"}, r"xjobs: backend=memory,pg \(environment\), seed=\d+"),
        ([f"--xjobs-dsn={DSN}"], "", {}, r"xjobs: backend=pg \(--xjobs-dsn\), dsn=given \(command line\), seed=\d+"),
        ([], "", {"XJOBS_SEED": "4"}, r"xjobs: backend=memory \(default\), seed=4 \(environment\)"),
        (
            ["--xjobs-isolation=database"],
            "xjobs_reset = truncate\nxjobs_keep = a, b\nxjobs_drain_budget = 7",
            {},
            (
                r"xjobs: backend=memory \(default\), isolation=database \(command line\), reset=truncate \(ini\), "
                r"keep=a,b \(ini\), drain_budget=7 \(ini\), seed=\d+"
            ),
        ),
    ],
)
def test_the_header_names_each_setting_with_its_source(
    inner: Inner,
    monkeypatch: pytest.MonkeyPatch,
    args: list[str],
    ini: str,
    environ: dict[str, str],
    header: str | None,
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    inner.ini(ini)
    inner.file("def test_nothing(): pass")
    result = inner.run(*args)
    result.assert_outcomes(passed=1)
    found = [line for line in result.outlines if line.startswith("xjobs:")]
    assert found == [] if header is None else len(found) == 1 and re.fullmatch(header, found[0])


def test_the_password_of_a_dsn_is_not_in_the_header(inner: Inner) -> None:
    inner.file("def test_nothing(): pass")
    inner.run("--xjobs-dsn=postgresql://me:hunter2@127.0.0.1:1/none").stdout.no_fnmatch_line("*hunter2*")


def test_every_option_and_ini_key_is_in_the_help(inner: Inner) -> None:
    text = inner.run("--help").stdout.str()
    for name in (*IDS, "pg"):
        assert f"{option(name)}" in text
        assert re.search(rf"^  xjobs_{name} \(", text, re.MULTILINE)


USES_THE_QUEUE = """
import xjobs

@xjobs.job(key=xjobs.NO_KEY)
def nothing(): ...

def test_one(xjobs_queue): nothing.enqueue()
def test_two(xjobs_queue): nothing.enqueue()
"""


def test_postgres_that_is_not_there_is_an_error_and_never_memory(
    inner: Inner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XJOBS_PG_BIN", str(tmp_path))
    inner.file(USES_THE_QUEUE)
    result = inner.subprocess("--xjobs-pg")
    result.assert_outcomes(errors=2)
    lines = result.stdout.lines
    start = lines.index("xjobs: no PostgreSQL server found; looked at:")
    assert lines[start + 1] == f"  - XJOBS_PG_BIN: {tmp_path}"
    assert lines[start + 2] == (
        "Name with XJOBS_PG_BIN the directory that has the programs `postgres` and `initdb`, or leave it out, or name a"
        " running server with `--xjobs-dsn=postgresql://...`."
    )
    result.stdout.no_fnmatch_line("*provision/*.py*")  # where we noticed is not where the mistake is


def test_with_workers_the_missing_server_ends_the_run_with_one_message(
    inner: Inner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XJOBS_PG_BIN", str(tmp_path))
    inner.file(USES_THE_QUEUE)
    result = inner.subprocess("--xjobs-pg", "-n1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: xjobs: no PostgreSQL server found; looked at:", f"  - *: {tmp_path}"])
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()


@pytest.mark.parametrize(
    ("place", "named"),
    [("command line", "--xjobs-dsn"), ("environment", "XJOBS_DSN"), ("ini", "the ini file's xjobs_dsn")],
)
def test_a_dsn_that_does_not_answer_is_an_error_which_names_where_it_was_given(
    inner: Inner, monkeypatch: pytest.MonkeyPatch, place: str, named: str
) -> None:
    inner.file(USES_THE_QUEUE)
    args = ["--xjobs-pg"]
    if place == "command line":
        args = [f"--xjobs-dsn={DSN}"]
    elif place == "environment":
        monkeypatch.setenv("XJOBS_DSN", DSN)
    else:
        inner.ini(f"xjobs_dsn = {DSN}")
    result = inner.run(*args)
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(
        [
            f"xjobs: no PostgreSQL connection by {named}: tried host=127.0.0.1 port=1 dbname=none user=nobody for*",
            "start that server, or correct the connection string",
        ]
    )


def test_a_server_that_does_not_answer_is_asked_once_for_the_whole_run(inner: Inner) -> None:
    inner.file(USES_THE_QUEUE)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port, asked = mute.getsockname()[1], []

        def hang_up() -> None:
            with contextlib.suppress(OSError):  # closed at the end of the test
                while True:
                    caller, _ = mute.accept()
                    asked.append(caller)
                    caller.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        result = inner.run(f"--xjobs-dsn=postgresql://nobody@127.0.0.1:{port}/none?sslmode=disable&gssencmode=disable")
        mute.shutdown(socket.SHUT_RDWR)
        thread.join()
    result.assert_outcomes(errors=2)
    assert len(asked) == 1


def test_runs_on_memory_need_no_server_even_when_one_is_named(inner: Inner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XJOBS_DSN", DSN)
    inner.file(USES_THE_QUEUE)
    inner.run().assert_outcomes(passed=2)


def test_the_drain_budget_of_the_run_holds_for_drains_that_name_none(inner: Inner) -> None:
    inner.ini("xjobs_drain_budget = 3")
    inner.file(
        """
        import pytest, xjobs

        @xjobs.job(key=xjobs.NO_KEY)
        def again():
            again.enqueue()

        def test_it(xjobs_queue):
            again.enqueue()
            with pytest.raises(xjobs.DrainStopped, match="^drain stopped: 3 runs and jobs are still due"):
                xjobs_queue.drain()
            with pytest.raises(xjobs.DrainStopped, match="^drain stopped: 5 runs"):
                xjobs_queue.drain(budget=5)
        """
    )
    inner.run().assert_outcomes(passed=1)


@pytest.mark.parametrize("mark", ["backend='redis'", "backend=''", "backend=['memory']"])
def test_a_bad_backend_in_a_marker_is_an_error_that_names_the_test(inner: Inner, mark: str) -> None:
    inner.file(
        f"""
        import pytest

        @pytest.mark.xjobs({mark})
        def test_it(xjobs_queue): ...
        """
    )
    result = inner.run()
    assert result.ret != 0
    assert re.search(
        r"test_it\.py::test_it: the xjobs marker says backend=.*: name one or both of memory, pg",
        result.stdout.str() + result.stderr.str(),
    )
    assert result.parseoutcomes().get("passed", 0) == 0


def test_a_bad_isolation_in_a_marker_is_an_error_that_names_the_test(inner: Inner) -> None:
    inner.file(
        """
        import pytest

        @pytest.mark.xjobs(isolation="rollback")
        def test_it(xjobs_queue): ...
        """
    )
    result = inner.run(inner.pg)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        "test_it.py::test_it: the xjobs marker says isolation='rollback': name delete or database"
    )

"""The plugin's hooks.

Loaded in every pytest run of the environment, so it imports pytest and the standard library only; what a run really
uses is imported by the fixtures.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_xjobs.fixtures import (
    xjobs_backend as xjobs_backend,
    xjobs_backends as xjobs_backends,
    xjobs_clock as xjobs_clock,
    xjobs_ddl as xjobs_ddl,
    xjobs_dsn as xjobs_dsn,
    xjobs_environment as xjobs_environment,
    xjobs_faults as xjobs_faults,
    xjobs_queue as xjobs_queue,
    xjobs_server as xjobs_server,
    xjobs_session_dsn as xjobs_session_dsn,
    xjobs_worker as xjobs_worker,
)
from pytest_xjobs.options import BACKENDS, Options, add_options, read_options

if TYPE_CHECKING:
    from contextvars import Context

    from pytest_xjobs.runtime import Runtime

OPTIONS = pytest.StashKey[Options]()
RUNTIME: pytest.StashKey[Runtime] = pytest.StashKey()
CONTEXT: pytest.StashKey[Context] = pytest.StashKey()

_MARKER = (
    "xjobs(backend=None, isolation=None): which backend (memory, pg, or both as 'memory,pg') a test is for, and whether"
    " it gets a database of its own (isolation='database')."
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare options and ini keys."""
    add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare `pytest_xjobs_database_setup`."""
    from pytest_xjobs import hooks

    pluginmanager.add_hookspecs(hooks)


def pytest_configure(config: pytest.Config) -> None:
    """Read the options and declare the marker."""
    config.stash[OPTIONS] = read_options(config)
    config.addinivalue_line("markers", _MARKER)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say what the run uses, when anything was set."""
    options = config.stash[OPTIONS]
    return None if options.is_default and config.get_verbosity() < 1 else f"xjobs: {options}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that uses the queue once per backend; with one backend its id stays as it is."""
    if "xjobs_backend" not in metafunc.fixturenames:
        return
    wanted = _wanted_backends(metafunc.definition)
    backends = [name for name in metafunc.config.stash[OPTIONS].backends.value if wanted is None or name in wanted]
    if len(backends) > 1:
        metafunc.parametrize("xjobs_backend", backends, indirect=True)


def _wanted_backends(node: pytest.Item | Any) -> tuple[str, ...] | None:
    marker = node.get_closest_marker("xjobs")
    backend = marker.kwargs.get("backend") if marker is not None else None
    if backend is None:
        return None
    names = tuple(part.strip() for part in backend.split(",")) if isinstance(backend, str) else ()
    if not names or any(name not in BACKENDS for name in names):
        raise pytest.UsageError(
            f"{node.nodeid}: the xjobs marker says backend={backend!r}: name one or both of {', '.join(BACKENDS)}"
        )
    return names


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """With xdist: start the one server in the controller and tell the worker where it is."""
    options = node.config.stash[OPTIONS]
    node.workerinput["xjobs_seed"] = options.seed.value
    # Each worker has a server of its own where it is a fixture.
    if ("pg" in options.backends.value or options.ddl.value) and options.server_fixture is None:
        from pytest_xjobs.runtime import handover

        handover(node)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect DDL that ini names where a run names its file, or a directory above it."""
    if not parent.config.stash[OPTIONS].ddl.value or _runs_everything(parent.config):
        return None
    from pytest_xjobs.ddl.items import file_of

    return file_of(file_path, parent)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep the context variables as modules have set them, before a test sets any."""
    module = sys.modules.get("contextvars")  # where nobody has imported it, none is set
    if module is not None:
        session.config.stash[CONTEXT] = module.copy_context()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Collect all DDL that ini names, wherever it is, where a run names nothing."""
    report = yield
    config = collector.config
    if isinstance(collector, pytest.Session) and config.stash[OPTIONS].ddl.value and _runs_everything(config):
        from pytest_xjobs.ddl.items import files

        report.result.extend(files(collector))
    return report


def _runs_everything(config: pytest.Config) -> bool:
    return config.args_source is not pytest.Config.ArgsSource.ARGS


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to a failure on which backend it was, at which time, and how to repeat it."""
    report = yield
    arguments = getattr(item, "funcargs", None) or {}
    environment = arguments.get("xjobs_environment")
    if environment is not None and report.when == "call":
        if report.failed:
            report.sections.append(("xjobs", environment.describe()))
        if not report.skipped and _runs_once(item):
            setattr(report, _ONCE, environment.backend)  # an attribute, since xdist takes those to the controller
    return report


_ONCE = "xjobs_ran_on"


def _runs_once(item: pytest.Item) -> bool:
    """Whether it is a test that this run should run on several backends and does not, since pytest cannot parametrize
    it: a method of a unittest.TestCase.
    """
    if "xjobs_backend" in getattr(getattr(item, "callspec", None), "params", {}):
        return False
    of_run, wanted = item.config.stash[OPTIONS].backends.value, _wanted_backends(item)
    return len([name for name in of_run if wanted is None or name in wanted]) > 1


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say which tests ran on one backend only, which findings in DDL are ignored, and what no server was asked."""
    reports = [report for of_outcome in terminalreporter.stats.values() for report in of_outcome]
    once = [getattr(report, _ONCE) for report in reports if hasattr(report, _ONCE)]
    if once:
        backends = config.stash[OPTIONS].backends.value
        tests = f"{len(once)} unittest test{'s' if len(once) > 1 else ''}"
        each = " and with ".join(f"--xjobs-backend={name}" for name in backends)
        terminalreporter.write_line(
            f"xjobs: {tests} ran on {once[0]} only, since pytest runs methods of a unittest.TestCase once: run them"
            f" with {each}"
        )
    if config.stash[OPTIONS].ddl.value:
        from pytest_xjobs.ddl.summary import summarize

        summarize(terminalreporter)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Drop the run's databases and stop its server."""
    started = config.stash.get(RUNTIME, None)
    if started is not None:
        started.close()

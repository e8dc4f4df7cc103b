"""Inner pytest runs: in this process where speed matters, in their own where imports or crashes do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from pytest_xjobs.provision import Server
from xjobs import in_use, registry

# Nothing written beside the test files, tests in the order in which they stand, and no import of hypothesis for the
# terminal summary of each run.
QUIET = ("-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:hypothesispytest")
# pytest-django sets Django up once in a process, which tests of this repository may have done.
IN_PROCESS = (*QUIET, "-p", "no:django")

_STRICT = """
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
filterwarnings =
    error
"""


class Inner:
    """Inner pytest runs in a directory of their own, with warnings as errors."""

    def __init__(self, pytester: pytest.Pytester, server: Callable[[], Server]) -> None:
        self.pytester = pytester
        self._server = server
        pytester.makeini(_STRICT)

    @property
    def pg(self) -> str:
        """The argument that puts a run on Postgres, on the server of the outer run."""
        server = self._server()
        return f"--xjobs-dsn={server.dsn(server.maintenance_dbname)}"

    @property
    def both(self) -> tuple[str, str]:
        """The arguments that put a run on both backends."""
        return (self.pg, "--xjobs-backend=memory,pg")

    def file(self, source: str, name: str = "test_it") -> None:
        """Write a test file, or another module, of the inner run."""
        self.pytester.makepyfile(**{name: source})

    def ini(self, *lines: str) -> None:
        """Add lines to the inner run's ini file."""
        self.pytester.makeini("\n".join([_STRICT, *lines]))

    def run(self, *args: str) -> pytest.RunResult:
        """Run in this process."""
        with _process_untouched():
            return self.pytester.runpytest_inprocess(*IN_PROCESS, *args, no_reraise_ctrlc=True)

    def subprocess(self, *args: str) -> pytest.RunResult:
        """Run in a process of its own."""
        return self.pytester.runpytest_subprocess(*QUIET, *args, timeout=60)


@contextmanager
def _process_untouched() -> Iterator[None]:
    """Give an inner run no jobs and no queue of the outer one, and take back what it left of its own."""
    jobs, uses = dict(registry._jobs), list(in_use._stack)
    registry._jobs.clear()
    registry._changed()
    in_use._stack.clear()
    try:
        yield
    finally:
        registry._jobs.clear()
        registry._jobs.update(jobs)
        registry._changed()
        in_use._stack[:] = uses

"""The server that DDL checks of this run ask: the session's, also in a run whose tests stay in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_xjobs.plugin import OPTIONS, RUNTIME

if TYPE_CHECKING:
    from pytest_xjobs.runtime import Asker

__all__ = ["NotAsked", "server"]


class NotAsked(Exception):
    """No server was asked; the message says why."""


def server(asker: Asker) -> tuple[str, str]:
    """The connection string of the session's server, and what names of scratch databases begin with.

    Databases with such a name are removed by a later run, should this one be killed.

    Raises:
        NotAsked: there is none, and the run was not asked to use Postgres; or it comes from a fixture that nothing has
            asked for yet.
        pytest.UsageError: there is none although the run was asked to.
    """
    from pytest_xjobs.runtime import runtime

    config = asker.config
    fixture = config.stash[OPTIONS].server_fixture
    if fixture is not None and RUNTIME not in config.stash and not isinstance(asker, pytest.FixtureRequest):
        raise NotAsked(f"the server is the fixture {fixture!r}, which no test has asked for before")
    try:
        return runtime(asker).for_scratch()
    except pytest.UsageError as problem:
        if "pg" in config.stash[OPTIONS].backends.value:
            raise
        # Its first line: where all was looked is for a run that asks for Postgres.
        fact = str(problem).splitlines()[0].removeprefix("xjobs: ").partition("; looked at")[0]
        raise NotAsked(f"{fact} (pytest --xjobs-pg says what to do)") from None

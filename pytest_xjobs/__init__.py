"""pytest_xjobs: the pytest plugin of xjobs.

The types of the fixtures are here for annotations in tests. They are imported when they are asked for, since the plugin
is loaded in every pytest run of the environment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_xjobs.clock import Clock as XjobsClock
    from pytest_xjobs.ddl.fixture import XjobsDdl
    from pytest_xjobs.environment import XjobsWarning
    from pytest_xjobs.faults import XjobsFaults
    from pytest_xjobs.queue import XjobsQueue
    from pytest_xjobs.worker import Workers as XjobsWorkers

__all__ = ["XjobsClock", "XjobsDdl", "XjobsFaults", "XjobsQueue", "XjobsWarning", "XjobsWorkers"]

_HOMES = {
    "XjobsClock": ("pytest_xjobs.clock", "Clock"),
    "XjobsDdl": ("pytest_xjobs.ddl.fixture", "XjobsDdl"),
    "XjobsFaults": ("pytest_xjobs.faults", "XjobsFaults"),
    "XjobsQueue": ("pytest_xjobs.queue", "XjobsQueue"),
    "XjobsWarning": ("pytest_xjobs.environment", "XjobsWarning"),
    "XjobsWorkers": ("pytest_xjobs.worker", "Workers"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)

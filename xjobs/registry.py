"""The jobs that this process declares, by name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from xjobs.errors import JobDuplicate

if TYPE_CHECKING:
    from xjobs.jobs import JobHandle

_jobs: dict[str, JobHandle[Any, Any, Any]] = {}
_cached: tuple[frozenset[str], list[str]] | None = None


def register(handle: JobHandle[Any, Any, Any]) -> None:
    """Enter a handle under its name.

    The same code declared again, as a reload does, takes its own place; so does code whose holder's module has gone.

    Raises:
        JobDuplicate: other code holds the name.
    """
    holder = _jobs.get(handle.name)
    if holder is not None and holder.declared_at != handle.declared_at and _is_loaded(holder):
        raise JobDuplicate(
            f"the job name {handle.name!r} is declared at {handle.declared_at} and already at {holder.declared_at}",
            "give one of them another name with @job(name=...)",
            name=handle.name,
        )
    _jobs[handle.name] = handle
    _changed()


def find(name: str) -> JobHandle[Any, Any, Any] | None:
    """The handle of that name, or None."""
    return _jobs.get(name)


def registered_jobs() -> list[JobHandle[Any, Any, Any]]:
    """Every declared job, sorted by name."""
    return [_jobs[name] for name in sorted(_jobs)]


def queues() -> frozenset[str]:
    """The queues that declared jobs go to when an enqueue names none."""
    return (_cached or _derive())[0]


def dropping() -> list[str]:
    """The names of jobs whose last failure ends them `failed` and not `dead`."""
    return (_cached or _derive())[1]


def _derive() -> tuple[frozenset[str], list[str]]:
    """What claims ask of all declared jobs, worked out once for each set of them."""
    global _cached  # noqa: PLW0603 - belongs to _jobs
    _cached = (
        frozenset(handle.queue for handle in _jobs.values()),
        [name for name in sorted(_jobs) if not _jobs[name].retry.dead_letter],
    )
    return _cached


def _changed() -> None:
    global _cached  # noqa: PLW0603
    _cached = None


def _is_loaded(handle: JobHandle[Any, Any, Any]) -> bool:
    """Whether the module that declared a handle is still the one of its name."""
    module = sys.modules.get(handle.body.__module__)
    return module is not None and vars(module) is handle.body.__globals__


@contextmanager
def scope() -> Iterator[None]:
    """Forget, at the end of the block, jobs that functions declared inside it.

    Those of modules stay, since a module that was imported in the block is not imported again after it.
    """
    before = dict(_jobs)
    try:
        yield
    finally:
        imported = {name: handle for name, handle in _jobs.items() if "<locals>" not in handle.body.__qualname__}
        _jobs.clear()
        _jobs.update(before | imported)
        _changed()

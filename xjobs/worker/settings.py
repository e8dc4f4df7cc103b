"""What a worker is told: its queues with their slots, and its times; checked here, once."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from xjobs import registry
from xjobs.errors import Invariant
from xjobs.ids import new_id
from xjobs.limits import check_count, check_duration, check_queues, check_text
from xjobs.operations.claim import LEASE

CONCURRENCY = 8
"""Slots of each queue: how many of its jobs a worker runs at a time."""

POLL = timedelta(milliseconds=250)
"""From one look at the queues to the next, while there is work."""

IDLE_POLL, IDLE_POLL_WOKEN = timedelta(seconds=2), timedelta(seconds=5)
"""The longest time between looks: without notifications, and with those that have been proven to arrive."""

SHUTDOWN = timedelta(seconds=25)
"""How long a worker takes to end after SIGTERM; most supervisors kill it after 30 seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The settings of one worker; `settings` checks them and fills in the defaults.

    Attributes:
        worker_id: its name in claims and in the registry; no two live workers may share one.
        host: where it runs, for reading only.
        queues: what it serves, with the slots of each.
        lease: how long a claim stands when nothing renews it.
        heartbeat: from one renewal to the next.
        poll, idle_poll, idle_poll_woken: see the constants of these names.
        shutdown: the budget of an ending by signal.
    """

    worker_id: str
    host: str
    queues: Mapping[str, int]
    lease: timedelta
    heartbeat: timedelta
    poll: timedelta
    idle_poll: timedelta
    idle_poll_woken: timedelta
    shutdown: timedelta

    @property
    def slots(self) -> int:
        """The slots of all queues."""
        return sum(self.queues.values())


def settings(
    *,
    queues: Iterable[str] | None = None,
    concurrency: int | Mapping[str, int] = CONCURRENCY,
    lease: timedelta | float = LEASE,
    heartbeat: timedelta | float | None = None,
    poll: timedelta | float = POLL,
    idle_poll: timedelta | float = IDLE_POLL,
    idle_poll_woken: timedelta | float = IDLE_POLL_WOKEN,
    shutdown: timedelta | float = SHUTDOWN,
    worker_id: str | None = None,
    host: str | None = None,
) -> Settings:
    """Check the settings of a worker.

    Args:
        queues: what it serves; when not given, every queue that a declared job goes to.
        concurrency: slots of each queue, or of some queues by name; 8 for the others.
        lease: how long a claim stands when nothing renews it.
        heartbeat: from one renewal to the next; a third of the lease when not given.
        poll, idle_poll, idle_poll_woken, shutdown: see `Settings`.
        worker_id: made up when not given.
        host: this machine's name when not given.

    Raises:
        Invariant: a number or a duration that cannot be, or slots for a queue that is not served.
        ClaimQueuesEmpty: `queues` is empty.
    """
    names = check_queues(registry.queues() or ["default"] if queues is None else queues)
    term = check_duration(lease, "lease", low=timedelta(milliseconds=10))
    beat = term / 3 if heartbeat is None else check_duration(heartbeat, "heartbeat", low=timedelta(milliseconds=1))
    if beat >= term:
        raise Invariant(f"heartbeat is {beat} and the lease {term}", "renew at least twice within a lease")
    least = timedelta(milliseconds=1)
    floor = check_duration(poll, "poll", low=least)
    return Settings(
        worker_id=f"worker-{new_id()}" if worker_id is None else check_text(worker_id, "worker_id"),
        host=platform.node() or "unknown" if host is None else check_text(host, "host"),
        queues=_slots(sorted(names), concurrency),
        lease=term,
        heartbeat=beat,
        poll=floor,
        idle_poll=max(floor, check_duration(idle_poll, "idle_poll", low=least)),
        idle_poll_woken=max(floor, check_duration(idle_poll_woken, "idle_poll_woken", low=least)),
        shutdown=check_duration(shutdown, "shutdown", low=least),
    )


def _slots(queues: list[str], concurrency: int | Mapping[str, int]) -> dict[str, int]:
    if not isinstance(concurrency, Mapping):
        count = check_count(concurrency, "concurrency", low=1)
        return dict.fromkeys(queues, count)
    strange = sorted(concurrency.keys() - set(queues))
    if strange:
        raise Invariant(
            f"concurrency names queue {strange[0]!r}, which is not served", f"name one of {', '.join(queues)}"
        )
    return {
        queue: check_count(concurrency.get(queue, CONCURRENCY), f"concurrency of {queue!r}", low=1) for queue in queues
    }

"""Wakes a worker when there is work, by notifications that have been proven to arrive; it polls all the same."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from random import Random

from xjobs import sql
from xjobs.drivers.base import Driver
from xjobs.errors import DriverUnavailable
from xjobs.ids import new_id
from xjobs.worker import log
from xjobs.worker.connections import Connections, Ears

WORK, EVENTS = "x_jobs_wake", "x_events_wake"
"""The channels: their payloads are the queue that has work, or none for any; and the name of the event."""

PROVEN_WITHIN = 5.0
"""Seconds within which the probe must have arrived."""

REDIAL, REDIAL_MOST = 1.0, 30.0
"""Seconds until a broken session is opened again: at first, and after many failures. Half of it is jitter."""


class Wake:
    """Listens, proves that it hears, and wakes.

    Args:
        connections: where to listen.
        sender: another connection, which sends the probe.
        queues: whose work wakes; other payloads are ignored.
        wake: called for work.
        event: called with the name of an event that some run waits for.
        random: the source of jitter.
    """

    def __init__(
        self,
        connections: Connections,
        sender: Driver,
        queues: Collection[str],
        wake: Callable[[], None],
        event: Callable[[str], None],
        random: Random,
    ) -> None:
        self._connections = connections
        self._sender = sender
        self._queues = queues
        self._wake = wake
        self._event = event
        self._random = random
        self._warned = False
        self.proven = False
        """Whether notifications arrive, so that polls may be rarer."""

    async def run(self) -> None:
        """Listen until cancelled, on a new session whenever one breaks."""
        failures = 0
        while True:
            try:
                ears = await self._connections.listen()
                try:
                    await self._prove(ears)
                    failures = 0
                    while True:
                        self._take(await ears.hear())
                finally:
                    self.proven = False
                    await ears.close()
            except DriverUnavailable as problem:
                log.warning("jobs.wake.lost", error=problem.fact)
            except Exception as problem:  # noqa: BLE001 - polling goes on without it
                log.error("jobs.wake.lost", cause=problem)
            pause = min(REDIAL_MOST, REDIAL * 2**failures)
            failures = min(failures + 1, 16)
            await asyncio.sleep(pause / 2 + self._random.random() * pause / 2)

    async def _prove(self, ears: Ears) -> None:
        """Have a probe sent by another connection and wait for it."""
        probe = f"xjobs probe {new_id()}"
        await self._sender.run(sql.SQL_WAKE, payload=probe)
        deadline = time.monotonic() + PROVEN_WITHIN
        while (left := deadline - time.monotonic()) > 0:
            heard = await ears.hear(left)
            self._take(heard)
            if (WORK, probe) in heard:
                self.proven = True
                log.info("jobs.wake.live")
                self._wake()  # what was announced before we listened
                return
        if not self._warned:
            self._warned = True
            log.warning("jobs.wake.unverified", waited=PROVEN_WITHIN)

    def _take(self, notes: list[tuple[str, str]]) -> None:
        for channel, payload in notes:
            if channel == EVENTS:
                self._event(payload)
            elif not payload or payload in self._queues:
                self._wake()

"""Writes the outcomes of runs in batches: those that end within a few milliseconds go in one statement."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from uuid import UUID

from xjobs import points
from xjobs.drivers.base import Driver
from xjobs.errors import DriverUnavailable, SchemaMissing, TransactionConflict
from xjobs.operations.attempt import Execution
from xjobs.operations.inspect import job as find_job
from xjobs.operations.settle import Ack, Nack, acked, nack
from xjobs.states import nack_state
from xjobs.worker import log
from xjobs.worker.runs import Run

WAIT = 0.005
"""The longest that an outcome waits for others, in seconds."""

BATCH = 500
"""The most outcomes of one statement."""

RETRY, RETRY_MOST = 0.1, 2.0
"""Seconds until outcomes are written again that the store did not take, the first time; twice as long each time."""

_OF_THE_CONTENT = ("22", "23")
"""Classes of SQLSTATE: data exceptions, and violated constraints."""

Outcome = tuple[Run, Execution]

Settled = Callable[[Sequence[Outcome], set[UUID] | None], Awaitable[None]]


class Settling:
    """Takes outcomes and writes them, one batch after the other, on a connection of its own.

    Args:
        driver: for the settles.
        worker_id: the fence.
        busy: answers whether bodies run whose outcomes are worth waiting for.
        settled: awaited with the outcomes of each batch and the ids of those that landed, or None when all did.
    """

    def __init__(self, driver: Driver, worker_id: str, busy: Callable[[], bool], settled: Settled) -> None:
        self._driver = driver
        self._worker_id = worker_id
        self._busy = busy
        self._settled = settled
        self._ended: list[Outcome] = []
        self._wake = asyncio.Event()
        self._closing = False
        self._awaited = False  # a job that was turned away occupies its slot until that is written

    def put(self, run: Run, execution: Execution) -> None:
        """Have an outcome written."""
        run.settling = True
        self._awaited = self._awaited or run.busy
        if not self._ended:
            self._wake.set()
        self._ended.append((run, execution))

    @property
    def backlog(self) -> int:
        """How many outcomes wait to be written."""
        return len(self._ended)

    async def run(self) -> None:
        """Write outcomes until `close`, and then those that are left."""
        while True:
            if not self._ended:
                if self._closing:
                    return
                self._wake.clear()
                await self._wake.wait()
                continue
            if self._busy() and not self._closing and not self._awaited and len(self._ended) < BATCH:
                await asyncio.sleep(WAIT)
            self._awaited = False
            batch, self._ended = self._ended[:BATCH], self._ended[BATCH:]
            await self._write(batch)

    def close(self) -> None:
        """End `run` once everything is written."""
        self._closing = True
        self._wake.set()

    async def _write(self, batch: list[Outcome]) -> None:
        """Write a batch, again and again as long as the claims stand: what has been done must not be done again."""
        tries = 0
        while batch := await self._standing(batch):
            if "before_settle" in points.heard:
                batch = await self._reach(batch)
            try:
                landed = await self._send(batch)
                if tries and landed is not None:
                    landed |= await self._written_before(batch, landed)
            except Exception as problem:  # noqa: BLE001 - whatever it is, the outcomes are not lost for it
                if _refuses_the_content(problem):
                    await self._write_apart(batch, problem)
                    return
                # Whether it took effect is not known; sending it again is safe, since it is fenced on the claim.
                _tell_failed(batch, problem)
                await asyncio.sleep(min(RETRY_MOST, RETRY * 2**tries))
                tries += 1
            else:
                await self._tell(batch, landed)
                return

    async def _write_apart(self, batch: list[Outcome], problem: Exception) -> None:
        """Write each by itself: one outcome that cannot be written must not take others along."""
        if len(batch) > 1:
            for one in batch:
                await self._write([one])
        else:
            log.error("jobs.worker.settle-failed", cause=problem, job=batch[0][0].job.id)
            await self._tell(batch, set())

    async def _written_before(self, batch: Sequence[Outcome], landed: set[UUID]) -> set[UUID]:
        """Of outcomes that were sent before, those that stand in their rows: only the answer had been lost."""
        found = set()
        for run, execution in batch:
            if run.job.id not in landed:
                row = await find_job(self._driver, run.job.id)
                if row is not None and row.claims == run.job.claims and row.state in _states(execution):
                    found.add(row.id)
        return found

    async def _standing(self, batch: list[Outcome]) -> list[Outcome]:
        """The batch without the outcomes of claims that are gone, which are told as not landed."""
        gone = [one for one in batch if one[0].gone]
        if not gone:
            return batch
        await self._tell(gone, set())
        return [one for one in batch if not one[0].gone]

    async def _reach(self, batch: list[Outcome]) -> list[Outcome]:
        """Tell the listeners; the batch without those with which a test has this process die."""
        kept = []
        for run, execution in batch:
            try:
                await points.reach("before_settle", job=run.job, outcome=execution.outcome)
                kept.append((run, execution))
            except points.Crash:
                run.gone = True
                await self._settled([(run, execution)], set())
        return kept

    async def _send(self, batch: Sequence[Outcome]) -> set[UUID] | None:
        """Write a batch; answer the ids whose outcome landed, or None for all."""
        acks = [e.settlement for _, e in batch if type(e.settlement) is Ack]
        rows = await acked(self._driver, acks, worker_id=self._worker_id)
        if len(rows) == len(batch):
            return None
        nacks = [e.settlement for _, e in batch if type(e.settlement) is Nack]
        return {row[0] for row in rows} | await nack(self._driver, nacks, worker_id=self._worker_id)

    async def _tell(self, batch: Sequence[Outcome], landed: set[UUID] | None) -> None:
        if landed is not None:
            for run, execution in batch:
                if run.job.id not in landed and execution.outcome != "cancelled":
                    log.warning("jobs.settle.unowned", job=run.job.id, name=run.job.name, outcome=execution.outcome)
        if "after_settle" in points.heard:
            for run, execution in batch:
                did = landed is None or run.job.id in landed
                with suppress(points.Crash):
                    await points.reach("after_settle", job=run.job, outcome=execution.outcome, landed=did)
        await self._settled(batch, landed)


def _refuses_the_content(problem: Exception) -> bool:
    """Whether it would be refused again, since it is the content that the store cannot take, or cannot even be sent.

    The other problems are of the moment: a lock or a statement that timed out, a server that is read-only or full, a
    schema that is being changed.
    """
    if isinstance(problem, DriverUnavailable | TransactionConflict | SchemaMissing):
        return False
    state: str | None = getattr(problem, "sqlstate", "")  # the store's own problems have one, or None
    return state == "" or (state is not None and state[:2] in _OF_THE_CONTENT)


def _states(execution: Execution) -> tuple[str, ...]:
    """The states in which a row may be found that an outcome has been written to."""
    settlement = execution.settlement
    if isinstance(settlement, Ack):
        return ("done",)
    state = nack_state(dead_letter=settlement.dead_letter, fail=settlement.fail, park=settlement.park)
    return ("ready", "delayed") if state == "ready" else (state,)


def _tell_failed(batch: Sequence[Outcome], problem: Exception) -> None:
    if isinstance(problem, DriverUnavailable):
        log.warning("jobs.worker.settle-failed", jobs=len(batch), error=problem.fact)
    else:
        log.error("jobs.worker.settle-failed", jobs=len(batch), cause=problem)

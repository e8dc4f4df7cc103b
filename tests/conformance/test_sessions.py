"""Eight real sessions in threads that settle and operate on the same jobs in any order.

By default each takes a number of steps. For longer, with the figures printed:
`XJOBS_SESSIONS_SECONDS=60 python -m pytest -s tests/conformance/test_sessions.py`.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from random import Random

import pytest

import xjobs
from conformance.fixtures import Work
from conformance.stores import PostgresStore
from pytest_xjobs.clock import Clock
from xjobs.states import ALL

SECONDS = float(os.environ.get("XJOBS_SESSIONS_SECONDS", "0"))
SESSIONS, STEPS, NAMES, KEYS = 8, 110, 6, 8

OUTCOMES = ("done", "retried", "failed", "dead")
FLAGS = {"": "retried", "fail": "failed", "dead_letter": "dead", "park": None}
MOVABLE = {"cancel_many": "ready", "requeue_many": "dead", "promote_many": "delayed", "remove_many": "done"}
REFUSALS = (
    xjobs.JobDuplicate,
    xjobs.JobNotCancellable,
    xjobs.JobNotFound,
    xjobs.JobNotPromotable,
    xjobs.JobNotRemovable,
    xjobs.JobNotRequeueable,
)


class Session:
    """One session: what it was answered.

    Attributes:
        counted: how many of its settles moved each job name to each outcome.
        rows: how many rows it put in, less those that it removed.
        steps: how many rounds it did.
    """

    def __init__(self, jobs: list[Work], seed: int) -> None:
        self.counted: Counter[tuple[str, str]] = Counter()
        self.rows = 0
        self.steps = 0
        self._jobs = jobs
        self._random = Random(seed)

    async def act(self, queue: xjobs.AsyncQueue) -> None:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end if SECONDS else self.steps < STEPS:
            await self._work(queue)
            await self._operate(queue)
            self.steps += 1

    async def _work(self, queue: xjobs.AsyncQueue) -> None:
        random = self._random
        calls = [
            random.choice(self._jobs).using(delay=random.choice([0, 0, 3_600])).call(n=random.randrange(KEYS))
            for _ in range(4)
        ]
        self.rows += sum(not made.deduped for made in await queue.enqueue_many(calls))
        worker_id = f"w{random.random()}"
        claimed = await queue.claim(queues=["default"], worker_id=worker_id, limit=4, lease=3_600)
        assert claimed.buried == []
        random.shuffle(claimed.jobs)
        half = len(claimed.jobs) // 2
        acked = await queue.ack([xjobs.Ack(job) for job in claimed.jobs[:half]], worker_id=worker_id)
        flags = {job.id: random.choice(list(FLAGS)) for job in claimed.jobs[half:]}
        nacks = [
            xjobs.Nack(job, delay=random.choice([0, 3_600]), **({flags[job.id]: True} if flags[job.id] else {}))
            for job in claimed.jobs[half:]
        ]
        nacked = await queue.nack(nacks, worker_id=worker_id)
        for job in claimed.jobs:
            outcome = "done" if job.id in acked else FLAGS[flags[job.id]] if job.id in nacked else None
            if outcome is not None:
                self.counted[job.name, outcome] += 1

    async def _operate(self, queue: xjobs.AsyncQueue) -> None:
        random = self._random
        found = await queue.jobs(state=random.choice(ALL), limit=50)
        verbs = ["cancel", "requeue", "promote", *(["remove"] if self.steps % 4 == 0 else [])]
        for row in random.sample(found, min(3, len(found))):
            verb = random.choice(verbs)
            with suppress(*REFUSALS):  # another session was there first
                await getattr(queue, verb)(row.id)
                self.rows -= verb == "remove"
        verb, state = random.choice(list(MOVABLE.items()))
        moved = await getattr(queue, verb)(state=state, limit=random.randrange(4))
        self.rows -= moved.affected if verb == "remove_many" else 0


@pytest.fixture
def jobs() -> list[Work]:
    def declare(name: str) -> Work:
        @xjobs.job(key="{n}", name=name, retry=2)
        def body(n: int) -> None: ...

        return body

    return [declare(f"job-{at}") for at in range(NAMES)]


@pytest.fixture
def sessions(jobs: list[Work]) -> Iterator[list[Session]]:
    sessions: list[Session] = []
    yield sessions
    if SECONDS:
        settles = sum(sum(session.counted.values()) for session in sessions)
        steps = sum(session.steps for session in sessions)
        print(f"{SESSIONS} sessions, {SECONDS:.0f} s: {steps} rounds, {settles} counted settles")


@pytest.mark.parametrize("postgres", ["blocking"], indirect=True)
async def test_nothing_deadlocks_and_counters_and_rows_are_what_the_answers_said(
    postgres: PostgresStore, clock: Clock, jobs: list[Work], sessions: list[Session]
) -> None:
    """In one frozen minute, so that all of them count in the same rows."""
    clock.freeze()
    seeds = count()

    async def act(queue: xjobs.AsyncQueue) -> None:
        session = Session(jobs, next(seeds))
        sessions.append(session)
        await session.act(queue)

    await postgres.at_once(SESSIONS, act)
    expected = sum((session.counted for session in sessions), Counter())
    found: Counter[tuple[str, str]] = Counter()
    for name, _, _, *counts, _ in postgres.tables.counters():
        found.update({(name, outcome): number for outcome, number in zip(OUTCOMES, counts, strict=True) if number})
    assert found == expected
    assert min(sum(number for (_, of), number in found.items() if of == outcome) for outcome in OUTCOMES) > 10
    assert len(postgres.tables.jobs()) == sum(session.rows for session in sessions)
    if SECONDS:
        query = "select deadlocks from pg_stat_database where datname = current_database()"
        print(f"\ndeadlocks that were sent again: {postgres.control.execute(query).fetchone()}")

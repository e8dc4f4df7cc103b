"""Memory and Postgres in step: the same statements with the same parameters, in any order, from two sessions.

One session commits each statement, the other is a transaction that ends now and then. After every step the answers, the
errors and all whole tables are compared. `XJOBS_MACHINE_EXAMPLES` says how many stories are tried.

One difference is known and left out: Postgres locks `limit` rows in each arm of a claim and takes `limit` of them in
all, so that a claim inside a longer transaction keeps others from rows that it did not take. Workers claim outside of
transactions; here the transaction claims all that there is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from conformance.stores import BLOCKED, MemoryTables, PostgresTables
from pytest_xjobs.clock import ClockState, set_time
from pytest_xjobs.runtime import Place, Runtime
from xjobs import sql
from xjobs.bridge import run_sync
from xjobs.drivers.memory import MemoryDriver
from xjobs.drivers.postgres import ConnectionDriver, PostgresDriver
from xjobs.sql import Statement

LOCK_TIMEOUT = "10ms"
START = datetime(2024, 3, 9, 23, 59, 58, tzinfo=UTC)
GIVEN_IDS = [UUID(int=at << 120 | 0xABC) for at in range(4)]
UNKNOWN = UUID(int=0xFFF)

settings.register_profile(
    "machine",
    max_examples=int(os.environ.get("XJOBS_MACHINE_EXAMPLES", "60")),
    stateful_step_count=30,
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)

SECONDS = st.integers(-2, 3).map(lambda count: timedelta(seconds=count))
NAMES, QUEUES, WORKERS = st.sampled_from(["a", "B"]), st.sampled_from(["q", "p"]), st.sampled_from(["v", "w"])
SESSIONS = st.sampled_from(["main", "main", "transaction"])
STRANGERS = st.sampled_from([None, None, None, None, "v", "w"])
PLACES, LIMITS = st.integers(0, 8), st.integers(0, 3)
ONE = st.sampled_from([sql.SQL_CANCEL, sql.SQL_REQUEUE, sql.SQL_REQUEUE, sql.SQL_PROMOTE, sql.SQL_REMOVE])
MANY = st.sampled_from([sql.SQL_CANCEL_MANY, sql.SQL_REQUEUE_MANY, sql.SQL_PROMOTE_MANY, sql.SQL_REMOVE_MANY])
TENANTS = st.sampled_from([None, None, "", "t"])
CLAIMS = st.lists(st.integers(0, 8), min_size=1, max_size=3, unique=True)
ENQUEUED = st.fixed_dictionaries(
    {
        "given": st.none() | st.sampled_from(GIVEN_IDS),
        "place": st.integers(0, 7),
        "name": NAMES,
        "queue": QUEUES,
        "key": st.sampled_from(["k", "l"]),
        "tenant": TENANTS,
        "attempts": st.integers(1, 2),
        "delay": st.none() | SECONDS,
        "run_at": st.none() | SECONDS,
    }
)
FILTERED = st.fixed_dictionaries(
    {
        "queue": st.none() | QUEUES,
        "name": st.none() | NAMES,
        "tenant_id": TENANTS,
        "limit": LIMITS,
    }
)
LISTED = st.fixed_dictionaries(
    {
        "name": st.none() | NAMES,
        "queue": st.none() | QUEUES,
        "tenant_id": TENANTS,
        "id_prefix": st.sampled_from([None, None, None, "0", "01", "_", "%"]),
        "created_from": st.none() | SECONDS,
        "created_to": st.none() | SECONDS,
        "limit": st.integers(0, 4),
    }
)
NACKED = st.fixed_dictionaries(
    {
        "state": st.sampled_from(["ready", "ready", "suspended", "failed", "dead"]),
        "delay": SECONDS,
        "error": st.sampled_from([None, "e", "ä"]),
        "stack": st.sampled_from([None, "s"]),
        "counted": st.booleans(),
        "duration": st.integers(0, 9),
    }
)
ENDED = {"delay": timedelta(0), "error": "e", "stack": None, "counted": True, "duration": 1}


class InStep(RuleBasedStateMachine):
    """What both stores were told, one statement after the other."""

    place: Place
    postgres: PostgresDriver
    connection: psycopg.Connection[Any]

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.ids = 0
        self.known = [UNKNOWN]
        self.claims: list[tuple[UUID, int, str]] = []
        self.memory = MemoryDriver(clock=lambda: self.now)
        self.tables = MemoryTables(self.memory), PostgresTables(self.place.control)
        self.transaction: Any = None
        self.place.database.reset(self.place.control)
        set_time(self.place.control, ClockState.frozen(self.now))

    def teardown(self) -> None:
        self._end("rollback")

    def _drivers(self, session: str) -> tuple[Any, Any]:
        if session == "main":
            return self.memory, self.postgres
        if self.transaction is None:
            self.transaction = self.memory.begin()
        return self.transaction, ConnectionDriver(self.connection)

    def _end(self, how: str) -> None:
        if self.transaction is not None:
            getattr(self.connection, how)()
            getattr(self.transaction, how)()
            self.transaction = None

    def _run(self, session: str, statement: Statement, **parameters: Any) -> list[Any]:
        """Send a statement to both, and answer what both answered."""
        answers = []
        for driver in self._drivers(session):
            try:
                rows = run_sync(driver.run(statement, **parameters))
                # The one statement that promises no order.
                answers.append(sorted(rows) if statement.name == "SQL_HEARTBEAT" else rows)
            except BLOCKED:
                answers.append("blocked")
        assert answers[0] == answers[1], f"{statement.name}: memory {answers[0]}, Postgres {answers[1]}"
        if answers[0] == "blocked":
            if session == "transaction":
                self._end("rollback")
            return []
        return list(answers[0])

    @initialize(jobs=st.lists(ENQUEUED, min_size=2, max_size=4), state=st.sampled_from([None, "done", "dead"]))
    def begin(self, jobs: list[dict[str, Any]], state: str | None) -> None:
        """Some jobs, of which those that are due have perhaps come to an end."""
        self.enqueue("main", jobs)
        if state is not None:
            self.claim("main", ["q", "p"], 3, 3, "w", [])
            if self.claims:
                self.nack("main", [0, 1, 2], None, [{**ENDED, "state": state}] * 3)

    @rule(session=SESSIONS, jobs=st.lists(ENQUEUED, min_size=1, max_size=3))
    def enqueue(self, session: str, jobs: list[dict[str, Any]]) -> None:
        given: set[UUID] = set()
        ids, named = [], []
        for job in jobs:
            chosen = job["given"] if job["given"] not in given else None
            given.add(chosen)
            self.ids += 1
            ids.append(chosen or UUID(int=job["place"] << 120 | self.ids))
            named.append(chosen is not None)
            self.known.append(ids[-1])
        if len(jobs) == 1 and not named[0]:
            self._enqueue_one(session, ids[0], jobs[0])
            return
        self._run(
            session,
            sql.SQL_ENQUEUE,
            ids=ids,
            named=named,
            names=[job["name"] for job in jobs],
            queues=[job["queue"] for job in jobs],
            inputs=[f'{{"n": {self.ids}}}' for _ in jobs],
            idempotency_keys=[job["key"] for job in jobs],
            run_ids=[UUID(int=self.ids << 8 | at) for at, _ in enumerate(jobs)],
            max_attempts=[job["attempts"] for job in jobs],
            run_ats=[None if job["run_at"] is None else self.now + job["run_at"] for job in jobs],
            delays=[job["delay"] for job in jobs],
            tenant_ids=[job["tenant"] for job in jobs],
            traceparents=[None for _ in jobs],
            enqueued_bys=["ann" for _ in jobs],
        )

    def _enqueue_one(self, session: str, job_id: UUID, job: dict[str, Any]) -> None:
        self._run(
            session,
            sql.SQL_ENQUEUE_ONE,
            id=job_id,
            name=job["name"],
            queue=job["queue"],
            input=f'{{"n": {self.ids}}}',
            idempotency_key=job["key"],
            run_id=UUID(int=self.ids << 8),
            max_attempts=job["attempts"],
            run_at=None if job["run_at"] is None else self.now + job["run_at"],
            delay=job["delay"],
            tenant_id=job["tenant"],
            traceparent=None,
            enqueued_by="ann",
        )

    @rule(
        session=SESSIONS,
        queues=st.lists(QUEUES, min_size=1, max_size=2, unique=True),
        limit=st.integers(0, 3),
        lease=st.integers(1, 3),
        worker=WORKERS,
        dropped=st.sampled_from([[], ["a"]]),
    )
    def claim(self, session: str, queues: list[str], limit: int, lease: int, worker: str, dropped: list[str]) -> None:
        rows = self._run(
            session,
            sql.SQL_CLAIM,
            queues=queues,
            limit=limit if session == "main" else 1_000,
            lease=timedelta(seconds=lease),
            worker_id=worker,
            drop_exhausted=dropped,
        )
        self.claims += [(row[0], row[9], worker) for row in rows]

    def _chosen(self, places: list[int], stranger: str | None) -> dict[str, Any]:
        """Claims that were handed out, the latest ones first, to be settled by the worker of the first or by another.

        They may be gone by now.
        """
        chosen = [self.claims[-1 - place % len(self.claims)] for place in places]
        found = list(dict.fromkeys((job_id, claim) for job_id, claim, _ in chosen))
        return {
            "ids": [job_id for job_id, _ in found],
            "claims": [claim for _, claim in found],
            "worker_id": stranger or chosen[0][2],
        }

    @precondition(lambda self: self.claims)
    @rule(session=SESSIONS, places=CLAIMS, stranger=STRANGERS, counted=st.booleans(), duration=st.integers(0, 9))
    def ack(self, session: str, places: list[int], stranger: str | None, counted: bool, duration: int) -> None:
        chosen = self._chosen(places, stranger)
        durations = [duration + at for at, _ in enumerate(chosen["ids"])]
        self._run(session, sql.SQL_ACK, **chosen, durations_ms=durations, counted=counted)

    @precondition(lambda self: self.claims)
    @rule(session=SESSIONS, places=CLAIMS, stranger=STRANGERS, nacks=st.lists(NACKED, min_size=3, max_size=3))
    def nack(self, session: str, places: list[int], stranger: str | None, nacks: list[dict[str, Any]]) -> None:
        chosen = self._chosen(places, stranger)
        nacks = nacks[: len(chosen["ids"])]
        self._run(
            session,
            sql.SQL_NACK,
            **chosen,
            states=[nack["state"] for nack in nacks],
            delays=[nack["delay"] for nack in nacks],
            errors=[nack["error"] for nack in nacks],
            stacks=[nack["stack"] for nack in nacks],
            counted=[nack["counted"] for nack in nacks],
            durations_ms=[nack["duration"] for nack in nacks],
        )

    @precondition(lambda self: self.claims)
    @rule(session=SESSIONS, places=CLAIMS, stranger=STRANGERS, lease=st.integers(1, 3))
    def heartbeat(self, session: str, places: list[int], stranger: str | None, lease: int) -> None:
        chosen = self._chosen(places, stranger)
        self._run(session, sql.SQL_HEARTBEAT, **chosen, lease=timedelta(seconds=lease))

    @rule(span=st.sampled_from([-3, -1, 0.000001, 1, 1, 2, 3, 60]))
    def move_clock(self, span: float) -> None:
        self.now += timedelta(seconds=span)
        set_time(self.place.control, ClockState.frozen(self.now))

    def _id(self, place: int) -> UUID:
        """An id that was enqueued, the latest ones first; what it names may be gone. Or one that names nothing."""
        known = list(dict.fromkeys(reversed(self.known)))
        return known[place % len(known)]

    def _filters(self, filters: dict[str, Any], state: int) -> dict[str, Any]:
        """Filters with a state that rows are in."""
        states = sorted({row["state"] for row in self.tables[0].jobs()}) or ["ready"]
        return {**filters, "state": states[state % len(states)]}

    @rule(session=SESSIONS, verb=ONE, place=PLACES, reason=st.sampled_from([None, "r"]))
    def operate(self, session: str, verb: Statement, place: int, reason: str | None) -> None:
        given = {"SQL_CANCEL": {"reason": reason}, "SQL_REQUEUE": {"from_step": reason}}.get(verb.name, {})
        self._run(session, verb, id=self._id(place), **given)

    @rule(session=SESSIONS, verb=MANY, filters=FILTERED, state=PLACES, reason=st.sampled_from([None, "r"]))
    def operate_many(
        self, session: str, verb: Statement, filters: dict[str, Any], state: int, reason: str | None
    ) -> None:
        given = {"reason": reason} if verb.name == "SQL_CANCEL_MANY" else {}
        self._run(session, verb, **self._filters(filters, state), **given)

    @rule(
        session=SESSIONS,
        verb=st.sampled_from([sql.SQL_PAUSE, sql.SQL_RESUME]),
        kind=st.sampled_from(["queue", "queue", "task"]),
        name=QUEUES,
    )
    def pause(self, session: str, verb: Statement, kind: str, name: str) -> None:
        self._run(session, verb, kind=kind, name=name)

    @precondition(lambda self: self.transaction is not None)
    @rule(how=st.sampled_from(["commit", "rollback"]))
    def end(self, how: str) -> None:
        self._end(how)

    @rule(session=SESSIONS, listed=LISTED, at=SECONDS, place=PLACES, state=st.none() | PLACES)
    def read(self, session: str, listed: dict[str, Any], at: timedelta, place: int, state: int | None) -> None:
        for bound in ("created_from", "created_to"):
            listed[bound] = None if listed[bound] is None else self.now + listed[bound]
        listed = {**listed, "state": None} if state is None else self._filters(listed, state)
        rows = {row["id"]: row["created_at"] for row in self.tables[0].jobs()}
        job_id = self._id(place)
        cursor = rows.get(job_id, self.now + at)
        self._run(session, sql.SQL_JOBS, **listed, after_created_at=None, after_id=None)
        self._run(session, sql.SQL_JOBS, **listed, after_created_at=cursor, after_id=job_id)
        self._run(session, sql.SQL_JOBS_BEFORE, **listed, before_created_at=cursor, before_id=job_id)
        self._run(session, sql.SQL_WAITING, limit=listed["limit"])
        self._run(session, sql.SQL_STATS)
        self._run(session, sql.SQL_PAUSED, kind="queue")
        self._run(session, sql.SQL_JOB, id=job_id)

    @invariant()
    def the_tables_are_equal(self) -> None:
        memory, postgres = self.tables
        assert memory.jobs() == postgres.jobs()
        assert memory.counters() == postgres.counters()
        assert memory.pauses() == postgres.pauses()


@pytest.fixture
def place(run: Runtime) -> Iterator[Place]:
    place = run.shared()
    yield place
    place.database.reset(place.control)
    set_time(place.control, ClockState())


def test_memory_and_postgres_stay_in_step(place: Place) -> None:
    dsn = place.database.dsn
    postgres = PostgresDriver(dsn)
    with closing(postgres.connection()) as own, closing(psycopg.connect(dsn)) as connection:
        for session in (own, connection):
            session.execute(f"set lock_timeout = '{LOCK_TIMEOUT}'")
            session.commit()
        machine = type("InStep", (InStep,), {"place": place, "postgres": postgres, "connection": connection})
        run_state_machine_as_test(machine, settings=settings.get_profile("machine"))  # type: ignore[no-untyped-call]

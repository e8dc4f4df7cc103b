"""Memory and Postgres side by side: statements go to both, after each one answers and tables are compared."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import psycopg
from hypothesis import settings, strategies as st
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from conformance.sends import SAVEPOINT, SEED, SENDS, Parameters, Row, Send, World, seeds
from conformance.stores import BLOCKED, MemoryTables, PostgresTables
from pytest_xjobs.clock import ClockState, set_time
from pytest_xjobs.runtime import Place
from xjobs.bridge import run_sync
from xjobs.drivers.memory import MemoryDriver, MemoryTransaction
from xjobs.drivers.postgres import ConnectionDriver, PostgresDriver
from xjobs.sql import Statement

START = datetime(2024, 3, 9, 23, 59, 58, tzinfo=UTC)
TRANSACTIONS = ("one", "two")
"""The sessions that open a transaction with their first statement; the session `main` commits each statement."""

TABLES = ("jobs", "counters", "pauses", "steps", "events", "slots", "workers")
"""What is compared after each step."""

LEFT_OUT = (
    "waiting itself: `WouldBlock` in memory stands for a statement on Postgres that ran into its lock timeout",
    "time that passes inside a statement or by itself: the clock is moved between statements",
    "isolation levels other than READ COMMITTED",
    "after a savepoint, anything but enqueues: a transaction that memory follows does nothing else",
    "parameters that no operation lets through, such as negative limits",
)
"""What is not sent or compared, as docs/differences.md lists it."""

LOCK_TIMEOUT = "3ms"
"""How long a statement on Postgres waits for a lock before it counts as blocked. No lock is about to be released."""


class Afresh(HypothesisProvider):
    """Draws every story anew.

    Hypothesis's own backend begins with a tenth of small examples, and lets five near copies follow each larger one:
    four of 38 planted faults stayed unfound in 500 examples, where this one needed a fraction of them.
    """


AVAILABLE_PROVIDERS["afresh"] = f"{__name__}.{Afresh.__name__}"


class OutOfStep(AssertionError):
    """Memory and Postgres have answered differently, or hold different rows.

    Attributes:
        examples: how many stories were begun up to there.
    """

    examples = 0


class Opened(NamedTuple):
    """A Postgres database and a connection for each session."""

    place: Place
    main: PostgresDriver
    connections: dict[str, psycopg.Connection[Any]]


@contextlib.contextmanager
def opened(place: Place) -> Iterator[Opened]:
    """Connect the sessions to the database of a place, which is empty and in real time again afterwards."""
    with contextlib.ExitStack() as stack:
        stack.callback(set_time, place.control, ClockState())
        stack.callback(place.database.reset, place.control)
        main = PostgresDriver(place.database.dsn)
        connections = {name: stack.enter_context(psycopg.connect(place.database.dsn)) for name in TRANSACTIONS}
        for connection in (stack.enter_context(contextlib.closing(main.connection())), *connections.values()):
            connection.execute(f"set lock_timeout = '{LOCK_TIMEOUT}'")
            connection.commit()
        yield Opened(place, main, connections)


class Pair:
    """Two stores that were told the same.

    Attributes:
        world: what is known by now.
        told: how often each statement was answered with rows, with none, or not at all.
    """

    def __init__(self, opened: Opened, told: Counter[tuple[str, str]] | None = None) -> None:
        self.world = World(START)
        self.told: Counter[tuple[str, str]] = Counter() if told is None else told
        self._opened = opened
        self._control = opened.place.control
        self._memory = MemoryDriver(clock=lambda: self.world.now)
        self._tables = MemoryTables(self._memory), PostgresTables(self._control)
        self._transactions: dict[str, MemoryTransaction] = {}
        self._marks: dict[str, int] = {}
        opened.place.database.reset(self._control)
        set_time(self._control, ClockState.frozen(START))

    def seed(self, rows: list[Row]) -> None:
        """Add rows behind the queue's back, a step of each of their runs, and a wait of those that are suspended."""
        for tables in self._tables:
            tables.add(rows)
            for run_id in {row["run_id"] for row in rows}:
                tables.add_step(run_id, "a")
            for run_id in {row["run_id"] for row in rows if row["state"] == "suspended"}:
                tables.add_step(run_id, "B", waits_for="e")
        self.compare()

    def send(self, session: str, statement: Statement, **parameters: Any) -> list[Any] | None:
        """Send a statement to both, and answer what both answered; None when it would have to wait."""
        if statement.name not in SAVEPOINT and SENDS[statement.name].weight:
            self.release(session)
        memory, postgres = (self._run(driver, statement, parameters) for driver in self._drivers(session))
        if memory != postgres:
            raise OutOfStep(f"{statement.name} in {session}: memory answers {memory}, Postgres {postgres}")
        self.told[statement.name, "blocked" if memory is None else "rows" if memory else "nothing"] += 1
        if memory is None:
            self.back(session) if session in self._marks else self.end(session, "rollback")
        self.compare()
        return memory

    def end(self, session: str, how: str) -> None:
        """Commit or roll back the transaction of a session, if it has one."""
        if self._end(session, how):
            self.compare()

    def savepoint(self, session: str) -> None:
        """Set a savepoint, to which the session goes back when it is blocked."""
        self._drivers(session)
        self._opened.connections[session].execute("savepoint here")
        self._marks[session] = self._transactions[session].mark()

    def back(self, session: str) -> None:
        """Undo what the session did since its savepoint, if it has one."""
        if session in self._marks:
            self._opened.connections[session].execute("rollback to savepoint here")
            self._transactions[session].rollback_to(self._marks[session])

    def release(self, session: str) -> None:
        """Forget the savepoint of a session."""
        self._marks.pop(session, None)

    def move_clock(self, span: timedelta) -> None:
        """Move the time of both."""
        self.world.now += span
        set_time(self._control, ClockState.frozen(self.world.now))

    def close(self) -> None:
        """Roll back every transaction."""
        for session in TRANSACTIONS:
            self._end(session, "rollback")

    def compare(self) -> None:
        """Compare all that is committed.

        Raises:
            OutOfStep: something differs.
        """
        for table in TABLES:
            memory, postgres = (getattr(tables, table)() for tables in self._tables)
            if memory != postgres:
                only = [row for row in memory if row not in postgres], [row for row in postgres if row not in memory]
                raise OutOfStep(f"{table}: only in memory {only[0]}, only on Postgres {only[1]}")
            if table == "jobs":
                self.world.rows = memory

    def _end(self, session: str, how: str) -> bool:
        if session not in self._transactions:
            return False
        getattr(self._opened.connections[session], how)()
        getattr(self._transactions.pop(session), how)()
        self._marks.pop(session, None)
        return True

    def _drivers(self, session: str) -> tuple[MemoryDriver, PostgresDriver | ConnectionDriver]:
        if session not in TRANSACTIONS:
            return self._memory, self._opened.main
        if session not in self._transactions:
            self._transactions[session] = self._memory.begin()
        return self._transactions[session], ConnectionDriver(self._opened.connections[session])

    def _run(self, driver: Any, statement: Statement, parameters: Parameters) -> list[Any] | None:
        try:
            return list(run_sync(driver.run(statement, **parameters)))
        except BLOCKED:
            return None


SESSIONS = st.sampled_from(["main", "main", "main", "one", "two"])
READS = {name: send for name, send in SENDS.items() if not send.weight}


class InStep(RuleBasedStateMachine):
    """Any statements in any order from three sessions, under a clock that moves both ways."""

    opened: Opened
    told: Counter[tuple[str, str]]
    examples: list[None]

    def __init__(self) -> None:
        super().__init__()
        self.examples.append(None)
        self.pair = Pair(self.opened, self.told)

    def teardown(self) -> None:
        self.pair.close()

    @initialize(rows=st.lists(SEED, min_size=2, max_size=8))
    def begin(self, rows: list[Row]) -> None:
        self.pair.seed(seeds(self.pair.world, rows))

    def step(self, session: str, send: Send, choices: dict[str, Any]) -> None:
        parameters = send.parameters(self.pair.world, **choices)
        if parameters is not None:
            rows = self.pair.send(session, send.statement, **parameters)
            if rows and send.learn is not None:
                send.learn(self.pair.world, parameters, rows)

    def look(self, session: str, choices: dict[str, dict[str, Any]]) -> None:
        """Send every statement that only reads."""
        for name, chosen in choices.items():
            self.step(session, READS[name], chosen)

    looks = st.fixed_dictionaries({name: st.fixed_dictionaries(send.choices) for name, send in READS.items()})
    look_0 = rule(session=SESSIONS, choices=looks)(look)
    look_1 = rule(session=SESSIONS, choices=looks)(look)

    def move_clock(self, span: float) -> None:
        self.pair.move_clock(timedelta(seconds=span))

    spans = st.sampled_from([1, 1, 2, 60, 0.000001, -1])
    move_clock_0 = rule(span=spans)(move_clock)
    move_clock_1 = rule(span=spans)(move_clock)
    move_clock_2 = rule(span=spans)(move_clock)

    @rule(session=st.sampled_from(TRANSACTIONS), how=st.sampled_from(["commit", "commit", "rollback"]))
    def end(self, session: str, how: str) -> None:
        self.pair.end(session, how)

    @rule(session=st.sampled_from(TRANSACTIONS))
    def savepoint(self, session: str) -> None:
        self.pair.savepoint(session)

    @rule(session=st.sampled_from(TRANSACTIONS))
    def back(self, session: str) -> None:
        self.pair.back(session)


def _rule(name: str, send: Send) -> Any:
    def step(self: InStep, session: str, **choices: Any) -> None:
        self.step(session, send, choices)

    step.__name__ = name
    return rule(session=SESSIONS, **send.choices)(step)


def run_machine(opened: Opened, profile: settings) -> Counter[tuple[str, str]]:
    """Run the state machine over an opened database, and answer what the stores were told.

    Raises:
        OutOfStep: memory and Postgres differ; it has the number of examples up to there as `examples`.
    """
    rules: dict[str, Any] = {}
    for name, send in SENDS.items():
        for copy in range(send.weight):
            rule_name = f"{name.removeprefix('SQL_').lower()}_{copy}"
            rules[rule_name] = _rule(rule_name, send)
    machine = type("InStep", (InStep,), {**rules, "opened": opened, "told": Counter(), "examples": []})
    try:
        run_state_machine_as_test(machine, settings=profile)  # type: ignore[no-untyped-call]
    except OutOfStep as error:
        error.examples = len(machine.examples)
        raise
    return machine.told

"""What the state machine sends: for each statement, the choices of a step and the parameters that they come to.

A statement is added by one function under `@sends`. Values are few, so that keys, instants, runs and claims meet often;
a place is a position in a list that the world keeps, so that most choices lead to something that is there.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from xjobs import sql
from xjobs.sql import Statement
from xjobs.states import FINISHED, LIVE

UNKNOWN = UUID(int=0xFFF)
GIVEN_IDS = [UUID(int=at << 120 | 0xABC) for at in range(4)]
RUNS = [UUID(int=0xAAA << 64 | at) for at in range(3)]

Parameters = dict[str, Any]
Row = dict[str, Any]


class World:
    """What is known when a step is chosen.

    Attributes:
        now: the present instant.
        rows: the jobs that are committed, by id.
        ids: every id that was ever sent, the latest first.
        claims: every claim that was ever answered, as id, ordinal and worker, the latest first.
        slots: every slot that was ever taken, as key, slot and holder, the latest first.
    """

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.rows: list[Row] = []
        self.ids: list[UUID] = [UNKNOWN]
        self.claims: list[tuple[UUID, int, str]] = []
        self.slots: list[tuple[str, int, str]] = []
        self._made = 0

    def new_id(self, place: int) -> UUID:
        """An id whose order among others is chosen by its place, not by when it was made."""
        self._made += 1
        return self.learn_id(UUID(int=place << 120 | self._made))

    def new_run(self) -> UUID:
        self._made += 1
        return UUID(int=self._made << 8)

    def learn_id(self, job_id: UUID) -> UUID:
        self.ids.insert(0, job_id)
        return job_id

    def learn_claims(self, parameters: Parameters, rows: list[Any]) -> None:
        self.claims[:0] = [(row[0], row[9], parameters["worker_id"]) for row in rows]

    def learn_slots(self, parameters: Parameters, rows: list[Any]) -> None:
        taken = [(parameters["keys"][at - 1], slot, parameters["holders"][at - 1]) for at, slot in rows]
        self.slots[:0] = taken

    def slots_at(self, places: list[int], stranger: str | None) -> Parameters:
        """Slots that were taken, named by their holders or by another one; none while none was."""
        known = list(dict.fromkeys(self.slots))
        chosen = list(dict.fromkeys(known[place % len(known)] for place in places)) if known else []
        return {
            "keys": [key for key, _, _ in chosen],
            "slots": [slot for _, slot, _ in chosen],
            "holders": [stranger or holder for _, _, holder in chosen],
        }

    def id_at(self, place: int) -> UUID:
        """An id of a row that stands, or behind those of one that may be gone or has never been."""
        ids = list(dict.fromkeys([*(row["id"] for row in self.rows), *self.ids]))
        return ids[place % len(ids)]

    def claims_at(self, places: list[int], stranger: str | None) -> Parameters | None:
        """Claims, those that stand first, to be settled by the worker of the first or by another one."""
        standing = [(row["id"], row["claims"], row["claimed_by"]) for row in self.rows if row["state"] == "running"]
        known = list(dict.fromkeys([*standing, *self.claims]))
        if not known:
            return None
        chosen = [known[place % len(known)] for place in places]
        claims = list(dict.fromkeys((job_id, claim) for job_id, claim, _ in chosen))
        return {
            "ids": [job_id for job_id, _ in claims],
            "claims": [claim for _, claim in claims],
            "worker_id": stranger or chosen[0][2],
        }

    def claim_at(self, place: int, stranger: str | None) -> Parameters | None:
        """One claim, as statements of its body name it."""
        found = self.claims_at([place], stranger)
        return found and {"id": found["ids"][0], "claim": found["claims"][0], "worker_id": found["worker_id"]}

    def run_at(self, place: int) -> UUID:
        """The run of a row that stands, or behind those one that was there at the beginning."""
        runs = list(dict.fromkeys([*(row["run_id"] for row in self.rows), *RUNS]))
        return runs[place % len(runs)]

    def state_at(self, place: int) -> str:
        """A state that rows are in."""
        states = sorted({row["state"] for row in self.rows}) or ["ready"]
        return states[place % len(states)]


class Send(NamedTuple):
    """How one statement is sent.

    Attributes:
        statement: the statement.
        choices: what a step draws, by name.
        parameters: from the world and the choices to the statement's parameters; None when there is nothing to send.
        weight: how often it is sent, beside the others that write; 0 for one that reads, they go all together.
        learn: what to do with its parameters and its answer.
    """

    statement: Statement
    choices: dict[str, SearchStrategy[Any]]
    parameters: Callable[..., Parameters | None]
    weight: int
    learn: Callable[[World, Parameters, list[Any]], None] | None


SENDS: dict[str, Send] = {}
"""How each statement is sent, by its name."""

SAVEPOINT = frozenset({"SQL_ENQUEUE", "SQL_ENQUEUE_ONE"})
"""What can be undone to a savepoint in memory, where transactions of others' libraries only enqueue."""


def sends(
    *statements: Statement,
    weight: int = 1,
    learn: Callable[[World, Parameters, list[Any]], None] | None = None,
    **choices: SearchStrategy[Any],
) -> Callable[[Callable[..., Parameters | None]], Callable[..., Parameters | None]]:
    """Enter how statements with the same parameters are sent."""

    def enter(parameters: Callable[..., Parameters | None]) -> Callable[..., Parameters | None]:
        for statement in statements:
            SENDS[statement.name] = Send(statement, choices, parameters, weight, learn)
        return parameters

    return enter


# "B" and "R" come first as bytes and later in most languages.
NAMES, QUEUES = st.sampled_from(["a", "a", "a", "B"]), st.sampled_from(["q", "q", "q", "R"])
WORKERS = st.sampled_from(["v", "w"])
KEYS, TENANTS = st.sampled_from(["k", "k", "k", "l"]), st.sampled_from([None, None, "", "t"])
SECONDS = st.sampled_from([0, 0, -1, 1]).map(lambda count: timedelta(seconds=count))
LEASES = st.integers(1, 2).map(lambda count: timedelta(seconds=count))
PLACES = st.integers(0, 9)
LIMITS = st.sampled_from([1, 1_000, 1, 2, 3, 1_000, 2, 0])
STRANGERS = st.sampled_from([None, None, None, None, "v", "w"])
CLAIMS = st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True)
STEPS, EVENTS = st.sampled_from(["a", "a", "B"]), st.sampled_from(["e", "e", "F"])
CORRELATIONS = st.sampled_from([None, None, "c"])
ERRORS, STACKS = st.sampled_from([None, "e", "ä"]), st.sampled_from([None, "s"])


def rarely(strategy: SearchStrategy[Any], odds: int = 4) -> SearchStrategy[Any]:
    """None, but for one time in so many."""
    return st.one_of(*[st.none()] * (odds - 1), strategy)


JOB = st.fixed_dictionaries(
    {
        "given": rarely(st.sampled_from(GIVEN_IDS)),
        "place": st.integers(0, 3),
        "name": NAMES,
        "queue": QUEUES,
        "key": KEYS,
        "tenant": TENANTS,
        "attempts": st.integers(1, 2),
        "delay": rarely(SECONDS),
        "run_at": rarely(SECONDS),
    }
)
SEED = st.fixed_dictionaries(
    {
        "place": st.integers(0, 3),
        "name": NAMES,
        "queue": QUEUES,
        "key": KEYS,
        "tenant": TENANTS,
        "run": st.integers(0, 2),
        "state": st.sampled_from(["dead", "dead", *FINISHED, *LIVE, "running", "suspended", "of a later version"]),
        "attempt": st.integers(0, 2),
        "max_attempts": st.integers(1, 2),
        "claims": st.integers(0, 2),
        "worker": WORKERS,
        "age": st.integers(0, 2),
        "due": SECONDS,
        "lapses": SECONDS,
        "error": ERRORS,
        "stack": STACKS,
    }
)


def seeds(world: World, chosen: list[Row]) -> list[Row]:
    """Rows for an empty table, with every column; of those that are live with one key, the first stays live."""
    keys: set[tuple[str, str, str]] = set()
    rows = []
    for at, seed in enumerate(chosen):
        state, key = seed["state"], (seed["name"], seed["tenant"] or "", seed["key"])
        if state in LIVE and key in keys:
            state = "dead"
        elif state in LIVE:
            keys.add(key)
        running = state == "running"
        created_at = world.now - timedelta(seconds=seed["age"])
        rows.append(
            {
                "id": world.new_id(seed["place"]),
                "name": seed["name"],
                "queue": seed["queue"],
                "input": {"n": at},
                "idempotency_key": seed["key"],
                "run_id": RUNS[seed["run"]],
                "attempt": seed["attempt"],
                "max_attempts": seed["max_attempts"],
                "state": state,
                # What is suspended waits: for an event, which wakes it earlier.
                "run_at": world.now + (timedelta(seconds=2) if state == "suspended" else seed["due"]),
                "visible_at": world.now + seed["lapses"] if running else None,
                "claimed_by": seed["worker"] if running else None,
                "last_error": seed["error"],
                "last_error_stack": seed["stack"],
                "tenant_id": seed["tenant"],
                "created_at": created_at,
                "updated_at": created_at,
                "traceparent": None,
                "enqueued_by": "ann",
                "progress": {"done": at} if at % 2 else None,
                "claims": seed["claims"],
            }
        )
    return rows


@sends(sql.SQL_ENQUEUE, weight=3, jobs=st.lists(JOB, min_size=1, max_size=4))
def enqueue(world: World, jobs: list[Row]) -> Parameters:
    given: set[UUID] = set()
    ids: list[UUID] = []
    named: list[bool] = []
    for job in jobs:
        chosen = job["given"]
        named.append(chosen is not None and chosen not in given)
        ids.append(world.learn_id(chosen) if named[-1] else world.new_id(job["place"]))
        given.add(ids[-1])
    return {
        "ids": ids,
        "named": named,
        "names": [job["name"] for job in jobs],
        "queues": [job["queue"] for job in jobs],
        "inputs": [f'{{"n": {at}}}' for at, _ in enumerate(jobs)],
        "idempotency_keys": [job["key"] for job in jobs],
        "run_ids": [world.new_run() for _ in jobs],
        "max_attempts": [job["attempts"] for job in jobs],
        "run_ats": [_instant(world, job["run_at"]) for job in jobs],
        "delays": [job["delay"] for job in jobs],
        "tenant_ids": [job["tenant"] for job in jobs],
        "traceparents": [None for _ in jobs],
        "enqueued_bys": ["ann" for _ in jobs],
    }


@sends(sql.SQL_ENQUEUE_ONE, weight=3, job=JOB)
def enqueue_one(world: World, job: Row) -> Parameters:
    return {
        "id": world.new_id(job["place"]),
        "name": job["name"],
        "queue": job["queue"],
        "input": '{"n": null}',
        "idempotency_key": job["key"],
        "run_id": world.new_run(),
        "max_attempts": job["attempts"],
        "run_at": _instant(world, job["run_at"]),
        "delay": job["delay"],
        "tenant_id": job["tenant"],
        "traceparent": "00-1-2-3",
        "enqueued_by": None,
    }


@sends(
    sql.SQL_CLAIM,
    weight=5,
    learn=World.learn_claims,
    queues=st.sampled_from([["q", "R"], ["R", "q"], ["q"], ["R"]]),
    limit=LIMITS,
    lease=LEASES,
    worker_id=WORKERS,
    drop_exhausted=st.sampled_from([[], ["a"]]),
)
def claim(world: World, **parameters: Any) -> Parameters:
    return parameters


@sends(sql.SQL_ACK, weight=3, places=CLAIMS, stranger=STRANGERS, counted=st.booleans(), duration=st.integers(0, 9))
def ack(world: World, places: list[int], stranger: str | None, counted: bool, duration: int) -> Parameters | None:
    claims = world.claims_at(places, stranger)
    if claims is None:
        return None
    return {**claims, "durations_ms": [duration + at for at, _ in enumerate(claims["ids"])], "counted": counted}


NACKED = st.fixed_dictionaries(
    {
        "state": st.sampled_from(["ready", "ready", "suspended", "suspended", "failed", "dead"]),
        "delay": SECONDS,
        "error": ERRORS,
        "stack": STACKS,
        "counted": st.booleans(),
        "duration": st.integers(0, 9),
    }
)


@sends(sql.SQL_NACK, weight=4, places=CLAIMS, stranger=STRANGERS, nacks=st.lists(NACKED, min_size=3, max_size=3))
def nack(world: World, places: list[int], stranger: str | None, nacks: list[Row]) -> Parameters | None:
    claims = world.claims_at(places, stranger)
    if claims is None:
        return None
    nacks = nacks[: len(claims["ids"])]
    return {
        **claims,
        "states": [nack["state"] for nack in nacks],
        "delays": [nack["delay"] for nack in nacks],
        "errors": [nack["error"] for nack in nacks],
        "stacks": [nack["stack"] for nack in nacks],
        "counted": [nack["counted"] for nack in nacks],
        "durations_ms": [nack["duration"] for nack in nacks],
    }


@sends(sql.SQL_HEARTBEAT, weight=2, places=CLAIMS, stranger=STRANGERS, lease=LEASES)
def heartbeat(world: World, places: list[int], stranger: str | None, lease: timedelta) -> Parameters | None:
    claims = world.claims_at(places, stranger)
    return None if claims is None else {**claims, "lease": lease}


@sends(sql.SQL_PROMOTE, sql.SQL_REMOVE, place=PLACES)
@sends(sql.SQL_JOB, weight=0, place=PLACES)
def by_id(world: World, place: int) -> Parameters:
    return {"id": world.id_at(place)}


@sends(sql.SQL_REQUEUE, weight=2, place=PLACES, from_step=rarely(STEPS, 2))
def requeue(world: World, place: int, from_step: str | None) -> Parameters:
    return {"id": world.id_at(place), "from_step": from_step}


@sends(sql.SQL_CANCEL, place=PLACES, reason=ERRORS)
def cancel(world: World, place: int, reason: str | None) -> Parameters:
    return {"id": world.id_at(place), "reason": reason}


FILTERS = {"queue": rarely(QUEUES, 6), "name": rarely(NAMES, 6), "tenant_id": rarely(TENANTS, 6)}


@sends(sql.SQL_REQUEUE_MANY, weight=3, state=PLACES, limit=LIMITS, **FILTERS)
@sends(sql.SQL_PROMOTE_MANY, sql.SQL_REMOVE_MANY, state=PLACES, limit=LIMITS, **FILTERS)
def many(world: World, state: int, **filters: Any) -> Parameters:
    return {"state": world.state_at(state), **filters}


@sends(sql.SQL_CANCEL_MANY, state=PLACES, limit=LIMITS, reason=ERRORS, **FILTERS)
def cancel_many(world: World, state: int, **filters: Any) -> Parameters:
    return {"state": world.state_at(state), **filters}


@sends(sql.SQL_PAUSE, sql.SQL_RESUME, weight=2, kind=st.sampled_from(["queue", "queue", "queue", "task"]), name=QUEUES)
def pause(world: World, **parameters: Any) -> Parameters:
    return parameters


@sends(sql.SQL_PAUSED, weight=0, kind=st.sampled_from(["queue", "queue", "queue", "task"]))
def paused(world: World, kind: str) -> Parameters:
    return {"kind": kind}


LISTED = {
    "state": rarely(PLACES, 8),
    "id_prefix": rarely(st.sampled_from(["0", "01", "_", "%"]), 8),
    "created_from": rarely(SECONDS, 8),
    "created_to": rarely(SECONDS, 8),
    "limit": LIMITS,
    "place": PLACES,
    "at": SECONDS,
    **FILTERS,
}


@sends(sql.SQL_JOBS, weight=0, after=st.booleans(), **LISTED)
def jobs(world: World, after: bool, place: int, at: timedelta, **filters: Any) -> Parameters:
    created_at, job_id = _cursor(world, place, at)
    return {
        **_listed(world, **filters),
        "after_created_at": created_at if after else None,
        "after_id": job_id if after else None,
    }


@sends(sql.SQL_JOBS_BEFORE, weight=0, **LISTED)
def jobs_before(world: World, place: int, at: timedelta, **filters: Any) -> Parameters:
    created_at, job_id = _cursor(world, place, at)
    return {**_listed(world, **filters), "before_created_at": created_at, "before_id": job_id}


@sends(sql.SQL_WAITING, weight=0, limit=LIMITS)
def waiting(world: World, limit: int) -> Parameters:
    return {"limit": limit}


@sends(sql.SQL_STATS, weight=0)
def stats(world: World) -> Parameters:
    return {}


@sends(
    sql.SQL_STEP_PUT,
    weight=2,
    place=st.integers(0, 3),
    stranger=STRANGERS,
    name=STEPS,
    status=st.sampled_from(["completed", "failed"]),
    elapsed=SECONDS,
    after=rarely(SECONDS, 2),
    error=ERRORS,
)
def step_put(
    world: World, place: int, stranger: str | None, status: str, after: timedelta | None, **step: Any
) -> Parameters | None:
    claim = world.claim_at(place, stranger)
    output = '{"n": 1}' if status == "completed" else None
    return claim and {**claim, "status": status, "output": output, "after": _instant(world, after), **step}


@sends(
    sql.SQL_STEP_SLEEP,
    weight=2,
    place=st.integers(0, 3),
    stranger=STRANGERS,
    name=STEPS,
    duration=SECONDS,
    after=rarely(SECONDS, 2),
)
def step_sleep(
    world: World, place: int, stranger: str | None, after: timedelta | None, **step: Any
) -> Parameters | None:
    claim = world.claim_at(place, stranger)
    return claim and {**claim, "after": _instant(world, after), **step}


@sends(
    sql.SQL_STEP_WAIT,
    weight=3,
    place=st.integers(0, 3),
    stranger=STRANGERS,
    name=STEPS,
    event=EVENTS,
    correlation_key=CORRELATIONS,
    timeout=SECONDS,
    required=st.booleans(),
    after=rarely(SECONDS, 2),
)
def step_wait(
    world: World, place: int, stranger: str | None, after: timedelta | None, **step: Any
) -> Parameters | None:
    claim = world.claim_at(place, stranger)
    return claim and {**claim, "after": _instant(world, after), **step}


@sends(sql.SQL_WAKE_WAITS, weight=2, events=st.sampled_from([None, ["e"], ["F"], ["e", "F"]]))
def wake_waits(world: World, events: list[str] | None) -> Parameters:
    return {"events": events}


@sends(sql.SQL_PROGRESS, place=st.integers(0, 3), stranger=STRANGERS, done=st.integers(0, 2))
def progress(world: World, place: int, stranger: str | None, done: int) -> Parameters | None:
    claim = world.claim_at(place, stranger)
    return claim and {**claim, "progress": f'{{"done": {done}}}'}


@sends(sql.SQL_EVENT_PUBLISH, weight=3, place=st.integers(0, 3), name=EVENTS, correlation_key=CORRELATIONS, ttl=LEASES)
def event_publish(world: World, place: int, **event: Any) -> Parameters:
    return {"id": world.new_id(place), "payload": '{"x": 1}', **event}


@sends(sql.SQL_EVENTS_PURGE, limit=LIMITS)
def events_purge(world: World, limit: int) -> Parameters:
    return {"limit": limit}


@sends(sql.SQL_EVENTS, weight=0, name=rarely(EVENTS, 2), limit=LIMITS)
def events(world: World, **parameters: Any) -> Parameters:
    return parameters


@sends(sql.SQL_STEPS, weight=0, place=PLACES)
def steps(world: World, place: int) -> Parameters:
    return {"run_id": world.run_at(place)}


SLOT_KEYS = st.sampled_from(["s", "s", "s", "T"])
REQUEST = st.tuples(SLOT_KEYS, st.integers(1, 2), WORKERS)


@sends(
    sql.SQL_SLOT_ACQUIRE,
    weight=2,
    learn=World.learn_slots,
    requests=st.lists(REQUEST, min_size=1, max_size=3),
    ttl=LEASES,
)
def slot_acquire(world: World, requests: list[tuple[str, int, str]], ttl: timedelta) -> Parameters:
    keys, limits, holders = (list(column) for column in zip(*requests, strict=True))
    return {"keys": keys, "limits": limits, "holders": holders, "ttl": ttl}


@sends(sql.SQL_SLOT_RELEASE, places=CLAIMS, stranger=STRANGERS)
def slot_release(world: World, places: list[int], stranger: str | None) -> Parameters:
    return world.slots_at(places, stranger)


@sends(sql.SQL_SLOT_HOLDERS, weight=0, keys=st.sampled_from([["s", "T"], ["T"], ["s"]]))
def slot_holders(world: World, keys: list[str]) -> Parameters:
    return {"keys": keys}


@sends(
    sql.SQL_RENEW,
    weight=2,
    places=CLAIMS,
    slots=CLAIMS,
    stranger=STRANGERS,
    lease=LEASES,
    cancelled=st.booleans(),
)
def renew(
    world: World, places: list[int], slots: list[int], stranger: str | None, lease: timedelta, cancelled: bool
) -> Parameters:
    claims = world.claims_at(places, stranger) or {"ids": [], "claims": [], "worker_id": "w"}
    gone = [row for row in world.rows if cancelled and row["state"] == "cancelled" and row["id"] not in claims["ids"]]
    return {
        **world.slots_at(slots, stranger),
        "worker_id": claims["worker_id"],
        "ids": [*claims["ids"], *(row["id"] for row in gone)],
        "claims": [*claims["claims"], *(row["claims"] for row in gone)],
        "lease": lease,
    }


@sends(sql.SQL_GIVE_BACK, places=st.lists(st.integers(0, 5), max_size=2), worker_id=WORKERS, queue=QUEUES)
def give_back(world: World, places: list[int], worker_id: str, queue: str) -> Parameters:
    known = world.claims_at(places, None) if places else None
    return {
        "worker_id": worker_id,
        "queues": [queue],
        "ids": known["ids"] if known else [],
        "claims": known["claims"] if known else [],
    }


@sends(
    sql.SQL_WORKER_ANNOUNCE,
    weight=2,
    id=st.sampled_from(["v", "w", "W"]),
    started=SECONDS,
    concurrency=st.integers(1, 2),
    ttl=LEASES,
    draining=st.booleans(),
)
def worker_announce(world: World, started: timedelta, **announcement: Any) -> Parameters:
    given = {"host": "h", "queues": '["q"]', "in_flight": "[]", "started_at": world.now + started}
    return {**given, **announcement}


@sends(sql.SQL_WORKER_FORGET, id=st.sampled_from(["v", "w", "W"]))
def worker_forget(world: World, **worker: str) -> Parameters:
    return worker


@sends(sql.SQL_WORKERS)
@sends(sql.SQL_SCALER_DEPTH, weight=0)
def of_all(world: World) -> Parameters:
    return {}


@sends(sql.SQL_WAKE, weight=0, payload=QUEUES)
def wake(world: World, payload: str) -> Parameters:
    return {"payload": payload}


def _instant(world: World, span: timedelta | None) -> datetime | None:
    return None if span is None else world.now + span


def _cursor(world: World, place: int, at: timedelta) -> tuple[datetime, UUID]:
    """Where a row stands in listings; one that is not there could stand anywhere."""
    job_id = world.id_at(place)
    return {row["id"]: row["created_at"] for row in world.rows}.get(job_id, world.now + at), job_id


def _listed(world: World, *, state: int | None, **filters: Any) -> Parameters:
    for bound in ("created_from", "created_to"):
        filters[bound] = _instant(world, filters[bound])
    return {**filters, "state": None if state is None else world.state_at(state)}

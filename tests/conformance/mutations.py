"""Faults to plant, one at a time, in a twin or in a statement: what the state machine must be able to find.

A fault in a twin makes a faulty twin of the real one, mostly by other arguments, another answer or an undone change. A
fault in a statement is another text in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from xjobs import sql
from xjobs.drivers.memory import TWINS, Twin, operate
from xjobs.drivers.memory.store import Job, Session
from xjobs.records import MICROSECOND
from xjobs.sql import Statement
from xjobs.states import FINISHED

Rows = list[tuple[Any, ...]]


class Fault(NamedTuple):
    """A fault in one statement: of a faulty twin, or of a piece of its text and what stands in its place."""

    statement: str
    twin: Callable[[Twin], Twin] | None = None
    text: tuple[str, str] | None = None


FAULTS: dict[str, Fault] = {}
"""Every fault, by what is wrong."""


def twin(statement: str, what: str) -> Callable[[Callable[..., Rows]], Callable[..., Rows]]:
    """Enter a fault: a function that gets the real twin, the session and the parameters."""

    def enter(faulty: Callable[..., Rows]) -> Callable[..., Rows]:
        FAULTS[what] = Fault(statement, lambda real: lambda session, **parameters: faulty(real, session, **parameters))
        return faulty

    return enter


RARE = frozenset(
    {
        "no name drops what is exhausted",
        "a burial keeps the old stack",
        "the claim ordinal is not fenced",
        "an uncounted attempt goes below none",
        "the lease stays",
        "a job that is due already is promoted",
        "the newest are cancelled first",
        "of one key the newest is requeued",
        "locked rows are waited for",
        "the newest are answered and not the nearest",
        "a second pause moves the instant",
        "a remove leaves the steps",
        "a claim buries an attempt late",
        "a retry is not counted",
        "a bulk remove takes all steps of its runs",
        "extended claims are answered in no order",
        "steps come in the order of their names",
        "events that were not named wake",
        "a step is written by an earlier claim",
        "an event of any key is taken",
        "a purge of none takes one",
        "paused queues are not last",
        "schedules are listed among queues",
        "any worker reports progress",
        "the page begins with its cursor",
        "what a draining worker holds is counted",
        "each draining announcement counts",
        "a slot that lapses now is held",
        "anyone releases a slot",
        "an uncounted retry is counted",
        "the earliest events come first",
        "the first key alone is looked up",
        "a running job is removed",
        "no reason clears the error",
        "a step begins before the one before it",
    }
)
"""The faults that take more than some stories to find."""


def text(statement: str, what: str, old: str, new: str) -> None:
    """Enter a fault in the text of a statement."""
    FAULTS[what] = Fault(statement, text=(old, new))


@contextmanager
def planted(fault: Fault) -> Iterator[None]:
    """Have the fault for the length of a block."""
    with pytest.MonkeyPatch.context() as patch:
        if fault.twin is not None:
            patch.setitem(TWINS, fault.statement, fault.twin(TWINS[fault.statement]))
        if fault.text is not None:
            right = getattr(sql, fault.statement)
            wrong = str(right).replace(*fault.text, 1)
            assert wrong != right, f"{fault.statement} does not hold {fault.text[0]!r}"
            statement = Statement(wrong, right.name, right.parameters, right.guarantee)
            # Who has the statement in hand sends the faulty text as well.
            patch.setattr(right, "query", statement.query)
        yield


def _rows(session: Session, ids: Any) -> list[Job]:
    """The rows of the table that have one of the ids, whoever has written them."""
    return [job for job in session.store.jobs.values() if job.id in ids]


@twin("SQL_ENQUEUE", "many jobs share keys across tenants")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    return real(session, **{**given, "tenant_ids": [None for _ in given["tenant_ids"]]})


@twin("SQL_ENQUEUE", "a given id is not looked up")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    chosen = [job_id for job_id, named in zip(given["ids"], given["named"], strict=True) if named]
    return [] if _rows(session, chosen) else real(session, **given)


@twin("SQL_ENQUEUE_ONE", "a job that is due this instant is delayed")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    rows = real(session, **given)
    for job in _rows(session, [row[0] for row in rows]):
        if given["run_at"] == session.now:
            job.state = "delayed"
    return rows


@twin("SQL_CLAIM", "a limit of zero takes one")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    return real(session, **{**given, "limit": given["limit"] or 1})


@twin("SQL_CLAIM", "no name drops what is exhausted")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    return real(session, **{**given, "drop_exhausted": []})


@twin("SQL_CLAIM", "a burial keeps the old stack")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    stacks = {job.id: job.last_error_stack for job in session.store.jobs.values()}
    rows = real(session, **given)
    for job in _rows(session, [row[0] for row in rows if row[3] != "running"]):
        job.last_error_stack = stacks[job.id]
    return rows


@twin("SQL_CLAIM", "equal instants come in no order")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    return sorted(real(session, **given), key=lambda row: (row[10], -row[0].int))


@twin("SQL_ACK", "the claim ordinal is not fenced")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    current = {job.id: job.claims for job in session.store.jobs.values()}
    claims = [current.get(job_id, claim) for job_id, claim in zip(given["ids"], given["claims"], strict=True)]
    return real(session, **{**given, "claims": claims})


@twin("SQL_ACK", "what is not counted is counted")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    return real(session, **{**given, "counted": True})


@twin("SQL_NACK", "a new error keeps the old stack when it has none")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    stacks = {job.id: job.last_error_stack for job in session.store.jobs.values()}
    rows = real(session, **given)
    for job in _rows(session, [row[0] for row in rows]):
        job.last_error_stack = job.last_error_stack or stacks[job.id]
    return rows


@twin("SQL_NACK", "an uncounted attempt goes below none")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    attempts = {job.id: job.attempt for job in session.store.jobs.values()}
    rows = real(session, **given)
    counted = dict(zip(given["ids"], given["counted"], strict=True))
    for job in _rows(session, [row[0] for row in rows]):
        job.attempt = attempts[job.id] - (not counted[job.id])
    return rows


@twin("SQL_NACK", "an uncounted retry is counted")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    rows = real(session, **{**given, "counted": [True for _ in given["counted"]]})
    counted = dict(zip(given["ids"], given["counted"], strict=True))
    for job in _rows(session, [row[0] for row in rows]):
        job.attempt = job.attempt if counted[job.id] else max(job.attempt - 1, 0)
    return rows


@twin("SQL_HEARTBEAT", "any worker renews")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    workers = [job.claimed_by for job in _rows(session, given["ids"][:1])]
    return real(session, **{**given, "worker_id": workers[0] if workers and workers[0] else given["worker_id"]})


@twin("SQL_CANCEL", "no reason clears the error")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    return [(*row[:13], given["reason"] if row[1] else row[13], *row[14:]) for row in real(session, **given)]


@twin("SQL_CANCEL", "the lease stays")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    leases = {job.id: job.visible_at for job in session.store.jobs.values()}
    rows = real(session, **given)
    for job in _rows(session, [row[1] for row in rows if row[1]]):
        job.visible_at = leases[job.id]
    return rows


@twin("SQL_REQUEUE", "a key that a live job holds is answered by the job itself")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    return [(row[0], row[1] and given["id"], *row[2:]) for row in real(session, **given)]


@twin("SQL_REQUEUE", "the attempts stay")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    attempts = {job.id: job.attempt for job in session.store.jobs.values()}
    rows = real(session, **given)
    for job in _rows(session, [row[2] for row in rows if row[2]]):
        job.attempt = attempts[job.id]
    return rows


@twin("SQL_PROMOTE", "a job that is due already is promoted")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    rows = real(session, **given)
    for job in _rows(session, [given["id"]]):
        if rows and rows[0][1] is None and job.state == "delayed":
            job.state = "ready"
    return rows


@twin("SQL_REMOVE", "a running job is removed")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    for job in _rows(session, [given["id"]]):
        if job.state == "running" and not session.locked(job):
            job.state = "ready"
    return real(session, **given)


@twin("SQL_CANCEL_MANY", "the newest are cancelled first")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    filters = (given["state"], given["queue"], given["name"], given["tenant_id"])
    found = operate._matching(session, *filters, operate.LIVE)
    found.reverse()
    return operate._many(session, found, given["limit"], lambda job: operate._cancel(session, job, given["reason"]))


@twin("SQL_REQUEUE_MANY", "of one key the newest is requeued")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    newest = {}
    for job in operate._matching(session, given["state"], given["queue"], given["name"], given["tenant_id"], FINISHED):
        if operate._holder(session, job) is None:
            newest[job.live_key] = job
    for job in list(newest.values())[: given["limit"]]:
        operate._wait_for_key(session, job.live_key)
    return operate._many(session, newest.values(), given["limit"], lambda job: operate._requeue(session, job))


@twin("SQL_REQUEUE_MANY", "jobs whose key is held remain")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    filters = (given["state"], given["queue"], given["name"], given["tenant_id"])
    held = sum(operate._holder(session, job) is not None for job in operate._matching(session, *filters, FINISHED))
    return [(affected, remaining + held) for affected, remaining in real(session, **given)]


@twin("SQL_PROMOTE_MANY", "due jobs remain")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    filters = (given["state"], given["queue"], given["name"], given["tenant_id"])
    found = operate._matching(session, *filters, ("ready", "delayed"))
    ((affected, _),) = real(session, **given)
    return [(affected, len(found) - affected)]


@twin("SQL_REMOVE_MANY", "locked rows are waited for")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    filters = (given["state"], given["queue"], given["name"], given["tenant_id"])
    found = operate._matching(session, *filters, (given["state"],))
    for job in found[: given["limit"]]:
        session.wait_for(_rows(session, [job.id])[0], "a job")
    return real(session, **given)


@twin("SQL_JOB", "a row that is not committed is seen")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    return [operate.answer(job) for job in _rows(session, [given["id"]]) if not job.gone]


@twin("SQL_JOBS", "the page begins with its cursor")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    after = given["after_id"]
    return real(session, **{**given, "after_id": after and type(after)(int=after.int + 1)})


@twin("SQL_JOBS_BEFORE", "the newest are answered and not the nearest")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    return real(session, **{**given, "limit": 1_000})[: given["limit"]]


@twin("SQL_WAITING", "what an open transaction settles is missed")
def _(real: Twin, session: Session, **parameters: Any) -> Rows:
    return [row for row in real(session, **parameters) if row[0] in {job.id for job in session.store.live.values()}]


@twin("SQL_WAITING", "paused queues are not last")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    rows = real(session, **{**given, "limit": 1_000})
    return sorted(rows, key=lambda row: (row[4], row[0]))[: given["limit"]]


@twin("SQL_STATS", "what is due this instant is delayed")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    now = session.now
    due = [job for job in session.store.jobs.values() if job.state in ("ready", "delayed") and job.run_at == now]
    return [
        (queue, ready - sum(job.queue == queue for job in due), delayed + sum(job.queue == queue for job in due), *rest)
        for queue, ready, delayed, *rest in real(session, **given)
    ]


@twin("SQL_PAUSE", "a second pause moves the instant")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    rows = real(session, **given)
    session.store.pauses[given["kind"], given["name"]].paused_at = session.now
    return rows


@twin("SQL_RESUME", "what was not paused is resumed")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    return real(session, **given) or [(given["name"],)]


@twin("SQL_PAUSED", "schedules are listed among queues")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    return sorted([row for kind in ("queue", "task") for row in real(session, kind=kind)])


@twin("SQL_REQUEUE", "a requeue from a step keeps it")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    return real(session, **{**given, "from_step": None})


@twin("SQL_STEP_PUT", "a step is written by an earlier claim")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    current = [job.claims for job in _rows(session, [given["id"]])]
    return real(session, **{**given, "claim": current[0] if current else 0})


@twin("SQL_STEP_PUT", "a step begins before the one before it")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    return real(session, **{**given, "after": None})


@twin("SQL_STEP_SLEEP", "each look begins the sleep anew")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    for step in [step for steps in session.store.steps.values() for step in steps.values()]:
        if step.name == given["name"] and step.writer is None:
            step.wake_at = None
    return real(session, **given)


@twin("SQL_STEP_WAIT", "an event of any key is taken")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    return real(session, **{**given, "correlation_key": None})


@twin("SQL_WAKE_WAITS", "events that were not named wake")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    return real(session, **{**given, "events": None})


@twin("SQL_PROGRESS", "any worker reports progress")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    workers = [job.claimed_by for job in _rows(session, [given["id"]])]
    return real(session, **{**given, "worker_id": workers[0] if workers else given["worker_id"]})


@twin("SQL_EVENT_PUBLISH", "an event stays longer than it may")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    return real(session, **{**given, "ttl": given["ttl"] * 2})


@twin("SQL_EVENTS_PURGE", "a purge of none takes one")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    return real(session, **{**given, "limit": given["limit"] or 1})


@twin("SQL_EVENTS", "the earliest events come first")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    return list(reversed(real(session, **given)))


@twin("SQL_STEPS", "steps come in the order of their names")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    return sorted(real(session, **given), key=lambda row: row[0])


text("SQL_REMOVE", "a remove leaves the steps", "where s.run_id = g.run_id\n", "where s.run_id = g.id\n")
text("SQL_REMOVE_MANY", "a bulk remove takes all steps of its runs", "and k.id <> all(", "and false and k.id <> all(")
text("SQL_CLAIM", "a claim buries an attempt late", "j.attempt >= j.max_attempts", "j.attempt > j.max_attempts")
text("SQL_NACK", "a retry is not counted", "(where h.state = 'ready')", "(where h.state = 'suspended')")
text("SQL_ENQUEUE", "of many jobs those due this instant are delayed", "g.delay) > now()", "g.delay) >= now()")
text("SQL_HEARTBEAT", "extended claims are answered in no order", "order by e.id", "order by e.id desc")


@twin("SQL_SLOT_ACQUIRE", "a slot that lapses now is held")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    held = [slot for slot in session.store.slots.values() if not slot.gone and slot.expires_at == session.now]
    for slot in held:
        slot.expires_at += MICROSECOND
    rows = real(session, **given)
    for slot in held:
        if slot.expires_at == session.now + MICROSECOND:
            slot.expires_at = session.now
    return rows


@twin("SQL_SLOT_ACQUIRE", "the limit of the first request is that of all")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    return real(session, **{**given, "limits": [given["limits"][0]] * len(given["limits"])})


@twin("SQL_SLOT_RELEASE", "anyone releases a slot")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    places = zip(given["keys"], given["slots"], strict=True)
    holders = [getattr(session.store.slots.get(place), "holder", "nobody") for place in places]
    return real(session, **{**given, "holders": holders})


@twin("SQL_SLOT_HOLDERS", "the first key alone is looked up")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    return real(session, keys=given["keys"][:1])


@twin("SQL_RENEW", "slots are not renewed")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    ends = {slot: slot.expires_at for slot in session.store.slots.values() if not slot.gone}
    rows = real(session, **given)
    for slot, end in ends.items():
        slot.expires_at = end
    return rows


@twin("SQL_RENEW", "a cancelled job is lost")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    return [
        (kind, at, "lost" if standing == "cancelled" else standing) for kind, at, standing in real(session, **given)
    ]


@twin("SQL_GIVE_BACK", "what is known is given back too")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    return real(session, **{**given, "ids": [], "claims": []})


@twin("SQL_WORKER_ANNOUNCE", "each draining announcement counts")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    rows = real(session, **given)
    if given["draining"]:
        session.store.workers[given["id"]].draining_at = session.now
        return [(session.now,)]
    return rows


@twin("SQL_WORKER_FORGET", "a worker stays listed")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    return [(given["id"],)] if given["id"] in session.store.workers else []


@twin("SQL_WORKERS", "workers come by their ids")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    return sorted(real(session, **given), key=lambda row: row[0])


@twin("SQL_SCALER_DEPTH", "what a draining worker holds is counted")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    draining = {worker: worker.draining_at for worker in session.store.workers.values()}
    for worker in draining:
        worker.draining_at = None
    rows = real(session, **given)
    for worker, since in draining.items():
        worker.draining_at = since
    return rows


@twin("SQL_WAKE", "nothing is answered")
def _(real: Twin, session: Session, **given: Any) -> Rows:
    real(session, **given)
    return []

"""Whether a claimed job may run under the fleet-wide limit of its job, and what becomes of it when it may not."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from xjobs.drivers.base import Driver
from xjobs.errors import KeyBusy
from xjobs.jobs import JobHandle
from xjobs.operations.attempt import BodyCaller, Callee, describe
from xjobs.operations.claim import LEASE
from xjobs.operations.inspect import job as find_job
from xjobs.operations.settle import Nack
from xjobs.operations.slots import Request, Slot, acquire, holder_of, holders
from xjobs.records import ClaimedJob
from xjobs.signals import RunSignal

AGAIN_IN = timedelta(milliseconds=250)
"""After which time a job that waits for a slot is due again, where nothing else is said."""


class Candidate(NamedTuple):
    """A claimed job whose handle declares a limit."""

    job: ClaimedJob
    handle: JobHandle[Any, Any, Any]


class Admitted(NamedTuple):
    """The job may run: it holds this slot, to be renewed with its lease and released after its settle."""

    slot: Slot


class Shed(NamedTuple):
    """The limit of `key` is reached: the job goes back as it was, uncounted, and is due again after a while."""

    settlement: Nack
    key: str


class Refused(NamedTuple):
    """The limit is reached and says `fail`: the job ends as failed without having run."""

    settlement: Nack
    error: KeyBusy
    values: dict[str, Any]


class KeyFailed(NamedTuple):
    """The limit's key could not be made of the stored input: the attempt fails by this error."""

    error: Exception


Verdict = Admitted | Shed | Refused | KeyFailed


async def admit(
    driver: Driver, candidates: Sequence[Candidate], *, worker_id: str, ttl: timedelta, again_in: timedelta
) -> list[Verdict]:
    """Take a slot for each candidate; the verdicts are in their order.

    Args:
        driver: the store.
        candidates: claimed jobs of limited handles.
        worker_id: who runs them.
        ttl: how long a slot stands when nothing renews it.
        again_in: after which time a job that waits for a slot is due again.
    """
    verdicts: list[Verdict | None] = [None] * len(candidates)
    places: list[int] = []
    requests: list[Request] = []
    for place, (job, handle) in enumerate(candidates):
        try:
            requests.append(_request(job, handle, worker_id))
            places.append(place)
        except Exception as error:  # noqa: BLE001 - a rule of the app, on input that may be of an older deploy
            verdicts[place] = KeyFailed(error)
    taken = await acquire(driver, requests, ttl=ttl)
    busy: dict[int, str] = {}
    for place, request, slot in zip(places, requests, taken, strict=True):
        if slot is not None:
            verdicts[place] = Admitted(slot)
        else:
            busy[place] = request.key
    failing = [key for place, key in busy.items() if _fails(candidates[place].handle)]
    by_key = await _running(driver, failing) if failing else {}
    for place, key in busy.items():
        verdicts[place] = _turned_away(candidates[place], key, by_key.get(key, ()), again_in)
    return [verdict for verdict in verdicts if verdict is not None]


class Entry(NamedTuple):
    """How one claimed job enters: with its slot, if it has to have one; by an error, or not at all (`back`)."""

    slot: Slot | None = None
    error: Exception | None = None
    back: Shed | Refused | None = None


async def enter(driver: Driver, job: ClaimedJob, handle: JobHandle[Any, Any, Any], *, worker_id: str) -> Entry:
    """`admit` for one job, for whoever runs jobs one by one."""
    if handle.concurrency_limit is None:
        return Entry()
    candidates = [Candidate(job, handle)]
    (verdict,) = await admit(driver, candidates, worker_id=worker_id, ttl=LEASE, again_in=AGAIN_IN)
    match verdict:
        case Admitted(slot):
            return Entry(slot=slot)
        case KeyFailed(error):
            return Entry(error=error)
        case Shed() | Refused():
            return Entry(back=verdict)


def raising(error: Exception) -> BodyCaller:
    """A way to call a body which raises in its place, so that the attempt fails by that error."""

    async def call(
        callee: Callee,  # noqa: ARG001 - the protocol's parameters
        arguments: tuple[Any, ...],  # noqa: ARG001
        values: dict[str, Any],  # noqa: ARG001
        signal: RunSignal,  # noqa: ARG001
    ) -> Any:
        raise error

    return call


def _request(job: ClaimedJob, handle: JobHandle[Any, Any, Any], worker_id: str) -> Request:
    limit = handle.concurrency_limit
    assert limit is not None  # noqa: S101 - candidates are limited
    values = handle.codec.decode(job.input) if limit.key is not None else {}
    return Request(handle.slot_key(values), limit.limit, holder_of(worker_id, job.id))


def _turned_away(candidate: Candidate, key: str, live: Sequence[Slot], again_in: timedelta) -> Verdict:
    job, handle = candidate
    others = [slot for slot in live if _job_of(slot) != str(job.id)]
    # A run is never failed by a slot that an earlier claim of its own left behind, nor when the slots are free by now.
    if not _fails(handle) or not others or len(others) < len(live):
        return Shed(Nack(job, delay=again_in, counted=False), key)
    limit = handle.concurrency_limit
    assert limit is not None  # noqa: S101 - candidates are limited
    error = KeyBusy(
        f"job {job.name!r} was due while {len(others)} of {limit.limit} runs of its key were under way",
        "enqueue it again later, or declare when_busy='wait'",
    )
    settlement = Nack(job, error=describe(error), fail=True, counted=False)
    return Refused(settlement, error, handle.codec.decode(job.input))


def _fails(handle: JobHandle[Any, Any, Any]) -> bool:
    return handle.concurrency_limit is not None and handle.concurrency_limit.when_busy == "fail"


async def _running(driver: Driver, keys: Sequence[str]) -> dict[str, list[Slot]]:
    """The live slots of those keys of which every slot is of a job that runs.

    A slot is given back a moment after the job's outcome stands, so one of a job that is over is as good as free.
    """
    found: dict[str, list[Slot]] = {}
    for slot in await holders(driver, keys):
        found.setdefault(slot.key, []).append(slot)
    return {key: live for key, live in found.items() if await _all_run(driver, live)}


async def _all_run(driver: Driver, live: Sequence[Slot]) -> bool:
    for slot in live:
        row = await find_job(driver, _job_of(slot))
        if row is None or row.state != "running":
            return False
    return True


def _job_of(slot: Slot) -> str:
    return slot.holder.rpartition(":")[2]

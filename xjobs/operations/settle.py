"""Recording the outcomes of claims, in batches, each outcome fenced on its worker and claim ordinal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple, TypeVar
from uuid import UUID

from xjobs import sql
from xjobs.drivers.base import Driver, Row
from xjobs.limits import ZERO, check_duration
from xjobs.records import ClaimedJob
from xjobs.states import nack_state

_MILLISECOND = timedelta(milliseconds=1)

MAX_STACK = 8_000
"""How many characters of a stack are kept with `last_error`: its end, which names the place."""


class Ack(NamedTuple):
    """A job that was done; `duration` is how long its body ran."""

    job: ClaimedJob
    duration: timedelta = ZERO


class Nack(NamedTuple):
    """A job that was not done.

    Attributes:
        delay: from now until it is due again.
        error: becomes `last_error`; None keeps the one that is there, with its stack.
        stack: the error's stack; a new error never keeps an old error's stack.
        counted: whether the attempt counts; if not, it is given back.
        park, dead_letter, fail: see `nack_state`; none of them means ready.
        duration: how long the body ran.
    """

    job: ClaimedJob
    delay: timedelta | float = ZERO
    error: str | None = None
    stack: str | None = None
    counted: bool = True
    park: bool = False
    dead_letter: bool = False
    fail: bool = False
    duration: timedelta = ZERO


async def ack(driver: Driver, acks: Sequence[Ack], *, worker_id: str, counted: bool = True) -> set[UUID]:
    """Settle jobs as done. Answers the ids whose settle landed; a claim that is gone is not touched.

    `counted=False` leaves the counters alone, for a row that was moved elsewhere and not completed.
    """
    if len(acks) > 1:
        acks = _each_once(acks)
    return {row[0] for row in await acked(driver, acks, worker_id=worker_id, counted=counted)}


async def acked(driver: Driver, acks: Sequence[Ack], *, worker_id: str, counted: bool = True) -> list[Row]:
    """`ack` for settles of which no two are of one claim; the rows hold the ids whose settle landed."""
    if not acks:
        return []
    jobs = [ack.job for ack in acks]
    return await driver.run(
        sql.SQL_ACK,
        ids=[job.id for job in jobs],
        worker_id=worker_id,
        claims=[job.claims for job in jobs],
        durations_ms=[0 if ack.duration is ZERO else _milliseconds(ack.duration) for ack in acks],
        counted=counted,
    )


async def ack_one(driver: Driver, job: ClaimedJob, duration: timedelta, *, worker_id: str) -> bool:
    """`ack` for one job; whether it landed."""
    rows = await driver.run(
        sql.SQL_ACK,
        ids=[job.id],
        worker_id=worker_id,
        claims=[job.claims],
        durations_ms=[_milliseconds(duration)],
        counted=True,
    )
    return bool(rows)


async def nack(driver: Driver, nacks: Sequence[Nack], *, worker_id: str) -> set[UUID]:
    """Settle jobs as not done. Answers the ids whose settle landed; a claim that is gone is not touched.

    Raises:
        Invariant: a delay that is not finite.
    """
    if not nacks:
        return set()
    if len(nacks) > 1:
        nacks = _each_once(nacks)
    rows = await driver.run(
        sql.SQL_NACK,
        ids=[nack.job.id for nack in nacks],
        worker_id=worker_id,
        claims=[nack.job.claims for nack in nacks],
        states=[nack_state(dead_letter=n.dead_letter, fail=n.fail, park=n.park) for n in nacks],
        delays=[check_duration(nack.delay, "delay") for nack in nacks],
        errors=[storable(nack.error) for nack in nacks],
        stacks=[storable(nack.stack, -MAX_STACK) for nack in nacks],
        counted=[nack.counted for nack in nacks],
        durations_ms=[_milliseconds(nack.duration) for nack in nacks],
    )
    return {row[0] for row in rows}


S = TypeVar("S", Ack, Nack)


def _each_once(settlements: Sequence[S]) -> Sequence[S]:
    """The settlements without those of a claim that is in the batch already, which would be counted again."""
    first: dict[tuple[UUID, int], S] = {}
    for settlement in settlements:
        first.setdefault((settlement.job.id, settlement.job.claims), settlement)
    return list(first.values())


def _milliseconds(duration: timedelta) -> int:
    if duration < _MILLISECOND:  # most of them, and quicker asked than divided
        return 0
    return duration // _MILLISECOND


def storable(text: str | None, start: int | None = None) -> str | None:
    """The text, from `start` on, as a column can hold it: exceptions may carry NUL characters or lone surrogates."""
    if text is None:
        return None
    clean = text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
    return clean.replace("\0", "\\x00")[start:]

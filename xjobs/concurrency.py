"""Fleet-wide limits: how many runs of a job, or of one key of it, there are at a time over all processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from xjobs.errors import DeclarationInvalid, Invariant
from xjobs.limits import check_count, check_text

MAX_KEY = 200
"""The most characters of a limit's key."""


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `limit` runs at a time, counted over all workers; as `@job(concurrency_limit=Limit(...))`.

    Attributes:
        limit: at least 1.
        key: a format text over the parameters (`"{user_id}"`) or a function of some of them: each key has its own
            count. Without it the job has one.
        when_busy: what becomes of a job that is due while its key has no slot. `wait` leaves it ready, with no attempt
            spent; `fail` ends it as failed.
    """

    limit: int
    key: str | Callable[..., str] | None = None
    when_busy: Literal["wait", "fail"] = "wait"


def as_limit(value: object, job_name: str) -> Limit | None:
    """The limit that a declaration means: a number is one for the whole job, None is none.

    Raises:
        DeclarationInvalid: anything else; the message names the field.
    """
    if value is None:
        return None
    limit = value if isinstance(value, Limit) else Limit(value)  # type: ignore[arg-type] # checked in the next line
    try:
        check_count(limit.limit, "concurrency_limit", low=1)
    except Invariant as refused:
        raise DeclarationInvalid(f"job {job_name!r}: {refused.fact}", f"{refused.remedy}, or a Limit(...)") from None
    if limit.when_busy not in ("wait", "fail"):
        raise DeclarationInvalid(
            f"job {job_name!r}: when_busy of its concurrency_limit is {limit.when_busy!r}", "give 'wait' or 'fail'"
        )
    if limit.when_busy == "fail" and limit.key is None:
        raise DeclarationInvalid(
            f"job {job_name!r}: its concurrency_limit says when_busy='fail' and has no key",
            'give it one, as in Limit(1, key="{user_id}", when_busy="fail"), or leave when_busy out',
        )
    if limit.key is not None and not isinstance(limit.key, str) and not callable(limit.key):
        raise DeclarationInvalid(
            f"job {job_name!r}: key of its concurrency_limit is {limit.key!r}",
            "give a format text or a function of the input",
        )
    return limit


def slot_key(job_name: str, key: str | None) -> str:
    """What the slots of a job, or of one key of it, are stored under."""
    return f"job:{job_name}" if key is None else f"job-key:{quote(job_name, safe='')}:{key}"


def check_limit_key(make: Callable[[], Any], job_name: str) -> str:
    """What a limit's key rule answers, when it can be a key.

    Raises:
        DeclarationInvalid: it cannot; the key itself is not shown, since it is made of the input.
    """
    key = make()
    if not isinstance(key, str) or not key:
        what = "an empty text" if key == "" else f"a {type(key).__name__}"
    elif len(key) > MAX_KEY:
        what = f"a text of {len(key)} characters"
    else:
        try:
            return check_text(key, "the key")
        except Invariant:
            what = "a text that Postgres cannot hold"
    raise DeclarationInvalid(
        f"job {job_name!r}: the key of its concurrency_limit is {what}",
        f"have the rule make a text of 1 to {MAX_KEY} characters",
    )

"""An app whose jobs leave traces in its own tables, so that tests of worker processes can say what really ran."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

import psycopg

from xjobs import NO_KEY, Limit, Retry, job

DSN = os.environ.get("XJOBS_DSN", "")
OFTEN = Retry(attempts=1_000, delay=0.05, max_delay=0.2)

_of_thread = threading.local()


def connection() -> psycopg.Connection[Any]:
    """This thread's own connection to the app's database."""
    found: psycopg.Connection[Any] | None = getattr(_of_thread, "connection", None)
    if found is None or found.closed:
        found = _of_thread.connection = psycopg.connect(DSN, autocommit=True)
    return found


@job(key="{key}", retry=OFTEN)
def count(key: int) -> None:
    """Add one to the total, once for each key: the guard and the effect are one transaction."""
    connection().execute(
        """
        with guard as (insert into guards values (%s) on conflict do nothing returning key)
        insert into totals select %s, count(*) from guard having count(*) > 0
            on conflict (process) do update set total = totals.total + excluded.total
        """,
        [str(key), os.getpid()],
    )


@job(key="{key}", retry=OFTEN)
async def acount(key: int) -> None:
    """The same from the event loop, which it blocks for as long as that takes."""
    count(key)


@job(key="{n}", retry=3)
async def nap(n: int, seconds: float) -> None:
    """Sleep, as a well-behaved body does."""
    print("body began", flush=True)
    await asyncio.sleep(seconds)


@job(key="{n}", retry=3)
def block(n: int, seconds: float) -> None:
    """Block a thread."""
    print("body began", flush=True)
    time.sleep(seconds)


@job(key="{n}", retry=3)
async def block_loop(n: int, seconds: float) -> None:
    """Block the event loop."""
    print("body began", flush=True)
    time.sleep(seconds)


def _span(name: str, seconds: float) -> None:
    at = "select pg_catalog.clock_timestamp()"
    began = connection().execute(at).fetchone()
    connection().execute("insert into spans values (%s, %s, %s, null)", [name, os.getpid(), began and began[0]])
    time.sleep(seconds)
    connection().execute(f"update spans set ended = ({at}) where name = %s and process = %s", [name, os.getpid()])


@job(key="{n}", concurrency_limit=4, retry=OFTEN)
def limited(n: int, seconds: float) -> None:
    """Leave a span of time, of which at most four may overlap."""
    _span(str(n), seconds)


@job(key=NO_KEY, concurrency_limit=Limit(1, key="{who}", when_busy="fail"))
def one_each(who: str, seconds: float) -> None:
    """Be refused while another one of the same key runs."""
    print("body began", flush=True)
    time.sleep(seconds)


@job(key="{n}")
async def from_loop(n: int) -> None:
    """Enqueue from the event loop, through whatever queue the worker has in use."""
    await nap.using(queue="other").aenqueue(n=n, seconds=0.0)


@job(key="{n}")
def from_thread(n: int) -> None:
    """Enqueue from a thread."""
    block.using(queue="other").enqueue(n=n, seconds=0.0)


@job(key="{n}")
async def leaves(n: int) -> None:
    """Try to end the process."""
    raise SystemExit(7)


@job(key="{n}", retry=1)
async def cancels_itself(n: int) -> None:
    """End by a cancellation that nobody asked for."""
    raise asyncio.CancelledError

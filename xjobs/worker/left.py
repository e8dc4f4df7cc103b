"""What a body may raise that would mean something else to the worker, and what it counts as there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from xjobs.errors import Error
from xjobs.signals import RunSignal

NOT_OURS = (SystemExit, KeyboardInterrupt, GeneratorExit)


class BodyLeft(Error):
    """A body that ended by an exception which means something else to a worker, such as SystemExit."""

    code = "X_JOB_BODY_LEFT"


async def kept(body: Awaitable[Any], signal: RunSignal) -> Any:
    """Await a body; what it raises that would mean something else to the worker becomes BodyLeft.

    A cancellation is none of its doing once the signal has stopped.
    """
    try:
        return await body
    except asyncio.CancelledError as cancelled:
        if signal.reason is None:
            raise left_by(cancelled) from cancelled
        raise
    except NOT_OURS as left:
        raise left_by(left) from left


def left_by(error: BaseException) -> BodyLeft:
    """What an exception that is none of `Exception` counts as: a failure of the attempt, and not the worker's end."""
    return BodyLeft(f"the body raised {error!r}", "have it return, or raise an Exception")

"""What the queue does, one file per stem: `async def` over the driver protocol, without I/O or a clock of its own."""

from xjobs.operations import (
    admit,
    claim,
    drain,
    enqueue,
    events,
    inspect,
    operate,
    pauses,
    settle,
    stats,
    steps,
    workers,
)

__all__ = [
    "admit",
    "claim",
    "drain",
    "enqueue",
    "events",
    "inspect",
    "operate",
    "pauses",
    "settle",
    "stats",
    "steps",
    "workers",
]

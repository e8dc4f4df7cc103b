"""The states of a job, and the sets of them that decisions read."""

from __future__ import annotations

from xjobs.errors import RowStateUnknown

LIVE = ("ready", "delayed", "running", "suspended")
"""States that hold an idempotency key."""

WAITING = ("ready", "delayed", "suspended")
"""States that a claim takes once `run_at` has passed."""

FINISHED = ("done", "failed", "dead", "cancelled")
"""Terminal states: the row frees its key and is left to retention."""

COUNTED = ("ready", "delayed", "running", "suspended", "failed", "dead")
"""States that `stats()` counts."""

ALL = LIVE + FINISHED


def check_state(state: str, table: str = "x_jobs", column: str = "state") -> str:
    """Answer `state` when this version knows it.

    Raises:
        RowStateUnknown: the store holds a state from another version; only that row is affected.
    """
    if state not in ALL:
        raise RowStateUnknown(
            f"{table}.{column} holds {state!r}, which is not one of {', '.join(ALL)}",
            "upgrade this process to the version that wrote the row",
            state=state,
        )
    return state


def nack_state(*, dead_letter: bool = False, fail: bool = False, park: bool = False) -> str:
    """The state that a nack leads to; the first flag that is set decides."""
    if dead_letter:
        return "dead"
    if fail:
        return "failed"
    return "suspended" if park else "ready"

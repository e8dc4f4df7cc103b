"""Django's `atomic` blocks that are open in this thread, where Django is in the process."""

from __future__ import annotations

import sys
from typing import NamedTuple


class Block(NamedTuple):
    """A connection of Django with an open `atomic` block.

    Attributes:
        alias: of its database.
        pid: of its backend, where that is a Postgres.
    """

    alias: str
    pid: int | None


def open_blocks() -> list[Block]:
    """The connections of this thread that are in an `atomic` block. None is opened for it."""
    db, conf = sys.modules.get("django.db"), sys.modules.get("django.conf")
    if db is None or conf is None or not conf.settings.configured:
        return []
    return [
        Block(wrapper.alias, getattr(getattr(wrapper.connection, "info", None), "backend_pid", None))
        for wrapper in db.connections.all(initialized_only=True)
        if wrapper.in_atomic_block
    ]

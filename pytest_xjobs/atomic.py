"""Django's `atomic` blocks that are open in this thread, where Django is in the process."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pytest_xjobs.leaks import Leak


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


def name_blocks(leaks: Iterable[Leak]) -> list[str]:
    """The sessions as texts; a connection of Django that is in an `atomic` block is said to be, in a second line."""
    aliases = {block.pid: block.alias for block in open_blocks()}
    return [f"{leak}\n    {describe(aliases[leak.pid])}" if leak.pid in aliases else str(leak) for leak in leaks]


def describe(alias: str) -> str:
    """What keeps a transaction of Django open, and what does not."""
    return (
        f"it is the atomic block of Django's connection {alias!r}, which never commits under db and TestCase: use"
        " transactional_db or TransactionTestCase"
    )

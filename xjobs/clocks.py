"""The process's clock, in the form in which everything here takes a clock."""

from __future__ import annotations

from datetime import UTC, datetime


def process_time() -> datetime:
    """The present instant by this process's clock, in UTC; libraries that freeze Python's time move it."""
    return datetime.now(UTC)

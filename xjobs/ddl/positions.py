"""Owns turning offsets in a text into lines and columns, and cutting texts to one line for messages."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

__all__ = ["Positions", "shown"]

_SHOWN: Final = 100


class Positions:
    """Line and column, both from 1 and in characters, of the offsets of one text; a line ends at its `\\n`."""

    def __init__(self, text: str) -> None:
        self._starts = [0]
        at = text.find("\n")
        while at >= 0:
            self._starts.append(at + 1)
            at = text.find("\n", at + 1)

    def of(self, offset: int) -> tuple[int, int]:
        """Line and column of the character at `offset`."""
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1


def shown(text: str, limit: int = _SHOWN) -> str:
    """A text on one line, at most `limit` characters of it."""
    # Not the whole of a long text: findings may be many.
    line = " ".join(text[: 4 * limit].split())
    return line if len(line) <= limit else line[: limit - 3] + "..."

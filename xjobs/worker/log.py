"""The worker's log: one line per event, named so that it can be searched for, with its facts as `name=value`.

The facts are also in `record.facts` and the name in `record.event`, for formatters that write JSON.
"""

from __future__ import annotations

import logging

logger = logging.getLogger("xjobs.worker")


def debug(event: str, **facts: object) -> None:
    """Log what only somebody who looks for it wants to read."""
    _log(logging.DEBUG, event, facts)


def info(event: str, **facts: object) -> None:
    """Log a turn in the worker's life."""
    _log(logging.INFO, event, facts)


def warning(event: str, **facts: object) -> None:
    """Log what the worker copes with by itself."""
    _log(logging.WARNING, event, facts)


def error(event: str, *, cause: BaseException | None = None, **facts: object) -> None:
    """Log a loss; with the traceback of its cause, if there is one."""
    _log(logging.ERROR, event, facts, cause)


def _log(level: int, event: str, facts: dict[str, object], cause: BaseException | None = None) -> None:
    if logger.isEnabledFor(level):
        text = " ".join([event, *(f"{name}={_shown(value)}" for name, value in facts.items())])
        logger.log(level, "%s", text, extra={"event": event, "facts": facts}, exc_info=cause, stacklevel=3)


def _shown(value: object) -> str:
    text = str(value)
    return repr(text) if not text or any(letter in text for letter in " \n\t\"'") else text

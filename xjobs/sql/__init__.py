"""Owns the named statements: every SQL text that xjobs sends, by name.

The texts are in the `.sql` files of this directory (see `xjobs.sql.statement` for their form) and are read when the
first of them is asked for, so that importing costs nothing. The names are declared below for editors and type checkers.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from xjobs.sql.statement import Statement as Statement, parse

# The whole schema: the text of schema.sql, the one install point.
SQL_JOBS_TABLE: str

SQL_ACK: Statement
SQL_CANCEL: Statement
SQL_CANCEL_MANY: Statement
SQL_CLAIM: Statement
SQL_ENQUEUE: Statement
SQL_ENQUEUE_ONE: Statement
SQL_EVENTS: Statement
SQL_EVENTS_PURGE: Statement
SQL_EVENT_PUBLISH: Statement
SQL_GIVE_BACK: Statement
SQL_HEARTBEAT: Statement
SQL_JOB: Statement
SQL_JOBS: Statement
SQL_JOBS_BEFORE: Statement
SQL_NACK: Statement
SQL_PAUSE: Statement
SQL_PAUSED: Statement
SQL_PROGRESS: Statement
SQL_PROMOTE: Statement
SQL_PROMOTE_MANY: Statement
SQL_REMOVE: Statement
SQL_REMOVE_MANY: Statement
SQL_RENEW: Statement
SQL_REQUEUE: Statement
SQL_REQUEUE_MANY: Statement
SQL_RESUME: Statement
SQL_SCALER_DEPTH: Statement
SQL_SLOT_ACQUIRE: Statement
SQL_SLOT_HOLDERS: Statement
SQL_SLOT_RELEASE: Statement
SQL_STATS: Statement
SQL_STEPS: Statement
SQL_STEP_PUT: Statement
SQL_STEP_SLEEP: Statement
SQL_STEP_WAIT: Statement
SQL_WAITING: Statement
SQL_WAKE_WAITS: Statement
SQL_WAKE: Statement
SQL_WORKERS: Statement
SQL_WORKER_ANNOUNCE: Statement
SQL_WORKER_FORGET: Statement

_DIRECTORY = Path(__file__).parent
_SCHEMA_FILE = "schema.sql"
_lock = threading.Lock()
_loaded: dict[str, Statement] = {}


def statements() -> dict[str, Statement]:
    """Every statement by its name, in the order of the files and of their text; the schema is not among them.

    Raises:
        ValueError: a file is not well formed, or a name is used twice; the message names file and line.
    """
    with _lock:
        if not _loaded:
            _loaded.update(_read(_DIRECTORY))
        return dict(_loaded)


def _read(directory: Path) -> dict[str, Statement]:
    found: dict[str, Statement] = {}
    origins: dict[str, str] = {"SQL_JOBS_TABLE": _SCHEMA_FILE}
    for path in sorted(directory.glob("*.sql")):
        if path.name == _SCHEMA_FILE:
            continue
        for statement in parse(path.read_text(encoding="utf-8"), path.name):
            if statement.name in origins:
                raise ValueError(f"{path.name}: {statement.name} is already in {origins[statement.name]}")
            origins[statement.name] = path.name
            found[statement.name] = statement
    return found


# Hidden from type checkers, which would otherwise take any name for a statement.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> str:
        if name == "SQL_JOBS_TABLE":
            value: str = (_DIRECTORY / _SCHEMA_FILE).read_text(encoding="utf-8")
        elif name.startswith("SQL_") and name in (known := statements()):
            value = known[name]
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value

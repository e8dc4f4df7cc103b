"""What programs of an installation see of the caller's environment, and what they answer."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def output(command: Sequence[str], environ: Mapping[str, str] | None = None) -> str:
    """What a program writes, once it has ended.

    Raises:
        OSError: it cannot be started.
        subprocess.SubprocessError: it failed, or took longer than 30 s.
    """
    done = subprocess.run(command, env=environ, check=True, capture_output=True, text=True, timeout=30)  # noqa: S603
    return done.stdout


def program_environment(home: Path) -> dict[str, str]:
    """What a server program gets to see: no PG* setting of the caller, no locale, a home of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_"))}
    return kept | {"HOME": str(home), "LC_ALL": "C"}

"""Owns how a command that could not do its work ends: one message on stderr and exit code 2, never a traceback."""

from __future__ import annotations

import click

__all__ = ["Failure"]


class Failure(click.ClickException):
    """A command could not do its work, for a reason outside xjobs; its message says what was tried and what to do."""

    exit_code = 2

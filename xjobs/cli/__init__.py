"""Owns the `xjobs` command: its groups by name, and how it starts and ends.

A group's module is imported when the group is called, so that `xjobs --help` stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from xjobs.cli.failure import Failure
from xjobs.errors import Error
from xjobs.name_clash import NameClash, check_import_name

__all__ = ["command", "main"]

# Name of a command: where it is, and its line in `xjobs --help`.
_COMMANDS = {
    "schema": ("xjobs.cli.schema:schema", "Print, install and check the queue's tables."),
    "ddl": ("xjobs.cli.ddl:ddl", "Check DDL: the queue's schema and the app's own."),
    "worker": ("xjobs.cli.worker:worker", "Run the jobs of an app."),
}


class _Commands(click.Group):
    """A group whose members are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        member: click.Command = getattr(import_module(module), attribute)
        return member

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            check_import_name()
            return super().invoke(ctx)
        except (Error, NameClash) as error:
            raise Failure(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pytest-xjobs", prog_name="xjobs", message="%(prog)s %(version)s")
def command() -> None:
    """Operate the xjobs job queue."""


def main() -> None:
    """Run the command with this process's arguments and exit: 0 done, 1 answered no, 2 could not be done."""
    command(prog_name="xjobs")

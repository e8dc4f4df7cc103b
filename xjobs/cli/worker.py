"""Owns `xjobs worker`: running the jobs of an app until a signal ends it."""

from __future__ import annotations

import gc
import logging
from typing import TYPE_CHECKING, Any

import click

from xjobs.cli.app import load_app
from xjobs.cli.database import Target, connected, conninfo, dsn_option
from xjobs.cli.failure import Failure

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    import psycopg

    from xjobs.worker import Worker

__all__ = ["spare_collector", "worker"]

_LEVELS = ("debug", "info", "warning", "error")
_SHOWN = 8  # differences of the schema

YOUNG = 5_000
"""How many objects more may be made than freed before the collector looks for cycles. A batch of jobs makes some 5,000,
of which none is in a cycle."""


def _names(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> list[str] | None:
    names = [name.strip() for text in given for name in text.split(",") if name.strip()]
    if given and not names:
        raise click.BadParameter(f"{given[0]!r} names no queue: leave the option out to serve those of the app's jobs")
    return names or None


def _slots(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> int | dict[str, int] | None:
    """A number for every queue, or numbers by queue."""
    named: dict[str, int] = {}
    for text in (part for one in given for part in one.split(",")):
        queue, separator, number = text.rpartition("=")
        if not number.isascii() or not number.isdigit() or int(number) < 1 or (separator and not queue):
            raise click.BadParameter(f"{text!r} is not a number of slots: write 8, or mail=8 for one queue")
        if not separator and len(given) == 1 and "," not in given[0]:
            return int(number)
        if not separator:
            raise click.BadParameter(f"{text!r} is beside others: write it as queue={number}")
        named[queue] = int(number)
    return named or None


@click.command()
@click.option("--app", required=True, metavar="MODULE[:ATTRIBUTE]", help="What to import: it declares the jobs.")
@click.option(
    "--queues",
    metavar="NAME,...",
    multiple=True,
    callback=_names,
    help="Queues to serve. Default: those that the app's jobs go to.",
)
@click.option(
    "--concurrency",
    metavar="N|QUEUE=N,...",
    multiple=True,
    callback=_slots,
    help="Jobs to run at a time, of each queue or of the one named. Default: 8.",
)
@click.option(
    "--shutdown-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=25,
    show_default=True,
    metavar="SECONDS",
    help="How long to take after SIGTERM or SIGINT. Then jobs that still run are handed back.",
)
@click.option(
    "--lease",
    type=click.FloatRange(min=0.1),
    default=30,
    show_default=True,
    metavar="SECONDS",
    help="How long a job stays with a worker that has died.",
)
@click.option(
    "--loop",
    type=click.Choice(["asyncio", "uvloop"]),
    default="asyncio",
    show_default=True,
    help="The event loop. uvloop takes less processor time and more memory; it has to be installed.",
)
@click.option("--log-level", type=click.Choice(_LEVELS), default="info", show_default=True)
@dsn_option
@click.pass_context
def worker(
    context: click.Context,
    app: str,
    queues: list[str] | None,
    concurrency: int | dict[str, int] | None,
    shutdown_timeout: float,
    lease: float,
    loop: str,
    log_level: str,
    dsn: str | None,
) -> None:
    """Run the jobs of an app.

    SIGTERM and SIGINT end it: it claims nothing more, finishes what runs, and hands back in time what does not finish.
    A second signal stops it at once.

    Exits with 0 after it ended so, with 1 if jobs had to be left to the end of their leases or no signal had asked for
    the end, with 2 if it could not begin, and with 128 and the signal's number after a second signal.
    """
    import asyncio

    from xjobs.worker import Worker
    from xjobs.worker.settings import CONCURRENCY
    from xjobs.worker.shutdown import shut_down_by_signals

    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("xjobs").setLevel(log_level.upper())
    thresholds = gc.get_threshold()
    new_loop = _loop_factory(loop)
    load_app(app)
    _check_jobs(app)
    with connected(dsn) as (connection, target):
        _check_schema(connection, target)
    served = Worker.connect(
        conninfo(dsn),
        queues=queues,
        concurrency=CONCURRENCY if concurrency is None else concurrency,
        shutdown=shutdown_timeout,
        lease=lease,
    )
    _introduce(served, target)
    if gc.get_threshold() == thresholds:  # the app has not settled it itself
        spare_collector()
    with shut_down_by_signals(served) as ending:
        ending.run(asyncio.Runner(loop_factory=new_loop))
    context.exit(ending.code)


def spare_collector() -> None:
    """Set up the collector of cyclic garbage for a process that does nothing but serve: what has been imported stays,
    and need not be gone through again; and it looks for cycles less often.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])


def _loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the event loop; None is asyncio's own choice."""
    if name == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        raise Failure("--loop is uvloop, which is not installed: pip install 'pytest-xjobs[uvloop]'") from None
    return uvloop.new_event_loop


def _check_jobs(app: str) -> None:
    from xjobs.registry import registered_jobs

    if not registered_jobs():
        raise Failure(f"importing {app} declared no job: name the module whose functions are decorated with @xjobs.job")


def _check_schema(connection: psycopg.Connection[Any], target: Target) -> None:
    from xjobs.catalog import expected_catalog, read_catalog
    from xjobs.cli.schema import schema_of_queue

    place = schema_of_queue(connection)
    differences = read_catalog(connection, place).difference(expected_catalog(connection))
    missing = [line for line in differences if line.startswith("missing ")]
    if missing:
        more = f", and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise Failure(
            f"the queue's schema is missing or older than this version in schema {place} ({target}):"
            f" {', '.join(missing[:_SHOWN])}{more}: run `xjobs schema install`"
        )


def _introduce(worker: Worker, target: Target) -> None:
    """Say what is served, for whoever starts the process."""
    from xjobs.registry import registered_jobs

    click.echo(f"xjobs {worker.settings.worker_id} ({target})")
    for queue, slots in worker.settings.queues.items():
        names = ", ".join(handle.name for handle in registered_jobs() if handle.queue == queue)
        click.echo(f"  queue {queue}, {slots} slot{'s' if slots > 1 else ''}: {names or 'no declared job'}")

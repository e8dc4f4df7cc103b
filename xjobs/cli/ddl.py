"""Owns `xjobs ddl`: the checks of DDL as a command, for CI and for the shell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from xjobs.cli.failure import Failure

if TYPE_CHECKING:
    from xjobs.ddl import Rule, Source
    from xjobs.ddl.sources import SourceKind

__all__ = ["ddl"]

_FORMATS = ("text", "json", "github", "sarif")


@click.group()
def ddl() -> None:
    """Check DDL: the queue's schema and the app's own."""


@ddl.command("rules")
def list_rules() -> None:
    """List the rules by group; those marked with * are checked only when they are named."""
    from xjobs.ddl import RULES

    width = max(map(len, RULES))
    group = None
    for rule in RULES.values():
        if rule.group != group:
            click.echo(f"{rule.group}:")
            group = rule.group
        click.echo(f"  {rule.id:<{width}} {' ' if rule.default else '*'} {rule.reason}")


def _explain(context: click.Context, _option: click.Parameter, name: str | None) -> None:
    if name is None or context.resilient_parsing:
        return
    from xjobs.ddl import RULES

    if name not in RULES:
        raise click.UsageError(f"{name!r} is no rule: `xjobs ddl rules` lists them")
    click.echo(_explained(RULES[name]))
    context.exit(0)


def _explained(rule: Rule) -> str:
    lines = [
        f"{rule.id} (group {rule.group})",
        f"  why:  {rule.reason}",
        f"  fix:  {rule.fix}{' --fix does it.' if rule.fixable else ''}",
        f"  asks: {'the text alone' if rule.kind == 'text' else 'a Postgres server'}",
        f"  runs: {'by default' if rule.default else 'when it or its group is named by --rules'}",
        f"  page: {rule.page}",
    ]
    return "\n".join(lines)


@ddl.command("check", no_args_is_help=True)
@click.argument("references", nargs=-1, metavar="FILE|module:CONSTANT|-...")
@click.option("--queries", multiple=True, metavar="REFERENCE", help="Queries that use the schema. Repeatable.")
@click.option("--baseline", multiple=True, metavar="REFERENCE", help="The DDL as it was released. Repeatable.")
@click.option(
    "--rules", multiple=True, metavar="NAME,...", help="Rules and groups to check; `default`, `all`. Repeatable."
)
@click.option(
    "--ignore", multiple=True, metavar="RULE=REASON", help="Live with a rule or group, for a reason. Repeatable."
)
@click.option("--server", metavar="DSN", help="Ask this Postgres, too, in databases that are made for it and removed.")
@click.option(
    "--versions",
    multiple=True,
    metavar="REFERENCE",
    help="Earlier DDL that databases may have; for --server. Repeatable.",
)
@click.option("--live", metavar="DSN", help="A database that should hold the schema; for --server.")
@click.option("--format", "form", type=click.Choice(_FORMATS), default="text", show_default=True)
@click.option("--fix", is_flag=True, help="Make the fixes that are mechanical: in files in place, of - to stdout.")
@click.option(
    "--explain", metavar="RULE", callback=_explain, expose_value=False, is_eager=True, help="Say what a rule is for."
)
@click.pass_context
def check_ddl(
    context: click.Context,
    /,
    references: Sequence[str],
    queries: Sequence[str],
    baseline: Sequence[str],
    rules: Sequence[str],
    ignore: Sequence[str],
    server: str | None,
    versions: Sequence[str],
    live: str | None,
    form: str,
    fix: bool,
) -> None:
    """Check texts of DDL: by their text alone, or with --server also by what a Postgres makes of them.

    Each FILE, or module:CONSTANT (a text, or a list, tuple or dict of them), is a schema or migration of its own; - is
    standard input. With --server they are applied to one database, in this order. Exits with 0 if nothing was found,
    with 1 if something was, with 2 if it could not be checked.
    """
    from xjobs.ddl import RULES, Findings, check, parse_ignore
    from xjobs.ddl.reports import FORMATS

    if not references and not queries:
        raise click.UsageError("name a file, module:CONSTANT, or - for standard input")
    _make_importable()
    reasons = parse_ignore(ignore)
    names = [name.strip() for each in rules for name in each.split(",")] or None
    if server is None:
        _refuse_unasked(names, versions, live)
    elif not references:
        raise click.UsageError("--server is asked about a schema: name a file, module:CONSTANT, or -")
    released = _load(baseline)
    scripts = [_load([reference]) for reference in references]
    if fix:
        scripts = [[_mended(source, names, released, reasons) for source in script] for script in scripts]
    asked = _load(queries, "queries")
    results = [check(script, rules=names, baseline=released, ignore=reasons) for script in scripts]
    results.append(check((), asked, rules=names, ignore=reasons))
    if server is not None:
        from xjobs.ddl.postgres import check_live
        from xjobs.ddl.postgres.queue import SCHEMA, queue_queries

        schema = [source for script in scripts for source in script]
        own = queue_queries() if SCHEMA in references else ()
        earlier = _load(versions)
        results.append(
            check_live(server, schema, [*asked, *own], versions=earlier, live=live, rules=names, ignore=reasons)
        )
    findings = Findings(
        (finding for result in results for finding in result),
        (each for result in results for each in result.suppressed),
    )
    sources = [source for script in scripts for source in script] + asked
    click.echo(FORMATS[form](findings, sources, RULES), err=fix and "-" in references)
    context.exit(1 if findings else 0)


def _refuse_unasked(names: list[str] | None, versions: Sequence[str], live: str | None) -> None:
    """Refuse what only a server could answer where none is named: silence would look like an answer."""
    from xjobs.ddl import RULES

    wanted = [name for name in names or () if name in RULES and RULES[name].kind == "postgres"]
    if wanted or versions or live is not None:
        what = f"rule {wanted[0]}" if wanted else "--versions" if versions else "--live"
        raise click.UsageError(f"{what} is about what a Postgres answers: name one by --server")


def _make_importable() -> None:
    """Let `module:CONSTANT` name modules of the directory that the command runs in, as `python -m` would."""
    import sys

    if "" not in sys.path:
        sys.path.insert(0, "")


def _load(references: Sequence[str], kind: SourceKind = "ddl") -> list[Source]:
    from xjobs.ddl import load

    return [source for reference in references for source in load(reference, kind)]


def _mended(source: Source, rules: list[str] | None, baseline: list[Source], ignore: dict[str, str]) -> Source:
    from xjobs.ddl.fixing import fixed

    if source.path is None and source.name != "<stdin>":
        return source
    if source.path is not None and source.path.suffix == ".py":
        return source
    text = fixed(source, rules=rules, baseline=baseline, ignore=ignore)
    if source.path is None:
        click.echo(text, nl=False)
    elif text != source.text:
        _write(source.path, text)
    return replace(source, text=text)


def _write(path: Path, text: str) -> None:
    try:
        # As bytes, so that line breaks stay as they are.
        path.write_bytes(text.encode())
    except OSError as error:
        raise Failure(f"{path} cannot be written: {error.strerror}") from error

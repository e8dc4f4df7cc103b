"""Owns the check that asks a server: from texts to findings, in databases that are made for it and removed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import psycopg

from xjobs.ddl.check import RULES, select_rules
from xjobs.ddl.findings import Finding, Findings, Rule
from xjobs.ddl.postgres.bench import Bench, install
from xjobs.ddl.postgres.clock import default_clock
from xjobs.ddl.postgres.indexes import index_covered, index_invalid
from xjobs.ddl.postgres.installs import reapply_changes, schema_drift, upgrade_differs
from xjobs.ddl.postgres.plans import index_unused, query_fails, sequential_scan
from xjobs.ddl.postgres.queries import Pair, Query, declared, paired
from xjobs.ddl.postgres.scratch import PREFIX, Server, connected
from xjobs.ddl.rules import postgres as rules_of
from xjobs.ddl.sources import Source
from xjobs.ddl.suppression import suppress

__all__ = ["check_live"]

_ASK: Final[Mapping[Rule, Callable[[Bench], Iterator[Finding]]]] = {
    rules_of.REAPPLY_CHANGES: reapply_changes,
    rules_of.UPGRADE_DIFFERS: upgrade_differs,
    rules_of.SCHEMA_DRIFT: schema_drift,
    rules_of.QUERY_FAILS: query_fails,
    rules_of.INDEX_UNUSED: index_unused,
    rules_of.SEQUENTIAL_SCAN: sequential_scan,
    rules_of.DEFAULT_CLOCK: default_clock,
    rules_of.INDEX_INVALID: index_invalid,
    rules_of.INDEX_COVERED: index_covered,
}


def check_live(
    server: str | psycopg.Connection[Any],
    ddl: str | Source | Sequence[Source],
    queries: Sequence[Source | Query] = (),
    pairs: Sequence[Pair] = (),
    versions: Sequence[Source] = (),
    *,
    live: str | None = None,
    rules: Collection[str] | None = None,
    ignore: Mapping[str, str] = MappingProxyType({}),
    prefix: str = PREFIX,
) -> Findings:
    """What breaks the rules that a server is asked about; empty if nothing does.

    The DDL runs as it is, in databases that are made for it on the server and removed. What it does outside of its
    database, such as making a role, stays.

    Args:
        server: a connection string, or a connection whose address and role are taken; the role may make databases.
        ddl: what makes the schema, in the order in which it is applied.
        queries: what is sent to that schema; comments say what is demanded of the planner.
        pairs: further pairs of an index and a query.
        versions: earlier forms of the DDL, each whole, which databases may have.
        live: the connection string of a database that should hold the schema.
        rules: ids and groups of rules, `default` and `all`; None for the default ones.
        ignore: reasons to live with findings, by rule or group.
        prefix: what the names of the databases begin with.

    Raises:
        DdlSyntaxInvalid: a text is no SQL.
        DdlSourceInvalid: a name is of no rule and no group.
        DdlScratchRefused: the role may not make databases.
        DriverUnavailable: the server does not answer.
    """
    sources = (Source.from_text(ddl, "<text>"),) if isinstance(ddl, str) else (ddl,) if isinstance(ddl, Source) else ddl
    selected = [rule for rule in select_rules(rules) if rule.kind == "postgres"]
    asked = [query for each in queries for query in (declared(each) if isinstance(each, Source) else (each,))]
    asked += [paired(pair) for pair in pairs]
    place = Server(server, prefix)
    with place.database() as dsn:
        refusal = install(sources, dsn)
        if refusal is not None:
            findings = [refusal.place.finding(rules_of.DDL_REFUSED, f"Postgres refuses it: {refusal.message}")]
        else:
            with connected(dsn) as connection:
                bench = Bench(tuple(sources), asked, versions, live, place, connection)
                findings = [found for rule in selected if rule in _ASK for found in _ASK[rule](bench)]
    texts = [*sources, *versions, *(query.place.source for query in asked)]
    return suppress(findings, texts, RULES, ignore)

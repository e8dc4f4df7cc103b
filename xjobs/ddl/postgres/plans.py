"""Owns the rules about queries: Postgres takes them, the declared index serves them, and they read no whole table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import psycopg

from xjobs.ddl.findings import Finding
from xjobs.ddl.positions import shown
from xjobs.ddl.postgres.applying import said
from xjobs.ddl.postgres.bench import Bench
from xjobs.ddl.postgres.places import origin
from xjobs.ddl.postgres.planner import Node, Prepared, without_other_indexes
from xjobs.ddl.postgres.queries import Query, Use
from xjobs.ddl.rules.postgres import INDEX_UNUSED, QUERY_FAILS, SEQUENTIAL_SCAN

__all__ = ["index_unused", "query_fails", "sequential_scan"]

# Tables are empty, so the planner would read them; this makes that its last resort.
_NO_SCAN: Final = {"enable_seqscan": "off"}
# A bitmap has no order, and leads to the table.
_NO_BITMAP: Final = {**_NO_SCAN, "enable_bitmapscan": "off"}


def query_fails(bench: Bench) -> Iterator[Finding]:
    """A query that cannot be prepared, or for which there is no plan."""
    for query in bench.queries:
        refused = _refused(bench, query)
        if refused is not None:
            message = f"Postgres refuses {query.name}: {said(refused)} (SQLSTATE {refused.sqlstate})"
            place = query.at(refused.diag.statement_position)
            yield place.finding(QUERY_FAILS, message, _REMEDIES.get(refused.sqlstate or ""))


def _refused(bench: Bench, query: Query) -> psycopg.Error | None:
    try:
        with Prepared(bench.connection, query.native.text) as prepared:
            if prepared.is_planned:
                prepared.nodes()
    except psycopg.Error as error:
        if bench.connection.broken:
            raise
        return error
    return None


_REMEDIES: Final = {
    "42P18": "cast the parameter, so that its type is known: $1::text",
    "42P10": "spell the conflict target as a unique index does, with its predicate",
}


def sequential_scan(bench: Bench) -> Iterator[Finding]:
    """A query that reads a whole table although it was said not to: no index answers it."""
    for query in bench.queries:
        # One that Postgres refuses is another rule's.
        if query.may_scan or _refused(bench, query) is not None:
            continue
        with Prepared(bench.connection, query.native.text) as prepared:
            nodes = prepared.nodes(settings=_NO_SCAN)
        scanned = {node["Relation Name"]: node for node in nodes if node["Node Type"] == "Seq Scan"}
        for table, node in sorted(scanned.items()):
            condition = f", to find {node['Filter']}" if "Filter" in node else ""
            message = f"{query.name} reads all of {table}{condition}: no index leads to these rows"
            yield query.place.finding(SEQUENTIAL_SCAN, message)


def index_unused(bench: Bench) -> Iterator[Finding]:
    """An index that the planner cannot use for a query that it is there for, or that holds more than that."""
    for query in bench.queries:
        for use in query.uses:
            message = _unserved(bench, query, use)
            if message is not None:
                yield origin(bench.ddl, "index", use.index.rpartition(".")[2]).finding(INDEX_UNUSED, message)


def _unserved(bench: Bench, query: Query, use: Use) -> str | None:
    try:
        try:
            return _plan_problem(bench, query, use, keep_unique=False)
        except psycopg.Error:
            # It may need a key: asked again with those.
            return _plan_problem(bench, query, use, keep_unique=True)
    except KeyError:
        return f"{query.name} is to use index {use.index}, which this schema does not make"
    except psycopg.Error as error:
        if bench.connection.broken:
            raise
        return f"Postgres refuses {query.name}, which is to use {use.index}: {said(error)}"


def _plan_problem(bench: Bench, query: Query, use: Use, *, keep_unique: bool) -> str | None:
    with (
        without_other_indexes(bench.connection, use.index, keep_unique=keep_unique) as names,
        Prepared(bench.connection, query.native.text) as prepared,
    ):
        settings = _NO_BITMAP if use.ordered or use.alone else _NO_SCAN
        for values in (None, use.values) if use.values is not None else (None,):
            problem = _problem(prepared.nodes(values, settings), names, query, use, values)
            if problem is not None:
                return problem
    return None


def _problem(
    nodes: Sequence[Node], names: frozenset[str], query: Query, use: Use, values: Sequence[Any] | None
) -> str | None:
    using = [node for node in nodes if names & {node.get("Index Name"), *node.get("Conflict Arbiter Indexes", ())}]
    if not using:
        plan = "in a plan for all parameters" if values is None else f"in a plan for {shown(repr(tuple(values)))}"
        filters = [node["Filter"] for node in nodes if node["Node Type"] == "Seq Scan" and "Filter" in node]
        sought = f"; it looks for {shown(filters[0])}" if filters else ""
        return f"the planner cannot use {use.index} for {query.name}, {plan}{sought}"
    left = [node[key] for node in using for key in ("Index Cond", "Filter") if key in node]
    if use.whole and left:
        return f"{use.index} holds rows that {query.name} does not read: it still has to look for {shown(left[0])}"
    if use.ordered and all(node["Sorted"] for node in using):
        return f"{use.index} does not have the order that {query.name} wants: what it finds is sorted"
    if use.alone and all(node["Node Type"] != "Index Only Scan" for node in using):
        return f"{use.index} does not hold all that {query.name} reads: the table is looked at for each row"
    return None

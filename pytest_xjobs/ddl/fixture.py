"""The value of the `xjobs_ddl` fixture: the DDL checks as functions for an app's own tests."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

from pytest_xjobs.ddl.server import server
from pytest_xjobs.ddl.subjects import QUEUE
from xjobs.ddl import RULES, Findings, Source, check, load, select_rules

if TYPE_CHECKING:
    from xjobs.ddl.postgres import Pair
    from xjobs.ddl.postgres.queries import Query

__all__ = ["XjobsDdl"]

Ddl = str | Path | Source | Sequence[Source]
"""A schema: its text, a file, or sources from `xjobs.ddl.load`."""


class XjobsDdl:
    """The DDL checks as functions.

    Wherever `ddl` is left out, the queue's own schema is meant, with its statements. Rules that a server is asked
    about use the session's; without one the call fails.
    """

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request

    def check(
        self,
        ddl: Ddl | None = None,
        queries: Sequence[str | Path | Source] = (),
        *,
        pairs: Sequence[Pair] = (),
        versions: Sequence[str | Path | Source] = (),
        baseline: Sequence[str | Path | Source] = (),
        live: str | None = None,
        rules: Collection[str] | None = None,
        ignore: Mapping[str, str] = MappingProxyType({}),
    ) -> Findings:
        """What breaks the rules; empty if nothing does.

        Args:
            ddl: the schema.
            queries: what is sent to it.
            pairs: indexes and the queries that they are there for.
            versions: earlier forms of the DDL, each whole, which databases may have.
            baseline: the DDL as it was released, for the rules about growing it.
            live: the connection string of a database that should hold the schema.
            rules: ids and groups of rules, `default` and `all`; None for the default ones. A server is asked only if
                one of them needs it.
            ignore: reasons to live with findings, by rule or group.

        Raises:
            xjobs.Error: a text cannot be read or is no SQL, a rule is none, or the server takes no part.
        """
        sources = load(QUEUE) if ddl is None else _sources(ddl, "schema")
        asked = [source for query in queries for source in _sources(query, "query")]
        released = [source for text in baseline for source in _sources(text, "baseline")]
        findings = check(sources, asked, rules=rules, baseline=released, ignore=ignore)
        if all(rule.kind == "text" for rule in select_rules(rules)):
            return findings
        by_server = self._ask(
            sources,
            [*asked, *(_queue_queries() if ddl is None else ())],
            pairs,
            [source for text in versions for source in _sources(text, "version")],
            live=live,
            rules=rules,
            ignore=ignore,
        )
        return Findings([*findings, *by_server], [*findings.suppressed, *by_server.suppressed])

    def assert_clean(
        self, ddl: Ddl | None = None, queries: Sequence[str | Path | Source] = (), **options: Any
    ) -> Findings:
        """Assert that nothing breaks a rule; takes what `check` takes, answers what is ignored for a reason.

        Raises:
            AssertionError: something does.
        """
        __tracebackhide__ = True
        findings = self.check(ddl, queries, **options)
        _assert_none(findings)
        return findings

    def assert_prepares(self, query: str | Path | Source, *, ddl: Ddl | None = None) -> None:
        """Assert that Postgres takes each query of a text under the schema.

        Raises:
            AssertionError: it refuses one.
        """
        __tracebackhide__ = True
        self._assert("query-fails", ddl, _sources(query, "query"))

    def assert_no_sequential_scan(self, query: str | Path | Source, *, ddl: Ddl | None = None) -> None:
        """Assert that an index leads to what each query of a text looks for.

        Raises:
            AssertionError: one reads a whole table, or is refused.
        """
        from dataclasses import replace

        from xjobs.ddl.postgres.queries import declared

        __tracebackhide__ = True
        queries = [replace(each, may_scan=False) for source in _sources(query, "query") for each in declared(source)]
        self._assert("query-fails,sequential-scan", ddl, queries)

    def assert_index_serves(
        self,
        index: str,
        query: str | Path | Source,
        *,
        ddl: Ddl | None = None,
        whole: bool = False,
        ordered: bool = False,
        alone: bool = False,
        values: Sequence[Any] | None = None,
    ) -> None:
        """Assert that the planner can use an index for a query, whatever the parameters are.

        Args:
            index: name of the index, partial or not.
            query: its text; parameters as `$1`, `%s`, `%(name)s` or `:name`.
            ddl: the schema.
            whole: whether the index is to hold no row that the query does not read: the two predicates are then equal.
            ordered: whether the rows are to come from it in the order that the query wants, without a sort.
            alone: whether it is to hold all that the query reads, so that the table is not looked at.
            values: a value for each parameter, in order, to ask for a plan for these, too.

        Raises:
            AssertionError: it cannot.
        """
        from xjobs.ddl.postgres import Pair

        __tracebackhide__ = True
        pairs = [
            Pair(index, source.text, whole, ordered, alone, values, source.name) for source in _sources(query, "query")
        ]
        self._assert("index-unused", ddl, (), pairs)

    def assert_applies_twice(self, ddl: Ddl | None = None) -> None:
        """Assert that a second application changes nothing.

        Raises:
            AssertionError: it fails, or leaves another schema.
        """
        __tracebackhide__ = True
        self._assert("reapply-changes", ddl)

    def assert_upgrades(self, *versions: str | Path | Source, ddl: Ddl | None = None) -> None:
        """Assert that the schema gives the same over each earlier version as on an empty database.

        Raises:
            AssertionError: it does not.
        """
        __tracebackhide__ = True
        sources = [source for version in versions for source in _sources(version, "version")]
        self._assert("upgrade-differs", ddl, versions=sources)

    def assert_no_drift(self, ddl: Ddl | None = None, *, dsn: str | None = None) -> None:
        """Assert that a database holds what the schema says; other tables in it do not count.

        Args:
            ddl: the schema.
            dsn: the database; by default the run's test database, as `pytest_xjobs_database_setup` left it.

        Raises:
            AssertionError: something differs.
        """
        from pytest_xjobs.runtime import runtime

        __tracebackhide__ = True
        live = runtime(self._request).shared().database.dsn if dsn is None else dsn
        self._assert("schema-drift", ddl, live=live)

    def _assert(
        self,
        rules: str,
        ddl: Ddl | None,
        queries: Sequence[Source | Query] = (),
        pairs: Sequence[Pair] = (),
        versions: Sequence[Source] = (),
        live: str | None = None,
    ) -> None:
        __tracebackhide__ = True
        sources = load(QUEUE) if ddl is None else _sources(ddl, "schema")
        _assert_none(self._ask(sources, queries, pairs, versions, live=live, rules=rules.split(",")))

    def _ask(self, *what: Any, **options: Any) -> Findings:
        from xjobs.ddl.postgres import check_live

        dsn, prefix = server(self._request)
        return check_live(dsn, *what, prefix=prefix, **options)


def _queue_queries() -> list[Query]:
    from xjobs.ddl.postgres.queue import queue_queries

    return queue_queries()


def _sources(given: Ddl, name: str) -> list[Source]:
    if isinstance(given, str):
        return [Source.from_text(given, f"<{name}>")]
    if isinstance(given, Path):
        return load(str(given))
    return [given] if isinstance(given, Source) else list(given)


def _assert_none(findings: Findings) -> None:
    __tracebackhide__ = True
    if findings:
        reasons = dict.fromkeys(f"why: {RULES[each.rule].reason} ({RULES[each.rule].page})" for each in findings)
        raise AssertionError("\n".join([*map(str, findings), *reasons]))

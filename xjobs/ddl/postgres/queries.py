"""Owns the queries that are declared beside a schema: their texts, and what their comments demand of the planner."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from xjobs.ddl.postgres.placeholders import Native, native
from xjobs.ddl.postgres.places import Place
from xjobs.ddl.sources import Source
from xjobs.ddl.split import Statement

__all__ = ["Pair", "Query", "Use", "declared"]

_DEMAND: Final = re.compile(
    r"--\s*xjobs:\s*(?:(?P<verb>uses|reads all of)\s+(?P<indexes>[^\s,]+(?:\s*,\s*[^\s,]+)*)(?P<order>\s+in order)?"
    r"(?P<alone>\s+alone)?|(?P<scan>no sequential scan))\s*$"
)


@dataclass(frozen=True)
class Pair:
    """A partial index and a query that it is there for.

    Attributes:
        index: name of the index.
        query: text of the query; parameters as `$1`, `%s`, `%(name)s` or `:name`.
        whole: whether the index is to hold no row that the query does not read: the two predicates are then equal.
        ordered: whether the rows are to come from the index in the order that the query wants, without a sort.
        alone: whether the index is to hold all that the query reads, so that the table is not looked at.
        values: a value for each parameter, in order, to plan with besides planning without; None to leave that out.
        name: what messages call the query.
    """

    index: str
    query: str
    whole: bool = False
    ordered: bool = False
    alone: bool = False
    values: Sequence[Any] | None = None
    name: str = "the query"


@dataclass(frozen=True)
class Use:
    """What a query demands of an index; see `Pair`."""

    index: str
    whole: bool = False
    ordered: bool = False
    alone: bool = False
    values: tuple[Any, ...] | None = None


@dataclass(frozen=True)
class Query:
    """A declared query.

    Attributes:
        name: what messages call it.
        place: where it stands.
        native: its text as Postgres takes it.
        uses: the indexes that it is to be served by.
        may_scan: whether it may read whole tables.
    """

    name: str
    place: Place
    native: Native
    uses: tuple[Use, ...] = ()
    may_scan: bool = True

    def at(self, position: str | None) -> Place:
        """The place of a position that Postgres named, counted from 1 in the text that it was sent."""
        if position is None:
            return self.place
        return Place(self.place.source, self.place.statement, self.native.offset(int(position) - 1))


def declared(source: Source) -> Iterator[Query]:
    """The queries of a source, with what their comments demand.

    Comments before or in a query count: `-- xjobs: uses INDEX`, `-- xjobs: reads all of INDEX` (`whole`), either with
    `in order` (`ordered`) and `alone` behind it, and `-- xjobs: no sequential scan`.

    Raises:
        DdlSyntaxInvalid: the source is no SQL.
    """
    several = len(source.statements) > 1
    for statement in source.statements:
        line, _ = source.position(statement.start)
        name = f"{source.name}:{line}" if several else source.name
        demands = [match for comment in statement.comments if (match := _DEMAND.match(comment.text))]
        uses = tuple(
            Use(index.strip(), match["verb"] != "uses", bool(match["order"]), bool(match["alone"]))
            for match in demands
            if match["indexes"]
            for index in match["indexes"].split(",")
        )
        may_scan = not any(match["scan"] for match in demands)
        yield _query(name, source, statement, uses, may_scan=may_scan)


def paired(pair: Pair) -> Query:
    """The query of a pair.

    Raises:
        DdlSyntaxInvalid: its text is no SQL.
        DdlSourceInvalid: it is empty.
    """
    values = None if pair.values is None else tuple(pair.values)
    use = Use(pair.index, pair.whole, pair.ordered, pair.alone, values)
    return single(Source.from_text(pair.query, pair.name, "queries"), uses=(use,))


def single(source: Source, *, uses: tuple[Use, ...] = (), may_scan: bool = True) -> Query:
    """The one query of a source, with demands that its text does not hold.

    Raises:
        DdlSyntaxInvalid: it is no SQL.
    """
    return _query(source.name, source, source.statements[0], uses, may_scan=may_scan)


def _query(name: str, source: Source, statement: Statement, uses: tuple[Use, ...], *, may_scan: bool) -> Query:
    return Query(name, Place(source, statement), native(statement), uses, may_scan)

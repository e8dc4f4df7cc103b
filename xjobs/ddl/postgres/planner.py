"""Owns asking the planner about one query: whether it can be prepared, what it reads, and by which index."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Self

import psycopg
from psycopg import pq, sql

__all__ = ["Prepared", "without_other_indexes"]

_NAME: Final = "xjobs_ddl_query"
_PLANNED: Final = frozenset({"select", "insert", "update", "delete", "merge", "values", "with", "table"})

Node = Mapping[str, Any]


class Prepared:
    """A query, prepared on a connection as the client libraries do it; use as a context manager.

    Args:
        connection: in autocommit.
        text: the query, with `$1`, `$2`, ...

    Raises:
        psycopg.Error: Postgres refuses it, while preparing or while planning.
    """

    def __init__(self, connection: psycopg.Connection[Any], text: str) -> None:
        self._connection = connection
        self._text = text
        self._parameters = 0

    def __enter__(self) -> Self:
        self._checked(self._connection.pgconn.prepare(_NAME.encode(), self._text.encode()))
        self._parameters = self._checked(self._connection.pgconn.describe_prepared(_NAME.encode())).nparams
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.execute(f"deallocate {_NAME}".encode(), prepare=False)

    def _checked(self, result: pq.abc.PGresult) -> pq.abc.PGresult:
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(result, self._connection.info.encoding)
        return result

    @property
    def is_planned(self) -> bool:
        """Whether it is of the kind that has a plan."""
        words = self._text.split(None, 1)
        return words[0].lower() in _PLANNED if words else False

    def nodes(self, values: Sequence[Any] | None = None, settings: Mapping[str, str] | None = None) -> list[Node]:
        """The nodes of its plan, from the root down.

        Args:
            values: to plan for; without them the plan is the one for all values, which a prepared statement gets.
            settings: of the planner, for this plan only.
        """
        mode = "force_generic_plan" if values is None else "force_custom_plan"
        given = [None] * self._parameters if values is None else values
        arguments = sql.SQL(", ").join(map(sql.Literal, given))
        call = sql.SQL("({})").format(arguments) if given else sql.SQL("")
        command = sql.SQL("explain (format json) execute {} {}").format(sql.Identifier(_NAME), call)
        with self._connection.transaction(force_rollback=True):
            for name, value in {**(settings or {}), "plan_cache_mode": mode}.items():
                self._connection.execute("select set_config(%s, %s, true)", [name, value])
            (found,) = self._connection.execute(command, prepare=False).fetchone() or ("[]",)
        plans = json.loads(found) if isinstance(found, str) else found
        return list(_walk(plans[0]["Plan"]))


def _walk(node: dict[str, Any], above: Node | None = None, is_sorted: bool = False) -> Iterator[Node]:
    """A node and those below it; each says as `Sorted` whether its rows are sorted before anything cuts them off."""
    # The condition of a bitmap scan that the index does not answer stands one node higher.
    if above is not None and above["Node Type"] == "Bitmap Heap Scan" and "Filter" in above:
        node = {**node, "Filter": above["Filter"]}
    yield {**node, "Sorted": is_sorted}
    below = node["Node Type"] != "Limit" and (is_sorted or node["Node Type"].endswith("Sort"))
    for child in node.get("Plans", ()):
        yield from _walk(child, node, below)


@contextmanager
def without_other_indexes(
    connection: psycopg.Connection[Any], index: str, *, keep_unique: bool
) -> Iterator[frozenset[str]]:
    """Take the other indexes from an index's table; answers its name and those of its partitions.

    Everything is there again at the end.

    Args:
        keep_unique: leave keys and unique indexes, without which an `on conflict` or a `group by` may be refused.

    Raises:
        KeyError: there is no such index.
    """
    with connection.transaction(force_rollback=True):
        names = frozenset(name for (name,) in connection.execute(_NAMES, [index, index]).fetchall())
        if not names:
            raise KeyError(index)
        for schema, table, name, is_constraint in connection.execute(_OTHERS, [index, keep_unique]).fetchall():
            form = "alter table {0} drop constraint {2} cascade" if is_constraint else "drop index {1}"
            parts = sql.Identifier(schema, table), sql.Identifier(schema, name), sql.Identifier(name)
            connection.execute(sql.SQL(form).format(*parts))
        yield names


_OTHERS = """
select n.nspname::text, t.relname::text, c.relname::text,
       exists (select from pg_constraint k where k.conindid = x.indexrelid and k.contype in ('p', 'u', 'x'))
  from pg_index x
       join pg_class c on c.oid = x.indexrelid
       join pg_class t on t.oid = x.indrelid
       join pg_namespace n on n.oid = c.relnamespace
       join pg_index this on this.indrelid = x.indrelid and this.indexrelid = to_regclass(%s)
 where x.indexrelid <> this.indexrelid
   and not (%s and (x.indisunique or x.indisexclusion))
   and not exists (select from pg_inherits i where i.inhrelid = x.indexrelid)
"""

_NAMES = """
select c.relname::text
  from pg_partition_tree(to_regclass(%s)) t join pg_class c on c.oid = t.relid
 where c.relkind in ('i', 'I')
 union
select c.relname::text from pg_class c where c.oid = to_regclass(%s)::oid and c.relkind in ('i', 'I')
"""

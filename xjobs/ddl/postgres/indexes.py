"""Owns the rules about indexes by themselves: they are valid, and none is there beside one that does its work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg

from xjobs.ddl.findings import Finding
from xjobs.ddl.postgres.bench import Bench
from xjobs.ddl.postgres.places import origin
from xjobs.ddl.postgres.scratch import connected
from xjobs.ddl.rules.postgres import INDEX_COVERED, INDEX_INVALID

__all__ = ["index_covered", "index_invalid"]


def index_invalid(bench: Bench) -> Iterator[Finding]:
    """An index that is kept up with every write and that no query may use."""
    yield from _invalid(bench, bench.connection)
    if bench.live is not None:
        with connected(bench.live) as connection:
            yield from _invalid(bench, connection)


def _invalid(bench: Bench, connection: psycopg.Connection[Any]) -> Iterator[Finding]:
    for schema, name in connection.execute(_INVALID).fetchall():
        message = f"index {schema}.{name} of database {connection.info.dbname} is not valid: its build did not finish"
        yield origin(bench.ddl, "index", name).finding(INDEX_INVALID, message)


_INVALID = """
select n.nspname::text, c.relname::text
  from pg_catalog.pg_index x
       join pg_catalog.pg_class c on c.oid = x.indexrelid
       join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where not x.indisvalid and n.nspname !~ '^pg_(catalog|toast)'
 order by 1, 2
"""


def index_covered(bench: Bench) -> Iterator[Finding]:
    """An index whose leading columns, order and predicate another index has, too: writes pay for both."""
    for name, other, same in bench.connection.execute(_COVERED).fetchall():
        relation = "is the same as" if same else "holds nothing that is not, in the same order, in"
        message = f"index {name} {relation} {other}"
        yield origin(bench.ddl, "index", name).finding(INDEX_COVERED, message)


# Whatever decides what an index can do has to be equal up to the last key of the shorter one. A unique index also
# keeps a promise, so it is never superfluous; of two that are the same the later one is.
_COVERED = """
with indexes as (
  select x.indexrelid, x.indrelid, x.indnkeyatts, x.indisunique, x.indisexclusion, c.relname::text as name,
         c.relam as method,
         array(select pg_catalog.pg_get_indexdef(x.indexrelid, k, false)
                 from pg_catalog.generate_series(1, x.indnkeyatts) k order by k) as keys,
         array(select a.attnum::text from pg_catalog.unnest(x.indkey) with ordinality a(attnum, k)
                where a.k > x.indnkeyatts) as included,
         array(select o.family::text || '.' || l.language::text || '.' || p.flags::text
                 from pg_catalog.unnest(x.indclass) with ordinality o(family, k)
                      join pg_catalog.unnest(x.indcollation) with ordinality l(language, k) using (k)
                      join pg_catalog.unnest(x.indoption) with ordinality p(flags, k) using (k)
                order by k) as ways,
         coalesce(pg_catalog.pg_get_expr(x.indpred, x.indrelid), '') as predicate
    from pg_catalog.pg_index x
         join pg_catalog.pg_class c on c.oid = x.indexrelid
         join pg_catalog.pg_namespace n on n.oid = c.relnamespace
   where n.nspname !~ '^pg_' and n.nspname <> 'information_schema' and x.indisvalid
     and not exists (select from pg_catalog.pg_inherits i where i.inhrelid = x.indexrelid)
)
select distinct on (a.name) a.name, b.name, a.indnkeyatts = b.indnkeyatts
  from indexes a
       join indexes b on b.indrelid = a.indrelid and b.indexrelid <> a.indexrelid and b.method = a.method
 where not a.indisunique and not a.indisexclusion and not b.indisexclusion
   and a.keys = b.keys[1:a.indnkeyatts] and a.ways = b.ways[1:a.indnkeyatts] and a.predicate = b.predicate
   and (b.indnkeyatts = a.indnkeyatts
        or a.method = (select m.oid from pg_catalog.pg_am m where m.amname = 'btree'))
   and (a.included <@ b.included)
   and not (a.indnkeyatts = b.indnkeyatts and a.included @> b.included and not b.indisunique
            and a.indexrelid < b.indexrelid)
 order by a.name, b.indexrelid
"""

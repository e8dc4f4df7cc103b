"""Owns what the rules of one check look at: the schema, its queries, and a database that it has been applied to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from xjobs.ddl.postgres.applying import Refusal, apply
from xjobs.ddl.postgres.queries import Query
from xjobs.ddl.postgres.scratch import Server, connected
from xjobs.ddl.sources import Source

__all__ = ["Bench", "install"]


@dataclass(frozen=True)
class Bench:
    """What the rules look at.

    Attributes:
        ddl: the sources of the schema, in the order in which they are applied.
        queries: what is declared beside it.
        versions: earlier forms of the schema, which databases may have.
        live: the connection string of a database that should hold the schema, or None.
        server: where scratch databases are made.
        connection: to one of them that the schema has been applied to; rules leave it as it is.
    """

    ddl: Sequence[Source]
    queries: Sequence[Query]
    versions: Sequence[Source]
    live: str | None
    server: Server
    connection: psycopg.Connection[Any]


def install(sources: Iterable[Source], dsn: str, search_path: str = "public") -> Refusal | None:
    """Apply sources, up to the first statement that is refused, and answer that one.

    Each has a connection of its own, since it may change settings.
    """
    for source in sources:
        with connected(dsn, search_path) as connection:
            refusal = apply(source, connection)
        if refusal is not None:
            return refusal
    return None

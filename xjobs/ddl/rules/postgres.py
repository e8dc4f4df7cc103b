"""Owns what the rules that a server is asked about are called and mean; `xjobs.ddl.postgres` asks it."""

from __future__ import annotations

from typing import Final

from xjobs.ddl.findings import Rule

__all__ = ["POSTGRES_RULES"]

DDL_REFUSED: Final = Rule(
    id="ddl-refused",
    group="meaning",
    kind="postgres",
    reason="What an empty database refuses cannot be installed, and nothing else can be asked about it.",
    fix="Correct the statement, or the order of the statements.",
)
REAPPLY_CHANGES: Final = Rule(
    id="reapply-changes",
    group="meaning",
    kind="postgres",
    reason="DDL that is applied at each start must find what is there and leave it as it is.",
    fix="Write it so that it finds what is there: if not exists, if exists, or replace.",
)
UPGRADE_DIFFERS: Final = Rule(
    id="upgrade-differs",
    group="meaning",
    kind="postgres",
    needs="versions",
    reason="A database that was installed by an earlier version must become what a new one is.",
    fix="Lead from the old form to the new: alter the table, or drop the index and make it under another name.",
)
SCHEMA_DRIFT: Final = Rule(
    id="schema-drift",
    group="meaning",
    kind="postgres",
    needs="live",
    reason="A database that is not what the DDL says was changed by hand, or misses a migration.",
    fix="Migrate the database, or change what is declared.",
)
QUERY_FAILS: Final = Rule(
    id="query-fails",
    group="meaning",
    kind="postgres",
    needs="queries",
    reason="A query that the schema refuses fails at run time, perhaps in a branch that no test runs.",
    fix="Change the query, or the schema that it is written for.",
)
INDEX_UNUSED: Final = Rule(
    id="index-unused",
    group="meaning",
    kind="postgres",
    needs="queries",
    reason="A partial index serves a query only if the planner can prove its predicate from what the query filters on.",
    fix="Let both say the same, with states and other values as literals, and columns in one order.",
)
SEQUENTIAL_SCAN: Final = Rule(
    id="sequential-scan",
    group="meaning",
    kind="postgres",
    needs="queries",
    reason="A query that reads a whole table slows down as the table grows.",
    fix="Make an index on what the query looks for.",
)
DEFAULT_CLOCK: Final = Rule(
    id="default-clock",
    group="meaning",
    kind="postgres",
    reason="A default that tests cannot move is of another time than the rest of the row.",
    fix="Write now(), without a schema.",
)
INDEX_INVALID: Final = Rule(
    id="index-invalid",
    group="meaning",
    kind="postgres",
    reason="An index whose build did not finish costs every write and serves no query.",
    fix="Drop the index concurrently, and build it again.",
)
INDEX_COVERED: Final = Rule(
    id="index-covered",
    group="meaning",
    kind="postgres",
    reason="Of two indexes that do the same work every write pays for both.",
    fix="Drop the shorter one, or write down why it stays: -- xjobs: ignore index-covered because ...",
)

POSTGRES_RULES: Final = (
    DDL_REFUSED,
    REAPPLY_CHANGES,
    UPGRADE_DIFFERS,
    SCHEMA_DRIFT,
    QUERY_FAILS,
    INDEX_UNUSED,
    SEQUENTIAL_SCAN,
    DEFAULT_CLOCK,
    INDEX_INVALID,
    INDEX_COVERED,
)

"""Owns the table of the text rules, in the order in which they are documented."""

from __future__ import annotations

from xjobs.ddl import suppression
from xjobs.ddl.findings import Rule
from xjobs.ddl.rules import clock, growing, installing, migrations, queries, splitting, states, types

__all__ = ["TEXT_RULES"]

TEXT_RULES: tuple[Rule, ...] = (
    *splitting.RULES,
    *installing.RULES,
    *growing.RULES,
    *types.RULES,
    *clock.RULES,
    *states.RULES,
    *queries.RULES,
    *migrations.RULES,
    *installing.STRICT,
    *migrations.STRICT,
    *suppression.RULES,
)

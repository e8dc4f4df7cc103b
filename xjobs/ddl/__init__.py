"""Checks of DDL: the queue's own schema and an app's, as one pure function over texts.

`check` answers the findings of the text rules, `split_statements` the statements of a script. Nothing here needs a
server; docs/ddl.md has the command and the recipes, docs/ddl-rules.md the rules.
"""

from __future__ import annotations

from xjobs.ddl.check import RULES, check, finding_of, select_rules
from xjobs.ddl.findings import Finding, Findings, Rule, Suppressed
from xjobs.ddl.sources import Source, load
from xjobs.ddl.split import Statement, split_statements
from xjobs.ddl.suppression import parse_ignore, suppress

__all__ = [
    "RULES",
    "Finding",
    "Findings",
    "Rule",
    "Source",
    "Statement",
    "Suppressed",
    "check",
    "finding_of",
    "load",
    "parse_ignore",
    "select_rules",
    "split_statements",
    "suppress",
]

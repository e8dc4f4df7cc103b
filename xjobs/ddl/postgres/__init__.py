"""Checks of DDL that ask a real Postgres what a text means, in databases that are made for it and removed.

psycopg is imported here, so import this package where it is used.
"""

from __future__ import annotations

from xjobs.ddl.postgres.check import check_live
from xjobs.ddl.postgres.queries import Pair

__all__ = ["Pair", "check_live"]

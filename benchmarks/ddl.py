"""What the text rules cost: the shipped schema as often as needed for a number of statements, its names made different.

Run: python benchmarks/ddl.py [statements]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import sqlparse

from xjobs.ddl import Source, check, split_statements
from xjobs.sql import SQL_JOBS_TABLE


def script(statements: int) -> str:
    """A script of about so many statements."""
    copies = round(statements / len(split_statements(SQL_JOBS_TABLE)))
    return "".join(SQL_JOBS_TABLE.replace("x_", f"x{number}_") for number in range(copies))


def seconds(work: Callable[[], object], times: int = 5) -> float:
    """Processor time, the least of some tries: other work on the machine disturbs that least."""
    taken = []
    for _ in range(times):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return min(taken)


def main() -> None:
    statements = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    text = script(statements)
    print(f"{len(split_statements(text)):,} statements, {len(text):,} characters")
    print("| what | seconds of processor time |\n|---|---|")
    # A fresh source each time, since what one has read of its text is kept with it.
    for what, work in {
        "split": lambda: split_statements(text),
        "split by sqlparse, for comparison": lambda: sqlparse.split(text),
        "the default rules": lambda: check(Source("a", text)),
        "all text rules": lambda: check(Source("a", text), rules=["all"]),
        "all text rules, beside what was released": lambda: check(
            Source("a", text), rules=["all"], baseline=Source("b", text)
        ),
    }.items():
        print(f"| {what} | {seconds(work):.2f} |")


if __name__ == "__main__":
    main()

"""The DDL of other queues under the text rules: it is read without a stumble, and docs/ddl.md lists what is found.

Needs a directory with their packages, which is made by `.ci/run` and named by XJOBS_WILD:

    pip install --target DIR procrastinate==3.10.0 pgqueuer==1.6.0
    pip install --target DIR --no-deps --ignore-requires-python oban==0.7.0
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from xjobs.ddl import Source, check, load

PAGE = Path(__file__).parents[2] / "docs" / "ddl.md"
WILD = os.environ.get("XJOBS_WILD", "")

pytestmark = pytest.mark.skipif(not WILD, reason="XJOBS_WILD names no directory with other queues' packages")

PGQUEUER = """
import json
from pgqueuer.adapters.persistence.qb import QueryBuilderEnvironment
print(json.dumps(QueryBuilderEnvironment().build_install_query()))
"""


def files(pattern: str) -> list[Source]:
    found = sorted(Path(WILD).glob(pattern))
    assert found, f"no {pattern} in {WILD}"
    return [source for path in found for source in load(str(path))]


def of_pgqueuer() -> list[Source]:
    environment = {**os.environ, "PYTHONPATH": WILD}
    done = subprocess.run([sys.executable, "-c", PGQUEUER], capture_output=True, text=True, check=True, env=environment)
    return [Source("pgqueuer", json.loads(done.stdout))]


TEXTS = {
    "procrastinate 3.10.0, schema": lambda: files("procrastinate/sql/schema.sql"),
    "procrastinate 3.10.0, migrations": lambda: files("procrastinate/sql/migrations/*.sql"),
    "pgqueuer 1.6.0, install": of_pgqueuer,
    "oban 0.7.0, install": lambda: files("oban/queries/install.sql"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_page_lists_what_is_found(name: str) -> None:
    sources = TEXTS[name]()
    found = Counter(finding.rule for source in sources for finding in check(source))
    statements = sum(len(source.statements) for source in sources)
    listed = ", ".join(f"{rule} {count}" for rule, count in sorted(found.items()))
    assert f"| {name} | {statements} | {listed} |" in re.sub(r" +", " ", PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", TEXTS)
def test_every_rule_reads_it_without_a_stumble(name: str) -> None:
    sources = TEXTS[name]()
    # A release of their own as the baseline, so that the rules about growing have something to compare.
    for finding in check(sources, rules=["all"], baseline=sources[:1]):
        (source,) = [source for source in sources if source.name == finding.source]
        assert 1 <= finding.line <= source.text.count("\n") + 1


def test_queries_of_others_are_read_as_well() -> None:
    for source in files("oban/queries/*.sql"):
        check((), [source], rules=["all"])

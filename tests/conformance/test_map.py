"""docs/conformance.md names tests that exist, and leaves out no fault."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAP = ROOT / "docs" / "conformance.md"
FAULTS = range(1, 61)
NO_TEST = ("not built yet", "cannot arise: ")

_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_ROW = re.compile(r"^\| (?!fact |fault |--)(.+) \|$", re.MULTILINE)


@cache
def _tests(path: str) -> frozenset[str]:
    """The test functions of a file, those in classes too."""
    file = ROOT / path
    if not file.is_file():
        return frozenset()
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return frozenset(node.name for node in nodes if isinstance(node, functions) and node.name.startswith("test_"))


def _rows(text: str) -> list[list[str]]:
    return [row.split(" | ") for row in _ROW.findall(text)]


def _wrong(text: str) -> list[str]:
    """Tests that are named and do not exist, and rows that name none and do not say why."""
    missing = [f"{path}::{name}" for path, name in _TEST.findall(text) if name not in _tests(path)]
    rows = [row for row in _rows(text) if not _TEST.search(row[-1]) and not row[-1].startswith(NO_TEST)]
    return missing + [" | ".join(row) for row in rows]


def _numbers(text: str) -> list[int]:
    return [int(row[0]) for row in _rows(text) if row[0].isdigit()]


def test_every_named_test_exists() -> None:
    text = MAP.read_text(encoding="utf-8")
    assert _wrong(text) == []
    assert len(set(_TEST.findall(text))) > 80


def test_every_fault_is_listed_once() -> None:
    assert _numbers(MAP.read_text(encoding="utf-8")) == list(FAULTS)


@pytest.mark.parametrize(
    "row",
    [
        "| a fact | `tests/conformance/test_map.py::test_that_is_not_there` |",
        "| a fact | `tests/conformance/test_nowhere.py::test_every_named_test_exists` |",
        "| a fact | `tests/conformance/test_map.py::_tests` |",
        "| a fact | soon |",
        "| 7 | a fault | |",
    ],
)
def test_a_row_that_leads_nowhere_is_found(row: str) -> None:
    good = "| a fact | `tests/conformance/test_map.py::test_every_named_test_exists` |"
    assert _wrong(good) == []
    assert _wrong(f"{good}\n{row}") != []

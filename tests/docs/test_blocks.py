"""The Python blocks of the README and of every page in docs/ run, page by page, on both backends.

A block that begins with a comment naming a file becomes that file; all others of a page are one test module.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Pages without code to run, with tests of their own.
TABLES = {"conformance.md", "ddl-rules.md", "differences.md", "provisioning.md"}
PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").glob("*.md") if page.name not in TABLES)]
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
FILE_NAME = re.compile(r"# (?P<path>[\w/]+\.py)\n")
INI = """
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
filterwarnings = error
pythonpath = .
"""


def files_of(page: Path) -> dict[str, str]:
    """The files that a page's blocks make, by path."""
    files: dict[str, str] = {}
    for block in BLOCK.finditer(page.read_text()):
        named = FILE_NAME.match(block["code"])
        path = named["path"] if named else f"test_{page.stem.lower()}.py"
        files[path] = files.get(path, "") + block["code"] + "\n\n"
    return files


def test_every_page_has_blocks() -> None:
    assert all(files_of(page) for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_of_a_page_pass_on_both_backends(page: Path, pytester: pytest.Pytester) -> None:
    for path, code in files_of(page).items():
        target = pytester.path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(code)
    pytester.makefile(".ini", pytest=INI)
    result = pytester.runpytest_subprocess("-q", "-p", "no:randomly", "--xjobs-backend=memory,pg")
    outcomes = result.parseoutcomes()
    assert outcomes.keys() <= {"passed"}, result.stdout.str()
    assert outcomes["passed"] >= 1

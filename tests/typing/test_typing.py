"""What type checkers say about an app's use of handles and fixtures: `handles.py`, read by mypy and pyright."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("handles.py")


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """The file in a project of its own, as users have it: without this repository's settings."""
    shutil.copy(SOURCE, tmp_path)
    return tmp_path


def by_mypy(app: Path) -> dict[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", f"--cache-dir={app / 'cache'}", SOURCE.name],
        cwd=app,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    errors: dict[int, list[str]] = {}
    for line in done.stdout.splitlines():
        found = re.fullmatch(r"(.+?):(\d+): (error|note): (.*)", line)
        assert found, line
        assert found[1] == SOURCE.name, line
        if found[3] == "error":
            errors.setdefault(int(found[2]), []).append(found[4])
    return errors


def by_pyright(app: Path) -> dict[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, SOURCE.name],
        cwd=app,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    errors: dict[int, list[str]] = {}
    # The wrapper may say that a newer version exists before it hands on what pyright says.
    for found in json.loads(done.stdout[done.stdout.index("{") :])["generalDiagnostics"]:
        errors.setdefault(found["range"]["start"]["line"] + 1, []).append(found["message"])
    return errors


@pytest.mark.parametrize("check", [by_mypy, by_pyright])
def test_marked_lines_are_errors_and_no_others(app: Path, check: object) -> None:
    assert callable(check)
    errors: dict[int, list[str]] = check(app)
    lines = SOURCE.read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if "  # E: " in line}
    assert len(marked) > 50
    missed = [f"{number}: {lines[number - 1].strip()}" for number in sorted(marked - errors.keys())]
    unexpected = [f"{number}: {errors[number]}" for number in sorted(errors.keys() - marked)]
    assert (missed, unexpected) == ([], [])

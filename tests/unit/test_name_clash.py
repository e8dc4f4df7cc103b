"""The unrelated distribution with our import name."""

from __future__ import annotations

from pathlib import Path

import pytest

import xjobs
from xjobs.name_clash import NameClash, check_import_name


@pytest.fixture(autouse=True)
def _looks_again() -> None:
    """The answer is kept for the process."""
    check_import_name.cache_clear()


def _install(directory: Path, name: str, version: str) -> None:
    metadata = directory / f"{name}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_our_own_distribution_is_no_clash() -> None:
    check_import_name()
    assert xjobs.__distribution__ == "pytest-xjobs"


def test_the_other_distribution_is_named_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, "xjobs", "0.0.7")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(NameClash, match=r"xjobs 0\.0\.7 .*pip uninstall xjobs") as caught:
        check_import_name()
    assert isinstance(caught.value, ImportError)
    assert caught.value.path == str(tmp_path)
    assert caught.value.name == "xjobs"


@pytest.mark.parametrize("name", ["xjobs_extra", "pytest_xjobs_more"])
def test_similar_names_are_no_clash(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, name, "1")
    monkeypatch.syspath_prepend(tmp_path)
    check_import_name()

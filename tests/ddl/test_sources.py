"""Where texts come from: files, constants, standard input, and what is refused there."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from xjobs.ddl import Source, check, load
from xjobs.errors import DdlSourceInvalid

MODULE = '''
"""A module."""
# ä
ONE = """\\
create table if not exists t (
  name varchar(40)
);
"""
SHORT: str = "alter table t add column if not exists ä varchar(40)"
MANY = [
    "select 1",
    "alter table t add column if not exists name varchar(40)",
]
NAMED = {"first": "select 1"}
COMPUTED = ";\\n".join(["select 1", "alter table t add name varchar(40)"])
NUMBER = 7
BYTES = b"select 1"
MIXED = ["select 1", 2]
NONE = []
BLANK = " \\n"
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "case_schema.py"
    path.write_text(MODULE, encoding="utf-8")
    (tmp_path / "case_broken.py").write_text("raise RuntimeError('not\\nhere')")
    (tmp_path / "case_exits.py").write_text("raise SystemExit(0)")
    (tmp_path / "case_lazy.py").write_text("def __getattr__(name): raise ValueError(name)")
    monkeypatch.syspath_prepend(tmp_path)
    yield path
    for name in ("case_schema", "case_broken", "case_exits", "case_lazy"):
        sys.modules.pop(name, None)


def place(reference: str) -> tuple[str, Path | None, int, int]:
    """Source, file, line and column of the one finding in what a reference names."""
    sources = load(reference)
    (finding,) = check(sources, rules=["varchar-limit"])
    (source,) = [source for source in sources if source.name == finding.source]
    return finding.source, source.path, finding.line, finding.column


CONSTANTS = {
    "ONE": ("", "name varchar"),
    "SHORT": ("", "ä varchar"),
    "MANY": ("[1]", "name varchar"),
}


@pytest.mark.parametrize(("constant", "suffix", "text"), [(name, *rest) for name, rest in CONSTANTS.items()])
def test_a_constant_that_is_written_out_is_placed_in_its_module(
    module: Path, constant: str, suffix: str, text: str
) -> None:
    name, path, line, column = place(f"case_schema:{constant}")
    assert (name, path) == (f"case_schema:{constant}{suffix}", module)
    written = MODULE.split("\n")[line - 1]
    assert written[column - 1 :].startswith(text)
    assert MODULE.index(f"\n{constant}") < MODULE.index(written) + column


def test_a_computed_constant_is_placed_in_its_text(module: Path) -> None:
    assert place("case_schema:COMPUTED") == ("case_schema:COMPUTED", None, 2, 19)


def test_texts_of_a_list_or_dict_are_sources_of_one_script(module: Path) -> None:
    assert [source.name for source in load("case_schema:MANY")] == ["case_schema:MANY[0]", "case_schema:MANY[1]"]
    assert [source.name for source in load("case_schema:NAMED")] == ["case_schema:NAMED[first]"]
    script = [Source("a", "drop type if exists mood"), Source("b", "create type mood as enum ('good')")]
    assert check(script, rules=["not-repeatable"]) == []
    assert len(check(script[1:], rules=["not-repeatable"])) == 1


def test_a_file_and_standard_input(tmp_path: Path) -> None:
    path = tmp_path / "schema.sql"
    path.write_bytes(b"\xef\xbb\xbfselect 'a';\r\n")
    (source,) = load(str(path))
    assert (source.name, source.path, source.text) == (str(path), path, "select 'a';\r\n")
    (source,) = load("-", stdin=io.BytesIO(b"select 1"))
    assert (source.name, source.path, source.text) == ("<stdin>", None, "select 1")


REFUSED = {
    "case_schema:NUMBER": "case_schema:NUMBER is 7, of type int: name a text",
    "case_schema:BYTES": "of type bytes",
    "case_schema:MIXED": "of type list",
    "case_schema:NONE": "of type list",
    "case_schema:BLANK": "case_schema:BLANK is empty",
    "case_schema:MISSING": "module case_schema has no MISSING",
    "case_nowhere:ONE": "module case_nowhere cannot be imported: ModuleNotFoundError",
    "case_broken:ONE": "module case_broken cannot be imported: RuntimeError: not here",
    "case_exits:ONE": "module case_exits cannot be imported: SystemExit: 0",
    "case_lazy:ONE": "module case_lazy cannot be imported: ValueError: ONE",
    "nowhere.sql": "there is no file nowhere.sql",
    ".": ". is a directory",
    "": ". is a directory",
    "C:\\schema.sql": "there is no file",
    "no:such:thing": "there is no file",
}


@pytest.mark.parametrize(("reference", "message"), REFUSED.items(), ids=[key or "nothing" for key in REFUSED])
def test_what_names_no_text_is_refused(module: Path, reference: str, message: str) -> None:
    with pytest.raises(DdlSourceInvalid) as caught:
        load(reference)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


BAD_BYTES = {
    "latin": (b"select 1;\nselect '\xe9'", "is not UTF-8: byte 18 (line 2) is 0xe9"),
    "empty": (b"", "is empty"),
    "blank": (b" \n\t", "is empty"),
}


@pytest.mark.parametrize(("data", "message"), BAD_BYTES.values(), ids=BAD_BYTES)
def test_bytes_that_are_no_text_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(DdlSourceInvalid) as caught:
        Source.from_bytes(data, "a.sql")
    assert message in str(caught.value)

"""Owns where SQL to be checked comes from: files, constants of modules, standard input, and texts at hand."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, Final, Literal

from xjobs.ddl.commands import misspelt
from xjobs.ddl.lexer import Kind, Token, syntax_error, tokenize
from xjobs.ddl.positions import Positions, shown
from xjobs.ddl.split import Statement, statements_of
from xjobs.errors import DdlSourceInvalid, DdlSyntaxInvalid

__all__ = ["Source", "SourceKind", "load"]

SourceKind = Literal["ddl", "queries"]

_MISSING: Final = object()


@dataclass(frozen=True)
class Source:
    """A text of SQL and where it is from.

    Attributes:
        name: what findings call it: a path, `module:CONSTANT` or `<stdin>`.
        text: the SQL.
        kind: whether it changes the schema ("ddl") or uses it ("queries").
        path: the file that holds the text as it is; None if there is none. For a constant that is written out in its
            module the module's file; for one that is computed, None, and lines are those of the text.
        first_line: line of that file where the text begins, from 1.
        first_column: column in that line where the text begins, from 1.
    """

    name: str
    text: str
    kind: SourceKind = "ddl"
    path: Path | None = field(default=None, compare=False)
    first_line: int = 1
    first_column: int = 1

    @cached_property
    def tokens(self) -> tuple[Token, ...]:
        """Its tokens, with offsets of the text.

        Raises:
            DdlSyntaxInvalid: it is no SQL; `line` and `column` are those of the file.
        """
        with self._naming_itself():
            return tuple(tokenize(self.text))

    @cached_property
    def statements(self) -> tuple[Statement, ...]:
        """Its statements, with offsets, lines and columns of the text.

        Raises:
            DdlSyntaxInvalid: it is no SQL; `line` and `column` are those of the file.
        """
        tokens = self.tokens
        with self._naming_itself():
            return tuple(statements_of(self.text, tokens))

    def check_commands(self) -> None:
        """Refuse the source if one of its statements begins as none of Postgres does.

        Raises:
            DdlSyntaxInvalid: one does; `line` and `column` are those of the file.
        """
        for statement in self.statements:
            fault = misspelt(statement)
            if fault is not None:
                with self._naming_itself():
                    raise syntax_error(self.text, *fault)

    @contextmanager
    def _naming_itself(self) -> Iterator[None]:
        try:
            yield
        except DdlSyntaxInvalid as error:
            line, column = self._in_file(error.line, error.column)
            raise DdlSyntaxInvalid(
                f"{self.name}:{line}:{column}: {error.problem}",
                error.remedy,
                problem=error.problem,
                line=line,
                column=column,
                source=self.name,
            ) from None

    @property
    def tail_comments(self) -> tuple[Token, ...]:
        """The comments after the `;` of the last statement; all, if there is no statement."""
        last = self.statements[-1] if self.statements else None
        if last is not None and last.semicolon is None:
            return ()
        start = last.semicolon.start if last and last.semicolon else 0
        return tuple(token for token in self.tokens if token.kind is Kind.COMMENT and token.start >= start)

    @cached_property
    def _positions(self) -> Positions:
        return Positions(self.text)

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column, from 1, of the character at `offset` of the text, in the file where there is one."""
        return self._in_file(*self._positions.of(offset))

    def _in_file(self, line: int, column: int) -> tuple[int, int]:
        return self.first_line + line - 1, column + (self.first_column - 1 if line == 1 else 0)

    @classmethod
    def from_bytes(cls, data: bytes, name: str, kind: SourceKind = "ddl", path: Path | None = None) -> Source:
        """The source of a file's bytes.

        Raises:
            DdlSourceInvalid: they are not UTF-8, or hold nothing.
        """
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise DdlSourceInvalid(
                f"{name} is not UTF-8: byte {error.start} (line {line}) is 0x{data[error.start]:02x}",
                "save it as UTF-8",
                source=name,
            ) from None
        return cls.from_text(text, name, kind, path)

    @classmethod
    def from_text(cls, text: str, name: str, kind: SourceKind = "ddl", path: Path | None = None) -> Source:
        """The source of a text.

        Raises:
            DdlSourceInvalid: there is nothing in it.
        """
        if not text.strip():
            raise DdlSourceInvalid(f"{name} is empty", "give a text with at least one statement", source=name)
        return cls(name, text, kind, path)


def load(reference: str, kind: SourceKind = "ddl", *, stdin: BinaryIO | None = None) -> list[Source]:
    """The sources that a reference names.

    Args:
        reference: a path, `module:CONSTANT` (a text, or a list, tuple or dict of texts, each of them a source), or `-`
            for standard input.
        kind: what the SQL does.
        stdin: where `-` reads from; the process's own by default.

    Raises:
        DdlSourceInvalid: the file is missing, a directory, not readable, not UTF-8 or empty; the module cannot be
            imported, or has no such constant, or it is no text.
    """
    if reference == "-":
        return [Source.from_bytes((stdin or sys.stdin.buffer).read(), "<stdin>", kind)]
    path = Path(reference)
    module, colon, constant = reference.rpartition(":")
    if colon and _is_dotted_name(module) and constant.isidentifier() and not path.exists():
        return _from_constant(module, constant, kind)
    return [Source.from_bytes(_read(path), reference, kind, path)]


def _is_dotted_name(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        fact, remedy = f"there is no file {path}", "give the path of a file, or module:CONSTANT"
    except IsADirectoryError:
        fact, remedy = f"{path} is a directory", "name the files in it"
    except (OSError, ValueError) as error:
        fact, remedy = f"{path} cannot be read: {getattr(error, 'strerror', None) or error}", "give a readable file"
    raise DdlSourceInvalid(fact, remedy, source=str(path))


def _from_constant(module_name: str, constant: str, kind: SourceKind) -> list[Source]:
    name = f"{module_name}:{constant}"
    try:
        module = import_module(module_name)
        value = getattr(module, constant, _MISSING)
    except (Exception, SystemExit) as error:  # the module is the user's and may raise anything
        raise DdlSourceInvalid(
            f"module {module_name} cannot be imported: {type(error).__name__}: {shown(str(error))}",
            "name a module that can be imported from here",
            source=name,
        ) from error
    if value is _MISSING:
        raise DdlSourceInvalid(f"module {module_name} has no {constant}", "name one of its constants", source=name)
    file: str | None = getattr(module, "__file__", None)
    path = Path(file) if file else None
    placed = _Literals(path, constant)
    return [placed.source(text, each, kind) for each, text in _texts(value, name).items()]


def _texts(value: object, name: str) -> dict[str, str]:
    """The texts of a constant, by the names of their sources."""
    if isinstance(value, str):
        return {name: value}
    members = dict(enumerate(value)) if isinstance(value, list | tuple) else value
    if isinstance(members, Mapping) and members:
        texts = {f"{name}[{key}]": text for key, text in members.items() if isinstance(text, str)}
        if len(texts) == len(members):
            return texts
    raise DdlSourceInvalid(
        f"{name} is {shown(repr(value))}, of type {type(value).__name__}",
        "name a text, or a list, tuple or dict of texts",
        source=name,
    )


class _Literals:
    """The string literals that a module's file assigns to one name."""

    def __init__(self, path: Path | None, constant: str) -> None:
        self._path = path
        self._file = ""
        self._literals: list[ast.Constant] = []
        if path is None or path.suffix != ".py":
            return
        try:
            self._file = path.read_text(encoding="utf-8")
            tree = ast.parse(self._file)
        except (OSError, ValueError, SyntaxError):
            return
        for node in tree.body:
            if constant in _assigned(node):
                self._literals = [
                    leaf for leaf in ast.walk(node) if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str)
                ]

    def source(self, text: str, name: str, kind: SourceKind) -> Source:
        """The source of a text, placed in the file where the file holds it as written."""
        source = Source.from_text(text, name, kind)
        for literal in self._literals:
            written = ast.get_source_segment(self._file, literal) or ""
            if literal.value == text and (within := written.find(text)) >= 0:
                return self._placed(source, literal, written[:within])
        return source

    def _placed(self, source: Source, literal: ast.Constant, before: str) -> Source:
        line_start = self._file.splitlines(keepends=True)[literal.lineno - 1].encode()[: literal.col_offset].decode()
        opening = line_start + before
        line = literal.lineno + opening.count("\n")
        column = len(opening) - (opening.rfind("\n") + 1) + 1
        return Source(source.name, source.text, source.kind, self._path, line, column)


def _assigned(node: ast.stmt) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}

"""What ini `xjobs_ddl` names: schemas to check, each with what is declared beside it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from xjobs.ddl import Findings, Rule, Source, check, load, parse_ignore, select_rules
from xjobs.errors import Error

__all__ = ["QUEUE", "Subject", "ini_subjects"]

QUEUE: Final = "xjobs.sql:SQL_JOBS_TABLE"
"""The reference of the queue's own schema, which brings its statements along."""

_BESIDE: Final = ("queries", "versions", "baseline")
_FORM: Final = "write REFERENCE, then queries=, versions= or baseline= with a reference, each as often as needed"


@dataclass(frozen=True)
class Subject:
    """A schema to check.

    Attributes:
        reference: of its text, as ini has it: a path or `module:CONSTANT`.
        base: the directory that paths start from.
        beside: references of what is declared with it, by `queries`, `versions` and `baseline`; a path may hold `*`.
        rules: ids and groups of rules to check, or None for the default ones.
        ignore: reasons to live with findings, by rule or group.
    """

    reference: str
    base: Path
    beside: dict[str, list[str]] = field(default_factory=dict)
    rules: tuple[str, ...] | None = None
    ignore: dict[str, str] = field(default_factory=dict)

    @property
    def constant(self) -> str | None:
        """Name of the constant, if it is one and not a file."""
        return self.reference.rpartition(":")[2] if self._is_constant(self.reference) else None

    def _is_constant(self, reference: str) -> bool:
        return ":" in reference and not (self.base / reference).exists()

    @cached_property
    def path(self) -> Path:
        """The file that it is in, which need not exist.

        Raises:
            pytest.UsageError: a constant's module cannot be found.
        """
        if self.constant is None:
            return self.base / self.reference
        module = self.reference.rpartition(":")[0]
        try:
            spec = find_spec(module)
        except Exception as problem:  # noqa: BLE001 - the packages above it are imported, which may raise anything
            raise pytest.UsageError(f"xjobs: ini xjobs_ddl names {self.reference!r}: {problem}") from None
        if spec is None or spec.origin is None:
            raise pytest.UsageError(
                f"xjobs: ini xjobs_ddl names {self.reference!r}: there is no module {module}: give a file, or"
                " module:CONSTANT with a module that can be imported"
            )
        return Path(spec.origin)

    @cached_property
    def ddl(self) -> list[Source]:
        """Its sources, in the order in which they are applied.

        Raises:
            xjobs.Error: it cannot be read.
        """
        return self._load(self.reference)

    @property
    def checked_rules(self) -> list[Rule]:
        """The rules for which there is something to check.

        Raises:
            xjobs.Error: a name is of no rule.
        """
        has = {name for name in _BESIDE if self.beside.get(name)} | ({"queries"} if self.reference == QUEUE else set())
        return [rule for rule in select_rules(self.rules) if not rule.needs or rule.needs in has]

    def by_text(self) -> Findings:
        """What breaks the text rules.

        Raises:
            xjobs.Error: a text cannot be read, or is no SQL.
        """
        return check(
            self.ddl, self._loaded("queries"), rules=self.rules, baseline=self._loaded("baseline"), ignore=self.ignore
        )

    def by_server(self, dsn: str, prefix: str) -> Findings:
        """What breaks the rules that a server is asked about.

        Raises:
            xjobs.Error: a text cannot be read or is no SQL, or the server does not take part.
        """
        from xjobs.ddl.postgres import check_live
        from xjobs.ddl.postgres.queue import queue_queries

        queries = [*self._loaded("queries"), *(queue_queries() if self.reference == QUEUE else ())]
        versions = self._loaded("versions")
        return check_live(
            dsn, self.ddl, queries, versions=versions, rules=self.rules, ignore=self.ignore, prefix=prefix
        )

    def _loaded(self, name: str) -> list[Source]:
        references = [each for reference in self.beside.get(name, ()) for each in self._expanded(reference)]
        return [source for reference in references for source in self._load(reference)]

    def _expanded(self, reference: str) -> Iterator[str]:
        if "*" not in reference:
            yield reference
            return
        found = sorted(path.relative_to(self.base).as_posix() for path in self.base.glob(reference))
        if not found:
            raise pytest.UsageError(f"xjobs: ini xjobs_ddl names {reference!r}: no file of {self.base} has such a name")
        yield from found

    def _load(self, reference: str) -> list[Source]:
        if self._is_constant(reference):
            return load(reference)
        # Findings call it what ini calls it.
        return [replace(source, name=reference) for source in load(str(self.base / reference))]


def ini_subjects(config: pytest.Config) -> list[Subject]:
    """What ini names, in its order; where it names nothing, the queue's own schema.

    Raises:
        pytest.UsageError: a line is malformed, or ignores a rule without a reason.
    """
    base = (config.inipath or config.rootpath / "none").parent
    try:
        ignore = parse_ignore(config.getini("xjobs_ddl_ignore"))
    except Error as problem:
        raise pytest.UsageError(f"xjobs: ini xjobs_ddl_ignore: {problem}") from None
    rules = tuple(config.getini("xjobs_ddl_rules")) or None
    lines = config.getini("xjobs_ddl") or [QUEUE]
    return [Subject(*_parsed(line, base), rules=rules, ignore=ignore) for line in lines]


def _parsed(line: str, base: Path) -> tuple[str, Path, dict[str, list[str]]]:
    try:
        reference, *words = shlex.split(line)
    except ValueError as problem:
        raise pytest.UsageError(f"xjobs: ini xjobs_ddl has the line {line!r}: {problem}: {_FORM}") from None
    beside: dict[str, list[str]] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name not in _BESIDE or not equals or not value:
            raise pytest.UsageError(f"xjobs: ini xjobs_ddl has {word!r} in the line {line!r}: {_FORM}")
        beside.setdefault(name, []).append(value)
    return reference, base, beside

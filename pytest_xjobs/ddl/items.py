"""DDL checks as pytest items, one per rule: `schema.sql::index-covered`, `app/models.py::DDL::index-covered`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest

from pytest_xjobs.ddl.server import NotAsked, server
from pytest_xjobs.ddl.subjects import Subject, ini_subjects
from pytest_xjobs.ddl.summary import IGNORED, NOT_ASKED
from xjobs.ddl import Finding, Findings, Rule
from xjobs.errors import Error

__all__ = ["DdlFile", "file_of", "files"]

_SUBJECTS = pytest.StashKey[list[Subject]]()
_REFUSED: Final = "ddl-refused"


def files(session: pytest.Session) -> list[DdlFile]:
    """A collector for each file that ini names, or that holds a constant that ini names."""
    paths = dict.fromkeys(subject.path for subject in _subjects(session.config))
    return [_file(path, session) for path in paths]


def file_of(path: Path, parent: pytest.Collector) -> DdlFile | None:
    """The collector for a file, if ini names it or a constant in it."""
    if all(subject.path != path for subject in _subjects(parent.config)):
        return None
    return _file(path, parent)


def _file(path: Path, parent: pytest.Collector) -> DdlFile:
    root = parent.config.rootpath
    if path.is_relative_to(root):
        return DdlFile.from_parent(parent, path=path)
    # pytest would make up an id from the last part alone; an installed package is not below the root.
    return DdlFile.from_parent(parent, path=path, nodeid=Path(os.path.relpath(path, root)).as_posix())


def _subjects(config: pytest.Config) -> list[Subject]:
    if _SUBJECTS not in config.stash:
        config.stash[_SUBJECTS] = ini_subjects(config)
    return config.stash[_SUBJECTS]


class _InShort(pytest.Collector):
    """A collector that reports a text that cannot be read by its message: our own code is not where the fault is."""

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Any:  # type: ignore[override]
        return str(excinfo.value) if isinstance(excinfo.value, Error) else super().repr_failure(excinfo)


class DdlFile(pytest.File, _InShort):
    """A file that ini names, or that holds constants that it names."""

    def collect(self) -> Iterator[pytest.Collector | pytest.Item]:
        """Items for the file's own text, collectors for its constants."""
        for subject in _subjects(self.config):
            if subject.path != self.path:
                continue
            if subject.constant is None:
                yield from _items(self, subject)
            else:
                yield DdlConstant.from_parent(self, name=subject.constant, subject=subject)


class DdlConstant(_InShort):
    """A constant that ini names."""

    def __init__(self, *, subject: Subject, **options: Any) -> None:
        super().__init__(**options)
        self._subject = subject

    def collect(self) -> Iterator[pytest.Item]:
        """Its items."""
        return _items(self, self._subject)


def _items(parent: pytest.Collector, subject: Subject) -> Iterator[DdlItem]:
    for source in subject.ddl:
        _ = source.statements  # a text that is no SQL is no schema to check
    results = _Results(subject, parent.config)
    for rule in subject.checked_rules:
        yield DdlItem.from_parent(parent, name=rule.id, rule=rule, results=results)


class _Results:
    """What the checks of one schema found, each worked out when the first item asks."""

    def __init__(self, subject: Subject, config: pytest.Config) -> None:
        self.reference = subject.reference
        self._subject = subject
        self.config = config
        self._problem: Exception | None = None

    @cached_property
    def text(self) -> Findings:
        return self._subject.by_text()

    @cached_property
    def postgres(self) -> Findings:
        return self._subject.by_server(*server(self))

    def of(self, rule: Rule) -> Findings:
        """The findings of all rules of this one's kind.

        Raises:
            Error: a text cannot be read, or the server takes no part.
            NotAsked: there is no server, and the run did not ask for one.
        """
        if self._problem is None:
            try:
                return self.text if rule.kind == "text" else self.postgres
            except (Error, NotAsked) as problem:
                if rule.kind == "text":
                    raise
                # Each attempt may take seconds.
                self._problem = problem
        raise self._problem


class FindingsFound(Exception):
    """A rule is broken; the message is the whole report."""


class DdlItem(pytest.Item):
    """One rule and one schema."""

    def __init__(self, *, rule: Rule, results: _Results, **options: Any) -> None:
        super().__init__(**options)
        self._rule = rule
        self._results = results

    def runtest(self) -> None:
        """Fail if the rule is broken.

        Raises:
            FindingsFound: it is.
        """
        try:
            findings = self._results.of(self._rule)
        except NotAsked as reason:
            self._skip(str(reason))
        refused = [found for found in _all(findings) if found.rule == _REFUSED]
        if refused and self._rule.id != _REFUSED:
            self._skip(f"the DDL cannot be applied, see {_REFUSED}: {refused[0].message}")
        for each in findings.suppressed:
            if each.finding.rule == self._rule.id:
                where = f"{each.finding.source}:{each.finding.line}:{each.finding.column}"
                self.user_properties.append((IGNORED, f"{where}: {each.finding.rule}: {each.reason} ({each.by})"))
        broken = [finding for finding in findings if finding.rule == self._rule.id]
        if broken:
            raise FindingsFound("\n".join([*map(str, broken), f"why: {self._rule.reason} ({self._rule.page})"]))

    def _skip(self, reason: str) -> NoReturn:
        self.user_properties.append((NOT_ASKED, reason))
        pytest.skip(reason)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The findings, or why there are none, without a traceback."""
        if isinstance(excinfo.value, FindingsFound | Error | pytest.UsageError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The file, and the rule with its schema, which is the headline of a failure."""
        return self.path, None, f"{self.name} in {self._results.reference}"


def _all(findings: Findings) -> list[Finding]:
    return [*findings, *(each.finding for each in findings.suppressed)]

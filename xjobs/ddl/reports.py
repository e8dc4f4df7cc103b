"""Owns the forms in which findings are reported: text, JSON, GitHub's annotations and SARIF."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, Final
from urllib.parse import quote

from xjobs.ddl.findings import Finding, Findings, Rule
from xjobs.ddl.sources import Source

__all__ = ["FORMATS"]

_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def _text(findings: Findings, sources: Sequence[Source], rules: Mapping[str, Rule]) -> str:  # noqa: ARG001 - one signature
    return "\n".join([*map(str, findings), _summary(findings, sources)])


def _summary(findings: Findings, sources: Sequence[Source]) -> str:
    statements = sum(len(source.statements) for source in sources)
    parts = [_count(len(findings), "finding"), f"{_count(len(findings.suppressed), 'finding')} ignored with a reason"]
    return f"{_count(statements, 'statement')} checked: {', '.join(parts)}."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)


def _json(findings: Findings, sources: Sequence[Source], rules: Mapping[str, Rule]) -> str:
    paths = _paths(sources)
    report = {
        "findings": [_as_json(each, paths, rules) for each in findings],
        "suppressed": [
            {**_as_json(each.finding, paths, rules), "because": each.reason, "ignored_by": each.by}
            for each in findings.suppressed
        ],
        "sources": [
            {"name": source.name, "kind": source.kind, "statements": len(source.statements)} for source in sources
        ],
    }
    return json.dumps(report, indent=2, ensure_ascii=False)


def _as_json(finding: Finding, paths: Mapping[str, str], rules: Mapping[str, Rule]) -> dict[str, Any]:
    return {**asdict(finding), "path": paths.get(finding.source), "page": rules[finding.rule].page}


def _paths(sources: Sequence[Source]) -> dict[str, str]:
    """The files of the sources that have one, by the sources' names."""
    return {source.name: source.path.as_posix() for source in sources if source.path is not None}


def _github(findings: Findings, sources: Sequence[Source], rules: Mapping[str, Rule]) -> str:  # noqa: ARG001 - one signature
    paths = _paths(sources)
    lines = [_annotation(each, paths.get(each.source)) for each in findings]
    return "\n".join([*lines, f"::notice title=xjobs ddl::{_escaped(_summary(findings, sources))}"])


def _annotation(finding: Finding, path: str | None) -> str:
    """A workflow command, which GitHub shows at the line; a text of no file is named in the message instead."""
    properties = {"title": finding.rule}
    message = f"{finding.message}\n{finding.text}\nfix: {finding.fix}"
    if path is None:
        message = f"{finding.source}:{finding.line}:{finding.column}: {message}"
    else:
        properties = {"file": path, "line": str(finding.line), "col": str(finding.column), **properties}
    written = ",".join(f"{name}={_escaped(value, ':,')}" for name, value in properties.items())
    return f"::error {written}::{_escaped(message)}"


def _escaped(text: str, more: str = "") -> str:
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def _sarif(findings: Findings, sources: Sequence[Source], rules: Mapping[str, Rule]) -> str:
    paths = _paths(sources)
    shown = [(each, None) for each in findings] + [(each.finding, each) for each in findings.suppressed]
    used = sorted({finding.rule for finding, _ in shown})
    results = []
    for finding, suppressed in shown:
        result = _result(finding, paths.get(finding.source), used)
        if suppressed is not None:
            kind = "external" if suppressed.by == "option" else "inSource"
            result["suppressions"] = [{"kind": kind, "justification": suppressed.reason}]
        results.append(result)
    driver = {
        "name": "xjobs ddl",
        "version": version("pytest-xjobs"),
        "rules": [_descriptor(rules[rule]) for rule in used],
    }
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return json.dumps({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False)


def _descriptor(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.reason},
        "help": {"text": f"{rule.fix} See {rule.page}."},
        "properties": {"tags": [rule.group, rule.kind]},
    }


def _result(finding: Finding, path: str | None, used: list[str]) -> dict[str, Any]:
    region = {"startLine": finding.line, "startColumn": finding.column, "snippet": {"text": finding.text}}
    location: dict[str, Any] = {"message": {"text": f"{finding.source}:{finding.line}:{finding.column}"}}
    if path is not None:
        location["physicalLocation"] = {"artifactLocation": {"uri": quote(path)}, "region": region}
    return {
        "ruleId": finding.rule,
        "ruleIndex": used.index(finding.rule),
        "level": "error",
        "message": {"text": f"{finding.message}. {finding.fix}"},
        "locations": [location],
    }


FORMATS: Final[Mapping[str, Callable[[Findings, Sequence[Source], Mapping[str, Rule]], str]]] = {
    "text": _text,
    "json": _json,
    "github": _github,
    "sarif": _sarif,
}
"""The reports by name, each a text without a line break at its end."""

"""Owns the rules of a text that is applied at every start: each statement may be applied again, with no effect."""

from __future__ import annotations

import re
from collections.abc import Iterator

from xjobs.ddl.findings import Rule
from xjobs.ddl.forms import Action, AlterTable, Create, CreateIndex, CreateTable, Drop, Other
from xjobs.ddl.script import Edit, Found, Placed, Script

__all__ = ["RULES", "STRICT"]

# Kinds of objects that Postgres creates with `if not exists`, and those that it creates with `or replace`.
_IF_NOT_EXISTS = frozenset({"table", "index", "schema", "extension", "sequence", "materialized view", "foreign table"})
_OR_REPLACE = frozenset({"function", "procedure", "view", "aggregate", "rule", "language", "trigger"})

# Kinds whose name follows at once in a `drop`, so that the guard can be put between; and what has no guard.
_DROPPED = _IF_NOT_EXISTS | _OR_REPLACE | {"type", "domain", "policy"}
_DROPPED_WITHOUT_GUARD = frozenset({"owned"})

# Actions of `alter table` that fail or undo something the second time, and the guard that Postgres has for them.
_GUARDS = {"add column": "if not exists", "drop column": "if exists", "drop constraint": "if exists"}

# What begins a statement of no other form that may not be applied again.
_ONCE = ("insert", "copy", "alter type", "alter index", "alter sequence", "alter schema", "alter domain")


def _not_repeatable(script: Script) -> Iterator[Found]:
    dropped: set[str] = set()
    for placed in script.statements:
        form = placed.form
        if isinstance(form, Drop):
            dropped.update(f"{form.kind} {name}" for name in form.names)
        elif isinstance(form, AlterTable):
            dropped.update(f"constraint {each.name}" for each in form.actions if each.verb == "drop constraint")
        yield from _failing_again(placed, dropped)


def _failing_again(placed: Placed, dropped: set[str]) -> Iterator[Found]:
    form = placed.form
    if isinstance(form, CreateTable | CreateIndex | Create):
        if form.guard is None and f"{form.kind} {form.name}" not in dropped and not getattr(form, "temporary", False):
            yield _unguarded_create(placed, form.kind, form.name)
    elif isinstance(form, Drop):
        if form.guard is None and form.kind not in _DROPPED_WITHOUT_GUARD:
            words = ["drop", *form.kind.split()] + ["concurrently"] * form.concurrently
            edits = _inserted(placed, words, "if exists") if form.kind in _DROPPED else ()
            yield placed.found(f"drop {form.kind} without `if exists` fails when it is applied again", edits=edits)
    elif isinstance(form, AlterTable):
        for action in form.actions:
            yield from _failing_action(placed, action, dropped)
    else:
        yield from _failing_other(placed, form)


def _unguarded_create(placed: Placed, kind: str, name: str) -> Found:
    if kind in _IF_NOT_EXISTS:
        guard, behind = "if not exists", _words_up_to_kind(placed, kind)
    elif kind in _OR_REPLACE:
        guard, behind = "or replace", ["create"]
    else:
        return placed.found(f"create {kind} fails when it is applied again, and nothing drops it before")
    edits = _inserted(placed, behind, guard) if name else ()
    return placed.found(f"create {kind} without `{guard}` fails when it is applied again", edits=edits)


def _words_up_to_kind(placed: Placed, kind: str) -> list[str]:
    words = [token.text.lower() for token in placed.code]
    end = words.index(kind.rsplit(maxsplit=1)[-1]) + 1
    return words[: end + (words[end : end + 1] == ["concurrently"])]


def _inserted(placed: Placed, words: list[str], guard: str) -> tuple[Edit, ...]:
    """The guard put behind the words that the statement begins with; nothing if it begins with others."""
    tokens = placed.code[: len(words)]
    if [token.text.lower() for token in tokens] != words:
        return ()
    return (Edit(tokens[-1].end, tokens[-1].end, f" {guard}"),)


def _failing_action(placed: Placed, action: Action, dropped: set[str]) -> Iterator[Found]:
    guard = _GUARDS.get(action.verb)
    if guard is not None:
        if action.guard is None:
            behind = [token for token in action.tokens[:2] if token.text.lower() in action.verb.split()][-1]
            written = guard if behind.text.lower() in ("column", "constraint") else f"{action.verb.split()[1]} {guard}"
            message = f"{action.verb} without `{guard}` fails when it is applied again"
            edits = (Edit(behind.end, behind.end, f" {written}"),)
            yield placed.found(message, action.tokens[0], action.tokens[-1], edits=edits)
    elif action.verb == "rename" or (action.verb == "add constraint" and f"constraint {action.name}" not in dropped):
        message = f"{action.verb} fails when it is applied again"
        yield placed.found(message, action.tokens[0], action.tokens[-1])


def _failing_other(placed: Placed, form: Other) -> Iterator[Found]:
    begins = " ".join(form.words[:2])
    text = " ".join(form.words)
    if begins.startswith("insert") and "on conflict" in text:
        return
    if begins.startswith(_ONCE) and " if not exists " not in text and " if exists " not in text:
        yield placed.found(f"{begins if begins.startswith('alter') else form.words[0]} does its work again each time")


def _created_and_dropped(script: Script) -> Iterator[Found]:
    created: dict[str, Placed] = {}
    dropped: dict[str, Placed] = {}
    for placed in script.statements:
        form = placed.form
        if isinstance(form, CreateIndex | CreateTable) and form.guard == "if not exists":
            created.setdefault(f"{form.kind} {form.name}", placed)
        elif isinstance(form, Drop) and form.kind in ("index", "table"):
            dropped.update((f"{form.kind} {name}", placed) for name in form.names)
    for name in created.keys() & dropped.keys():
        yield dropped[name].found(f"{name} is also created by this script, so each time it is built anew")


_ALLOWED = re.compile(
    r"create table if not exists|create( unique)? index if not exists|drop index if exists"
    r"|alter table( only)? \S+( \. \S+)? add column if not exists"
)


def _forms(script: Script) -> Iterator[Found]:
    for placed in script.statements:
        text = " ".join(token.text.lower() for token in placed.code[:12])
        several = isinstance(placed.form, AlterTable) and len(placed.form.actions) > 1
        if several or not _ALLOWED.match(text):
            yield placed.found("a statement of another form")


def _enforced(script: Script) -> Iterator[Found]:
    for placed in script.statements:
        for token in placed.code:
            word = token.text.lower()
            if word in ("references", "check", "trigger") or (word == "exclude" and "using" in _words(placed)):
                yield placed.found(f"`{word}` makes the database enforce more than keys", token)


def _words(placed: Placed) -> set[str]:
    return {token.text.lower() for token in placed.code}


_STRICT = "strict"
_GROUP = "install"

RULES = (
    Rule(
        id="not-repeatable",
        group=_GROUP,
        reason="A text that is applied at every start fails at the second one.",
        fix="Add `if not exists`, `if exists` or `or replace`; drop before what has none of them.",
        fixable=True,
        find=_not_repeatable,
    ),
    Rule(
        id="created-and-dropped",
        group=_GROUP,
        reason="What one script both creates and drops is built anew at every start, and locks its table for it.",
        fix="Keep one of them; give an index that has changed a new name and drop the old one.",
        find=_created_and_dropped,
    ),
)

STRICT = (
    Rule(
        id="statement-form",
        group=_STRICT,
        default=False,
        reason="A schema of few forms can be read, compared and split by simple tools.",
        fix="Use create table, create index, alter table add column and drop index, each with its `if [not] exists`.",
        find=_forms,
    ),
    Rule(
        id="enforced-by-database",
        group=_STRICT,
        default=False,
        reason="Foreign keys, checks and triggers take locks and time that the statements do not show.",
        fix="Enforce it in code, or leave this rule out.",
        find=_enforced,
    ),
)

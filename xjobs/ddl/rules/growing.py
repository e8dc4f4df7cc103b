"""Owns the rules about growing a schema that has shipped; they compare it with the DDL that was released.

`create table if not exists` does nothing where the table is, so what changes in its text reaches new installs only, and
the two drift apart. The same goes for columns and indexes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from xjobs.ddl.findings import Rule
from xjobs.ddl.forms import Action, AlterTable, CreateIndex, CreateTable, Drop, normal_form, spelling, without_storage
from xjobs.ddl.script import Found, Placed, Script

__all__ = ["RULES"]


@dataclass
class _Objects:
    """What a script makes, by name, with the statement that makes it, and what it drops."""

    tables: dict[str, Placed] = field(default_factory=dict)
    columns: dict[str, tuple[Placed, Action]] = field(default_factory=dict)
    indexes: dict[str, Placed] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, statements: tuple[Placed, ...]) -> _Objects:
        objects = cls()
        for placed in statements:
            objects._see(placed)
        return objects

    def _see(self, placed: Placed) -> None:
        form = placed.form
        if isinstance(form, CreateTable):
            self.tables.setdefault(form.name, placed)
        elif isinstance(form, CreateIndex):
            self.indexes.setdefault(form.name, placed)
        elif isinstance(form, Drop):
            self.dropped.update(f"{form.kind} {name}" for name in form.names)
        elif isinstance(form, AlterTable):
            for action in form.actions:
                if action.verb == "add column":
                    self.columns.setdefault(f"{form.table}.{action.name}", (placed, action))
                elif action.verb == "drop column":
                    self.dropped.add(f"column {form.table}.{action.name}")


def _pairs(script: Script) -> Iterator[tuple[_Objects, _Objects]]:
    """The script beside what was released, if that is given."""
    if script.baseline and script.ddl:
        yield _Objects.of(script.statements), _Objects.of(script.baseline_statements)


def _tables_edited(script: Script) -> Iterator[Found]:
    for ours, released in _pairs(script):
        for name in ours.tables.keys() & released.tables.keys():
            here, there = ours.tables[name], released.tables[name]
            if normal_form(here.code) != normal_form(there.code):
                yield here.found(f"{_difference(here, there)}, and {name} has shipped")


def _difference(here: Placed, there: Placed) -> str:
    assert isinstance(here.form, CreateTable)  # noqa: S101 - for the type checker, as the next
    assert isinstance(there.form, CreateTable)  # noqa: S101
    now = {column.name: normal_form(column.tokens) for column in here.form.columns}
    before = {column.name: normal_form(column.tokens) for column in there.form.columns}
    parts = [
        ("adds", [name for name in now if name not in before]),
        ("leaves out", [name for name in before if name not in now]),
        ("changes", [name for name in now if name in before and now[name] != before[name]]),
    ]
    told = [f"{verb} {', '.join(names)}" for verb, names in parts if names]
    return "the create text " + (" and ".join(told) or "differs from the released one")


def _columns_edited(script: Script) -> Iterator[Found]:
    for ours, released in _pairs(script):
        for name in ours.columns.keys() & released.columns.keys():
            (placed, here), (_, there) = ours.columns[name], released.columns[name]
            if here.column and there.column and normal_form(here.column.tokens) != normal_form(there.column.tokens):
                message = f"column {name} was released as: {spelling(there.column.tokens)}"
                yield placed.found(message, here.tokens[0], here.tokens[-1])


def _indexes_edited(script: Script) -> Iterator[Found]:
    for ours, released in _pairs(script):
        for name in ours.indexes.keys() & released.indexes.keys():
            here, there = ours.indexes[name], released.indexes[name]
            if name and normal_form(without_storage(here.code)) != normal_form(without_storage(there.code)):
                yield here.found(f"index {name} was released as: {spelling(there.code)}")


def _indexes_left_behind(script: Script) -> Iterator[Found]:
    for ours, released in _pairs(script):
        for name, there in released.indexes.items():
            if name and name not in ours.indexes and f"index {name}" not in ours.dropped:
                yield _nowhere(script, f"index {name}, made by {there.source.name}, is neither made nor dropped")


def _objects_left_behind(script: Script) -> Iterator[Found]:
    for ours, released in _pairs(script):
        for name, there in released.tables.items():
            if name not in ours.tables and f"table {name}" not in ours.dropped:
                yield _nowhere(script, f"table {name}, made by {there.source.name}, is neither made nor dropped")
        for name, (placed, _) in released.columns.items():
            if name not in ours.columns and f"column {name}" not in ours.dropped and not _in_create(ours, name):
                yield _nowhere(script, f"column {name}, added by {placed.source.name}, is neither added nor dropped")


def _in_create(objects: _Objects, column: str) -> bool:
    table, _, name = column.rpartition(".")
    placed = objects.tables.get(table)
    form = placed.form if placed else None
    return isinstance(form, CreateTable) and any(each.name == name for each in form.columns)


def _nowhere(script: Script, message: str) -> Found:
    """A finding about what is not there: at the beginning of the script."""
    source = script.ddl[0]
    end = source.text.find("\n")
    return Found(source, 0, end if end >= 0 else len(source.text), message)


_GROUP = "growing"

RULES = (
    Rule(
        id="shipped-table-edited",
        group=_GROUP,
        needs="baseline",
        reason="An edited create text reaches new installs only, since the old ones have the table already.",
        fix="Leave the text as it was released and write `alter table ... add column if not exists` below it.",
        find=_tables_edited,
    ),
    Rule(
        id="shipped-column-edited",
        group=_GROUP,
        needs="baseline",
        reason="Where the column is, `add column if not exists` does nothing, whatever its definition says now.",
        fix="Leave the text as it was released and write an `alter column` below it.",
        find=_columns_edited,
    ),
    Rule(
        id="shipped-index-edited",
        group=_GROUP,
        needs="baseline",
        reason="Where an index of that name is, `create index if not exists` does nothing.",
        fix="Give the index that differs a new name, and drop the old one. How it is stored, `with (...)`, may differ.",
        find=_indexes_edited,
    ),
    Rule(
        id="superseded-index",
        group=_GROUP,
        needs="baseline",
        reason="An index that nothing makes any more stays where it was installed: it costs writes, or refuses rows.",
        fix="Write `drop index if exists` for it, before its successor.",
        find=_indexes_left_behind,
    ),
    Rule(
        id="shipped-object-lost",
        group=_GROUP,
        needs="baseline",
        reason="A table or column that nothing makes any more is in old installs and not in new ones.",
        fix="Leave its text, or drop it.",
        find=_objects_left_behind,
    ),
)

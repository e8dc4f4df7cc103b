"""Owns reading what a DDL statement does to which object, as far as the rules ask.

Not a parser of SQL: a statement is read from its beginning, word by word, and what is of no known form is `Other`.
Names are as Postgres folds them, with their schema where one is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from xjobs.ddl.lexer import Kind, Token

__all__ = [
    "Action",
    "AlterTable",
    "Column",
    "Create",
    "CreateIndex",
    "CreateTable",
    "Drop",
    "Form",
    "Other",
    "form_of",
    "name_of",
    "normal_form",
    "spelling",
    "without_storage",
    "words",
]

_COLUMN_OPTIONS = frozenset(
    """
    constraint not null default primary unique check references collate generated deferrable
    initially compression storage options using
    """.split()  # noqa: SIM905 - one word per line would fill a page
)
_TABLE_CONSTRAINTS = frozenset(
    """
    constraint primary unique check foreign exclude like
    """.split()  # noqa: SIM905 - one word per line would fill a page
)
# What may stand between `create` and the kind of object.
_MODIFIERS = frozenset(
    """
    or replace temp temporary unlogged global local unique recursive trusted procedural
    """.split()  # noqa: SIM905 - one word per line would fill a page
)
_KINDS = {
    ("materialized", "view"): "materialized view",
    ("event", "trigger"): "event trigger",
    ("foreign", "table"): "foreign table",
    ("access", "method"): "access method",
    ("text", "search"): "text search",
}


def name_of(token: Token) -> str:
    """A token as a name: folded to lower case unless it is quoted."""
    return token.text[1:-1].replace('""', '"') if token.text.startswith('"') else token.text.lower()


def words(tokens: Sequence[Token]) -> tuple[str, ...]:
    """The tokens in lower case, those in quotes as written."""
    return tuple(token.text.lower() if token.kind is Kind.WORD else token.text for token in tokens)


def spelling(tokens: Sequence[Token]) -> str:
    """The tokens as one text, without spaces and comments and with words in lower case."""
    return " ".join(words(tokens))


_PLAIN_NAME = re.compile(r'"[a-z_][a-z0-9_$]*"')

# Ways to write one thing, by the way that Postgres keeps; what it takes for granted becomes nothing.
_SYNONYMS = {
    ("timestamp", "with", "time", "zone"): ("timestamptz",),
    ("timestamp", "without", "time", "zone"): ("timestamp",),
    ("character", "varying"): ("varchar",),
    ("using", "btree"): (),
    ("integer",): ("int",),
    ("int4",): ("int",),
    ("int8",): ("bigint",),
    ("bool",): ("boolean",),
    ("!=",): ("<>",),
    ("asc",): (),
}


def normal_form(tokens: Sequence[Token]) -> str:
    """The tokens as one text that is equal for statements that differ only in how they are written.

    Spaces, comments, the case of words and needless quotes make no difference, nor do synonyms and the order of the
    literals of an `in`.
    """
    found: list[str] = []
    spelled = tuple(_unquoted(token) for token in tokens)
    at = 0
    while at < len(spelled):
        for written, kept in _SYNONYMS.items():
            if spelled[at : at + len(written)] == written:
                found += kept
                at += len(written)
                break
        else:
            found.append(spelled[at])
            at += 1
        if found[-2:] == ["in", "("]:
            literals = spelled[at : spelled.index(")", at) if ")" in spelled[at:] else len(spelled)]
            if set(literals[1::2]) <= {","} and all(literal[0] in "'0123456789" for literal in literals[::2]):
                found.append(" , ".join(sorted(literals[::2])))
                at += len(literals)
    return " ".join(found)


def _unquoted(token: Token) -> str:
    """The token in lower case, a name without quotes that change nothing."""
    if token.kind is Kind.NAME and _PLAIN_NAME.fullmatch(token.text):
        return token.text[1:-1]
    return token.text.lower() if token.kind is Kind.WORD else token.text


@dataclass(frozen=True)
class Column:
    """The definition of a column: its name, its type, and what follows."""

    name: str
    tokens: tuple[Token, ...]

    @cached_property
    def type_tokens(self) -> tuple[Token, ...]:
        """The tokens of the type."""
        rest = self.tokens[1:]
        end = next((at for at, depth, word in _with_depth(rest) if depth == 0 and word in _COLUMN_OPTIONS), len(rest))
        return rest[:end]

    @property
    def type(self) -> str:
        """The type as written, in lower case."""
        return spelling(self.type_tokens)

    @cached_property
    def default(self) -> tuple[Token, ...]:
        """The expression of its default; empty if there is none."""
        start = self._option("default")
        if start is None:
            return ()
        rest = self.tokens[start + 1 :]
        ends = (at for at, depth, word in _with_depth(rest) if at > 0 and depth == 0 and word in _COLUMN_OPTIONS)
        return rest[: next(ends, len(rest))]

    def has(self, *option: str) -> bool:
        """Whether the words are among what follows the type, next to each other."""
        return self._option(*option) is not None

    def _option(self, *option: str) -> int | None:
        all_words = words(self.tokens)
        for at, depth, _ in _with_depth(self.tokens):
            if at > len(self.type_tokens) and depth == 0 and all_words[at : at + len(option)] == option:
                return at
        return None


@dataclass(frozen=True)
class Create:
    """`create` of anything that has no class of its own; `guard` is None or how it says that it may be repeated."""

    kind: str
    name: str
    guard: str | None


@dataclass(frozen=True)
class CreateTable:
    """`create table`; `constraints` are those of the table, `columns` empty where it is `as` or `of` something."""

    name: str
    guard: str | None
    temporary: bool
    columns: tuple[Column, ...]
    constraints: tuple[tuple[Token, ...], ...]
    kind: str = "table"


@dataclass(frozen=True)
class CreateIndex:
    """`create index`; `name` is empty where Postgres chooses it."""

    name: str
    table: str
    guard: str | None
    unique: bool
    concurrently: bool
    kind: str = "index"


@dataclass(frozen=True)
class Drop:
    """`drop` of anything."""

    kind: str
    names: tuple[str, ...]
    guard: str | None
    concurrently: bool
    cascade: bool


@dataclass(frozen=True)
class Action:
    """One action of an `alter table`.

    `verb` is `add column`, `drop column`, `alter column`, `add constraint`, `rename` or its first word; `words` are its
    words from behind the verb, without `if [not] exists` and the name of the column, `tokens` all its tokens.
    """

    verb: str
    tokens: tuple[Token, ...]
    words: tuple[str, ...]
    guard: str | None = None
    column: Column | None = None
    name: str = ""


@dataclass(frozen=True)
class AlterTable:
    """`alter table` and its actions."""

    table: str
    guard: str | None
    actions: tuple[Action, ...]


@dataclass(frozen=True)
class Other:
    """A statement of another form, by its words."""

    words: tuple[str, ...]


Form = Create | CreateTable | CreateIndex | Drop | AlterTable | Other


def form_of(code: Sequence[Token]) -> Form:
    """What a statement, given by its tokens without spaces and comments, does."""
    reader = _Reader(tuple(code))
    if reader.take("create"):
        return _create(reader)
    if reader.take("drop"):
        return _drop(reader)
    if reader.take("alter", "table"):
        return _alter_table(reader)
    return Other(words(code))


class _Reader:
    """A place in a statement's tokens that moves on when what is asked for stands there."""

    def __init__(self, tokens: tuple[Token, ...]) -> None:
        self.tokens = tokens
        self.words = words(tokens)
        self.at = 0

    def take(self, *expected: str) -> bool:
        found = self.words[self.at : self.at + len(expected)] == expected
        if found:
            self.at += len(expected)
        return found

    def take_any(self, among: frozenset[str]) -> str | None:
        if self.at < len(self.words) and self.words[self.at] in among:
            self.at += 1
            return self.words[self.at - 1]
        return None

    def guard(self) -> str | None:
        for guard in ("if not exists", "if exists"):
            if self.take(*guard.split()):
                return guard
        return None

    def name(self) -> str:
        parts = []
        while self.at < len(self.tokens) and self.tokens[self.at].kind in (Kind.WORD, Kind.NAME):
            parts.append(name_of(self.tokens[self.at]))
            self.at += 1
            if not self.take("."):
                break
        return ".".join(parts)

    def names(self) -> tuple[str, ...]:
        found = [self.name()]
        while self.take(","):
            found.append(self.name())
        return tuple(found)

    def rest(self) -> tuple[Token, ...]:
        return self.tokens[self.at :]

    def kind(self) -> str:
        for pair, kind in _KINDS.items():
            if self.take(*pair):
                return kind
        self.at += 1
        return self.words[self.at - 1] if self.at <= len(self.words) else ""


def _create(reader: _Reader) -> Form:
    modifiers = set()
    while (modifier := reader.take_any(_MODIFIERS)) is not None:
        modifiers.add(modifier)
    kind = reader.kind()
    if kind == "index":
        return _create_index(reader, unique="unique" in modifiers)
    guard = reader.guard() or ("or replace" if "replace" in modifiers else None)
    name = reader.name()
    if kind == "table":
        return _create_table(reader, name, guard, temporary=bool(modifiers & {"temp", "temporary"}))
    return Create(kind, name, guard)


def _create_index(reader: _Reader, *, unique: bool) -> CreateIndex:
    concurrently = reader.take("concurrently")
    guard = reader.guard()
    name = "" if reader.take("on") else reader.name()
    if name:
        reader.take("on")
    reader.take("only")
    return CreateIndex(name, reader.name(), guard, unique, concurrently)


def _create_table(reader: _Reader, name: str, guard: str | None, *, temporary: bool) -> CreateTable:
    columns, constraints = [], []
    if reader.take("("):
        for element in _elements(reader.rest()):
            if words(element)[0] in _TABLE_CONSTRAINTS:
                constraints.append(element)
            else:
                columns.append(Column(name_of(element[0]), element))
    return CreateTable(name, guard, temporary, tuple(columns), tuple(constraints))


def _drop(reader: _Reader) -> Drop:
    kind = reader.kind()
    concurrently = reader.take("concurrently")
    guard = reader.guard()
    names = reader.names()
    return Drop(kind, names, guard, concurrently, "cascade" in words(reader.rest()))


def _alter_table(reader: _Reader) -> AlterTable:
    guard = reader.guard()
    reader.take("only")
    table = reader.name()
    reader.take("*")
    return AlterTable(table, guard, tuple(_action(tokens) for tokens in _elements(reader.rest())))


def _action(tokens: tuple[Token, ...]) -> Action:
    reader = _Reader(tokens)
    if reader.take("add"):
        return _add(reader)
    if reader.take("rename"):
        return Action("rename", tokens, words(reader.rest()))
    for verb in ("drop", "alter"):
        if reader.take(verb):
            if reader.words[reader.at : reader.at + 1] == ("constraint",):
                return Action(f"{verb} constraint", tokens, *_behind_guard(reader, "constraint"))
            return Action(f"{verb} column", tokens, *_behind_guard(reader, "column"))
    return Action(reader.words[0], tokens, words(reader.rest()[1:]))


def _behind_guard(reader: _Reader, noun: str) -> tuple[tuple[str, ...], str | None, None, str]:
    reader.take(noun)
    guard = reader.guard()
    name = reader.name()
    return words(reader.rest()), guard, None, name


def _add(reader: _Reader) -> Action:
    is_column = reader.take("column")
    rest = reader.rest()
    if not is_column and set(words(rest[:1])) & _TABLE_CONSTRAINTS:
        return Action("add constraint", reader.tokens, words(rest), name=_constraint_name(reader))
    guard = reader.guard()
    rest = reader.rest()
    if not rest:
        return Action("add", reader.tokens, ())
    column = Column(name_of(rest[0]), rest)
    return Action("add column", reader.tokens, words(rest[1:]), guard, column, column.name)


def _constraint_name(reader: _Reader) -> str:
    return reader.name() if reader.take("constraint") else ""


def _elements(tokens: Sequence[Token]) -> Iterator[tuple[Token, ...]]:
    """What commas separate, up to the end or to the parenthesis that closes more than was opened."""
    element: list[Token] = []
    depth = 0
    for token in tokens:
        if token.text in ("(", "["):
            depth += 1
        elif token.text in (")", "]"):
            depth -= 1
            if depth < 0:
                break
        if token.text == "," and depth == 0:
            if element:
                yield tuple(element)
            element = []
        else:
            element.append(token)
    if element:
        yield tuple(element)


def without_storage(tokens: Sequence[Token]) -> Sequence[Token]:
    """A `create index` without its `with (...)`, which says how it is stored and not what it is."""
    begin = None
    for at, depth, word in _with_depth(tokens):
        if begin is not None and depth == 1 and word == ")":
            return [*tokens[:begin], *tokens[at + 1 :]]
        if begin is None and depth == 0 and word == "with" and tokens[at + 1 : at + 2] and tokens[at + 1].text == "(":
            begin = at
        elif depth == 0 and word == "where":
            break
    return tokens


def _with_depth(tokens: Sequence[Token]) -> Iterator[tuple[int, int, str]]:
    """Number, depth of parentheses before it, and word of each token."""
    depth = 0
    for at, (token, word) in enumerate(zip(tokens, words(tokens), strict=True)):
        yield at, depth, word
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(token.text, 0)

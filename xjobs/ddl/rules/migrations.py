"""Owns the rules about changing a table that has rows and readers: what locks it for long, fails, or breaks old code.

They are those of squawk that apply, under names of our own; docs/ddl-rules.md says which is which. A table that the
same script creates, and not only `if not exists`, has neither rows nor readers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise

from xjobs.ddl.findings import Rule
from xjobs.ddl.forms import Action, AlterTable, Column, CreateIndex, CreateTable, Drop, Other, words
from xjobs.ddl.lexer import Kind, Token
from xjobs.ddl.script import Found, Placed, Script

__all__ = ["RULES", "STRICT"]

# Functions whose value is one for the whole statement: as a default they are evaluated once and rewrite nothing.
_ONCE_PER_STATEMENT = frozenset(
    """
    now transaction_timestamp statement_timestamp current_setting current_database current_schema
    txid_current pg_current_xact_id to_timestamp make_interval make_date make_timestamptz
    make_timestamp date_trunc age jsonb_build_object jsonb_build_array json_build_object
    json_build_array to_jsonb array_fill lower upper concat coalesce nullif greatest least cast
    decode encode md5 sha256 repeat lpad rpad left right abs round floor ceil to_char to_date
    interval numeric decimal varchar char character timestamp timestamptz time timetz bit float
    extract array row
    """.split()  # noqa: SIM905 - one word per line would fill a page
)
_VOLATILE_TYPES = frozenset({"serial", "bigserial", "smallserial", "serial2", "serial4", "serial8"})

Look = Callable[[Placed, Action], Iterator[Found]]


def _actions(look: Look) -> Callable[[Script], Iterator[Found]]:
    """A rule's `find` that looks at each action of an `alter table` on a table that was there before."""

    def find(script: Script) -> Iterator[Found]:
        new: set[str] = set()
        for placed in script.statements:
            form = placed.form
            if isinstance(form, CreateTable) and form.guard is None:
                new.add(form.name)
            elif isinstance(form, AlterTable) and form.table not in new:
                for action in form.actions:
                    yield from look(placed, action)

    return find


def _about(placed: Placed, action: Action, message: str) -> Iterator[Found]:
    yield placed.found(message, action.tokens[0], action.tokens[-1])


def _volatile_default(placed: Placed, action: Action) -> Iterator[Found]:
    column = action.column
    if column is None:
        return
    reason = _evaluated_per_row(column)
    if reason:
        yield from _about(placed, action, f"{reason} for each row, so the table is rewritten under an exclusive lock")


def _evaluated_per_row(column: Column) -> str:
    if column.type in _VOLATILE_TYPES or column.has("generated", "always", "as", "identity"):
        return "a number is drawn"
    if column.has("generated", "by", "default"):
        return "a number is drawn"
    if column.has("generated"):
        return "a generated column is computed"
    called = [call for call in _calls(column.default) if call not in _ONCE_PER_STATEMENT]
    return f"{called[0]}() is evaluated" if called else ""


def _calls(tokens: tuple[Token, ...]) -> Iterator[str]:
    for token, following in pairwise(tokens):
        if token.kind is Kind.WORD and following.text == "(":
            yield token.text.lower()


def _required_column(placed: Placed, action: Action) -> Iterator[Found]:
    column = action.column
    if column is None or not column.has("not", "null") or column.default:
        return
    if not column.has("generated") and column.type not in _VOLATILE_TYPES:
        yield from _about(placed, action, f"column {column.name} is not null and has no default, and rows may be there")


def _not_null_set(placed: Placed, action: Action) -> Iterator[Found]:
    if action.verb == "alter column" and action.words[:3] == ("set", "not", "null"):
        yield from _about(placed, action, f"every row is read for {action.name} under an exclusive lock")


def _not_null_dropped(placed: Placed, action: Action) -> Iterator[Found]:
    if action.verb == "alter column" and action.words[:3] == ("drop", "not", "null"):
        yield from _about(placed, action, f"code that reads {action.name} has never met a null there")


def _type_changed(placed: Placed, action: Action) -> Iterator[Found]:
    if action.verb == "alter column" and (action.words[:1] == ("type",) or action.words[:3] == ("set", "data", "type")):
        yield from _about(placed, action, f"column {action.name} changes its type")


def _column_dropped(placed: Placed, action: Action) -> Iterator[Found]:
    if action.verb == "drop column":
        yield from _about(placed, action, f"code that runs now may still ask for {action.name}")


def _renamed(placed: Placed, action: Action) -> Iterator[Found]:
    if action.verb == "rename" and action.words[:1] != ("constraint",):
        noun = "table" if action.words[:1] == ("to",) else "column"
        yield from _about(placed, action, f"code that runs now asks for the {noun} by its old name")


def _validated_at_once(placed: Placed, action: Action) -> Iterator[Found]:
    text = " ".join(action.words)
    if action.verb == "add constraint" and re.search(r"\bcheck\b|\bforeign key\b", text) and "not valid" not in text:
        yield from _about(placed, action, "every row is checked while the table is locked")
    elif action.column is not None and action.column.has("references"):
        yield from _about(placed, action, "both tables are locked while the reference is made")


def _unique_constraint(placed: Placed, action: Action) -> Iterator[Found]:
    constrains = action.verb == "add constraint" and re.search(r"\bunique\b|\bprimary key\b", " ".join(action.words))
    if constrains and "using index" not in " ".join(action.words):
        yield from _about(placed, action, "its index is built while the table is locked")


def _tables_dropped(script: Script) -> Iterator[Found]:
    for placed in script.statements:
        form = placed.form
        if isinstance(form, Drop) and form.kind in ("table", "database", "schema"):
            yield placed.found(f"{form.kind} {', '.join(form.names)} and what is in it cannot be brought back")


def _truncates(script: Script) -> Iterator[Found]:
    for placed in script.statements:
        form = placed.form
        if isinstance(form, Other) and form.words[:1] == ("truncate",) and "cascade" in form.words:
            yield placed.found("every table that refers to these is emptied, too")


def _blocking_indexes(script: Script) -> Iterator[Found]:
    new: set[str] = set()
    for placed in script.statements:
        form = placed.form
        if isinstance(form, CreateTable) and form.guard is None:
            new.add(form.name)
        elif isinstance(form, CreateIndex) and not form.concurrently and form.table not in new:
            yield placed.found(f"writes to {form.table} wait until the index is built")
        elif isinstance(form, Drop) and form.kind == "index" and not form.concurrently:
            yield placed.found("the table is locked while the index is dropped")


def _timeouts(setting: str) -> Callable[[Script], Iterator[Found]]:
    def find(script: Script) -> Iterator[Found]:
        for placed in script.statements:
            code = words(placed.code)
            if code[:1] == ("set",) and setting in code[:3]:
                return
            if isinstance(placed.form, AlterTable | CreateIndex | Drop):
                yield placed.found(f"{setting} is not set before")
                return

    return find


class _Transactions:
    """Follows the transactions that a script itself begins and ends."""

    def __init__(self) -> None:
        self.begun: Placed | None = None

    def see(self, placed: Placed) -> str:
        """What the statement does to the transaction: `begin`, `nested`, `end` or nothing."""
        code = words(placed.code)
        if code[:1] == ("begin",) or code[:2] == ("start", "transaction"):
            answer = "nested" if self.begun else "begin"
            self.begun = self.begun or placed
            return answer
        if code[:1] in (("commit",), ("end",), ("rollback",), ("abort",)) and "to" not in code:
            answer = "end" if self.begun else "unbegun"
            self.begun = None
            return answer
        return ""


def _concurrently_inside(script: Script) -> Iterator[Found]:
    transactions = _Transactions()
    for placed in script.statements:
        transactions.see(placed)
        if transactions.begun and getattr(placed.form, "concurrently", False):
            yield placed.found("Postgres refuses `concurrently` in a transaction")


def _transactions_nested(script: Script) -> Iterator[Found]:
    transactions = _Transactions()
    for placed in script.statements:
        does = transactions.see(placed)
        if does == "nested":
            yield placed.found("a transaction is open already, so this begins none")
        elif does == "unbegun":
            yield placed.found("this script has begun no transaction, so this ends the caller's")


def _transactions_open(script: Script) -> Iterator[Found]:
    transactions = _Transactions()
    for placed in script.statements:
        transactions.see(placed)
    if transactions.begun is not None:
        yield transactions.begun.found("the script ends without ending this transaction")


def _without_schema(script: Script) -> Iterator[Found]:
    for placed in script.statements:
        form = placed.form
        table = form.table if isinstance(form, AlterTable | CreateIndex) else getattr(form, "name", "")
        if isinstance(form, CreateTable | AlterTable | CreateIndex) and "." not in table:
            yield placed.found(f"which {table} this is depends on the search_path")


_STRICT = "strict"
_GROUP = "migration"

RULES = (
    Rule(
        id="volatile-default",
        group=_GROUP,
        reason="A default that is evaluated for each row rewrites the whole table while nobody can read it.",
        fix="Add the column without a default, set the default, and fill old rows in batches.",
        find=_actions(_volatile_default),
    ),
    Rule(
        id="required-column",
        group=_GROUP,
        reason="To add a column that must not be null fails on a table with rows, and breaks inserts of old code.",
        fix="Give it a constant default, or add it nullable, fill it, and set not null later.",
        find=_actions(_required_column),
    ),
    Rule(
        id="not-null-set",
        group=_GROUP,
        reason="To set not null reads the whole table while nobody can write to it.",
        fix="Add a check (... is not null) not valid, validate it, then set not null, which finds it proven.",
        find=_actions(_not_null_set),
    ),
    Rule(
        id="not-null-dropped",
        group=_GROUP,
        reason="Readers that were written for a column without nulls meet their first one.",
        fix="Make the readers ready in an earlier release.",
        find=_actions(_not_null_dropped),
    ),
    Rule(
        id="type-changed",
        group=_GROUP,
        reason="Most changes of a type rewrite the table under an exclusive lock, and old code reads another type.",
        fix="Add a column of the new type, fill it in batches, and move the readers.",
        find=_actions(_type_changed),
    ),
    Rule(
        id="column-dropped",
        group=_GROUP,
        reason="Processes of the version before still name the column, and its data cannot be brought back.",
        fix="Drop it in a release after the last one that uses it.",
        find=_actions(_column_dropped),
    ),
    Rule(
        id="renamed",
        group=_GROUP,
        reason="Processes of the version before still use the old name.",
        fix="Add the new one beside it, or keep a view of the old name, until nothing uses it.",
        find=_actions(_renamed),
    ),
    Rule(
        id="validated-at-once",
        group=_GROUP,
        reason="A constraint on a table with rows checks them all while writers wait.",
        fix="Add it `not valid`, and `validate constraint` in a later transaction.",
        find=_actions(_validated_at_once),
    ),
    Rule(
        id="unique-constraint",
        group=_GROUP,
        reason="A unique or primary key constraint builds its index while the table is locked.",
        fix="Build the index concurrently, then add the constraint `using index`.",
        find=_actions(_unique_constraint),
    ),
    Rule(
        id="table-dropped",
        group=_GROUP,
        reason="What is dropped is gone, and processes of the version before still use it.",
        fix="Drop it in a release after the last one that uses it.",
        find=_tables_dropped,
    ),
    Rule(
        id="truncate-cascade",
        group=_GROUP,
        reason="With cascade, tables that nobody named are emptied.",
        fix="Name the tables.",
        find=_truncates,
    ),
    Rule(
        id="concurrently-in-transaction",
        group=_GROUP,
        reason="An index cannot be built or dropped concurrently in a transaction.",
        fix="Run the statement alone, outside begin and commit.",
        find=_concurrently_inside,
    ),
    Rule(
        id="transaction-nested",
        group=_GROUP,
        reason="Postgres has no nested transactions: the inner commit ends the outer one.",
        fix="Leave transactions to whoever runs the script, or use savepoints.",
        find=_transactions_nested,
    ),
    Rule(
        id="transaction-open",
        group=_GROUP,
        reason="A transaction that the script does not end is rolled back with the session.",
        fix="End it with commit.",
        find=_transactions_open,
    ),
)

STRICT = (
    Rule(
        id="index-not-concurrent",
        group=_STRICT,
        default=False,
        reason="An index on a table with rows is built while writers wait.",
        fix="Use `concurrently`, outside a transaction.",
        find=_blocking_indexes,
    ),
    Rule(
        id="lock-timeout",
        group=_STRICT,
        default=False,
        reason="A statement that waits for its lock makes everybody behind it wait, too.",
        fix="Set lock_timeout to some seconds first, and try again when it strikes.",
        find=_timeouts("lock_timeout"),
    ),
    Rule(
        id="statement-timeout",
        group=_STRICT,
        default=False,
        reason="A statement that takes long holds its locks for long.",
        fix="Set statement_timeout first.",
        find=_timeouts("statement_timeout"),
    ),
    Rule(
        id="table-schema",
        group=_STRICT,
        default=False,
        reason="Without a schema, the search_path of whoever runs the script decides which table is meant.",
        fix="Write schema.table.",
        find=_without_schema,
    ),
)

"""Ways to change the shipped DDL and its queries, and who notices: a table of one change each.

`caught_by` names the rules that have to find the change; of these, the text rules are tried in test_mutations.py, and
those that a server is asked about where such checks are tried. It is empty for a change that leaves the meaning as it
is, which no rule of either kind may find.
"""

from __future__ import annotations

from dataclasses import dataclass

from xjobs.ddl import split_statements
from xjobs.sql import SQL_JOBS_TABLE, statements

SCHEMA = "SQL_JOBS_TABLE"


@dataclass(frozen=True)
class Mutation:
    """A change of a shipped text: the first `old` in the schema, or in the statement `target`, becomes `new`."""

    name: str
    old: str
    new: str
    caught_by: tuple[str, ...] = ()
    target: str = SCHEMA

    def apply(self) -> str:
        """The whole text, changed."""
        text = SQL_JOBS_TABLE if self.target == SCHEMA else str(statements()[self.target])
        assert self.old in text, self.name
        assert self.new != self.old, self.name
        return text.replace(self.old, self.new, 1)

    def __str__(self) -> str:
        return self.name


COUNTED = "('ready', 'delayed', 'running', 'suspended', 'failed', 'dead')"
DEPTH = f"on x_jobs (queue, state, run_at) where state in {COUNTED}"
LIVE = "('ready', 'delayed', 'running', 'suspended');"
CLAIM = "x_jobs_claim_idx on x_jobs (queue, run_at) where state in ('ready', 'delayed', 'suspended')"
PAUSES = "create table if not exists x_job_pauses ("
LAST = f"{split_statements(SQL_JOBS_TABLE)[-1].text};"

HARMFUL = (
    # --- the form of the text ---
    Mutation("semicolon in a comment", "One row per job. The", "One row per job; the", ("comment-semicolon",)),
    Mutation("apostrophe in a comment", "For retention: published", "The relay's: published", ("comment-apostrophe",)),
    Mutation("comment at the end", LAST, f"{LAST}\n-- The end.", ("comment-only-chunk",)),
    Mutation(
        "comment for a statement",
        "create index if not exists x_jobs_run_idx",
        "/* x */; create index if not exists x_jobs_run_idx",
        ("comment-only-chunk",),
    ),
    Mutation(
        "dollar quotes",
        "queue text not null default 'default'",
        "queue text not null default $$default$$",
        ("dollar-quote",),
    ),
    Mutation(
        "semicolon in a string",
        "status text not null default 'running'",
        "status text not null default 'run;ning'",
        ("statement-cut", "shipped-table-edited"),
    ),
    Mutation(
        "escaped quote",
        "status text not null default 'running'",
        "status text not null default E'run\\'ning'",
        ("uneven-quotes", "shipped-table-edited"),
    ),
    Mutation(
        "statement of another form",
        PAUSES,
        f"insert into x_job_pauses values ('queue', 'a');\n{PAUSES}",
        ("statement-form", "not-repeatable"),
    ),
    Mutation("a transaction of its own", PAUSES, f"begin;\n{PAUSES}", ("transaction-open", "statement-form")),
    Mutation(
        "a foreign key",
        "x_job_steps ( run_id uuid not null,",
        "x_job_steps ( run_id uuid not null references x_jobs,",
        ("enforced-by-database", "shipped-table-edited"),
    ),
    Mutation(
        "a check",
        "paused_at timestamptz not null default now(),",
        "paused_at timestamptz not null default now(), check (kind in ('queue', 'task')),",
        ("enforced-by-database", "shipped-table-edited"),
    ),
    # --- applied again ---
    Mutation(
        "table without guard",
        "create table if not exists x_outbox",
        "create table x_outbox",
        ("not-repeatable", "reapply-changes"),
    ),
    Mutation(
        "index without guard",
        "create index if not exists x_jobs_run_idx",
        "create index x_jobs_run_idx",
        ("not-repeatable", "reapply-changes"),
    ),
    Mutation(
        "column without guard",
        "add column if not exists progress",
        "add column progress",
        ("not-repeatable", "reapply-changes"),
    ),
    Mutation(
        "drop without guard",
        "drop index if exists x_jobs_name_idem",
        "drop index x_jobs_name_idem",
        ("not-repeatable",),
    ),
    Mutation(
        "drop of an index that is made",
        "drop index if exists x_jobs_name_idempotency_live_idx",
        "drop index if exists x_jobs_run_idx",
        ("created-and-dropped",),
    ),
    Mutation(
        "index under the dropped name",
        "exists x_jobs_name_tenant_idempotency_live_idx",
        "exists x_jobs_idempotency_live_idx",
        ("created-and-dropped", "superseded-index"),
    ),
    # --- what has shipped ---
    Mutation(
        "superseded index not dropped",
        "drop index if exists x_jobs_idempotency_live_idx;\n",
        "",
        ("superseded-index", "upgrade-differs"),
    ),
    Mutation(
        "index renamed", "x_job_leases_expiry_idx", "x_job_leases_expires_idx", ("superseded-index", "upgrade-differs")
    ),
    Mutation(
        "column added in the create text",
        "published_at timestamptz );",
        "published_at timestamptz, note text );",
        ("shipped-table-edited", "upgrade-differs"),
    ),
    Mutation("column left out", ", last_cursor text", "", ("shipped-table-edited", "upgrade-differs")),
    Mutation(
        "default changed",
        "max_attempts int not null default 3",
        "max_attempts int not null default 5",
        ("shipped-table-edited", "upgrade-differs"),
    ),
    Mutation(
        "type changed", "rows_processed bigint", "rows_processed int", ("shipped-table-edited", "upgrade-differs")
    ),
    Mutation(
        "not null left out",
        "run_id uuid not null, attempt int",
        "run_id uuid, attempt int",
        ("shipped-table-edited", "upgrade-differs"),
    ),
    Mutation("key left out", ", primary key (kind, name)", "", ("shipped-table-edited", "upgrade-differs")),
    Mutation(
        "default of an added column changed",
        "claims int not null default 0",
        "claims int not null default 1",
        ("shipped-column-edited", "upgrade-differs"),
    ),
    Mutation(
        "added column without default",
        "claims int not null default 0",
        "claims int not null",
        ("required-column", "shipped-column-edited"),
    ),
    Mutation(
        "column lost",
        "alter table x_jobs add column if not exists progress jsonb;",
        "",
        ("shipped-object-lost", "query-fails"),
    ),
    Mutation(
        "table lost",
        "create table if not exists x_job_events (",
        "create table if not exists x_job_happenings (",
        ("shipped-object-lost",),
    ),
    Mutation(
        "column dropped",
        PAUSES,
        f"alter table x_jobs drop column if exists progress;\n{PAUSES}",
        ("column-dropped", "statement-form", "query-fails"),
    ),
    # --- types and names ---
    Mutation(
        "instant without zone",
        "visible_at timestamptz",
        "visible_at timestamp",
        ("timestamp-without-zone", "shipped-table-edited"),
    ),
    Mutation(
        "key of 32 bits",
        "x_job_events ( id uuid primary key",
        "x_job_events ( id int primary key",
        ("narrow-key", "shipped-table-edited"),
    ),
    Mutation(
        "text with a limit",
        "add column if not exists traceparent text",
        "add column if not exists traceparent varchar(55)",
        ("varchar-limit",),
    ),
    Mutation("padded text", "app_version text", "app_version char(8)", ("char-type", "shipped-table-edited")),
    Mutation(
        "long name",
        "x_jobs_order_idx",
        "x_jobs_in_the_order_of_their_instants_and_of_their_ids_in_each_queue_idx",
        ("long-name",),
    ),
    # --- the clock ---
    Mutation(
        "keyword for the time",
        "updated_at timestamptz not null default now() );",
        "updated_at timestamptz not null default current_timestamp );",
        ("clock-keyword", "shipped-table-edited"),
    ),
    Mutation(
        "real clock by name",
        "staged_at timestamptz not null default now()",
        "staged_at timestamptz not null default pg_catalog.now()",
        ("clock-function", "default-clock"),
    ),
    Mutation(
        "literal for the time",
        "staged_at timestamptz not null default now()",
        "staged_at timestamptz not null default 'now'",
        ("clock-literal",),
    ),
    Mutation(
        "another clock",
        "staged_at timestamptz not null default now()",
        "staged_at timestamptz not null default clock_timestamp()",
        ("shipped-table-edited", "upgrade-differs"),
    ),
    # --- indexes and what they are for ---
    Mutation(
        "depth: a state less", DEPTH, DEPTH.replace(", 'suspended'", ""), ("shipped-index-edited", "index-unused")
    ),
    Mutation(
        "depth: a state more",
        DEPTH,
        DEPTH.replace("'dead'", "'dead', 'done'"),
        ("shipped-index-edited", "index-unused"),
    ),
    Mutation(
        "depth: all but one",
        DEPTH,
        DEPTH.replace(f"in {COUNTED}", "<> 'done'"),
        ("shipped-index-edited", "index-unused"),
    ),
    Mutation("depth: a column less", DEPTH, DEPTH.replace(", run_at", ""), ("shipped-index-edited", "index-unused")),
    Mutation(
        "claim: a state less", CLAIM, CLAIM.replace(", 'suspended'", ""), ("shipped-index-edited", "upgrade-differs")
    ),
    Mutation(
        "claim: a state that is none",
        CLAIM,
        CLAIM.replace("'suspended'", "'sleeping'"),
        ("unknown-state", "shipped-index-edited"),
    ),
    Mutation("order: keys swapped", "(queue, run_at, id)", "(queue, id, run_at)", ("index-unused",)),
    Mutation(
        "order: a state less",
        "(queue, run_at, id) where state in ('ready', 'delayed', 'suspended')",
        "(queue, run_at, id) where state in ('ready', 'delayed')",
        ("index-unused",),
    ),
    Mutation("lease: another state", "where state = 'running';", "where state = 'ready';", ("index-unused",)),
    Mutation("live: not unique", "create unique index", "create index", ("shipped-index-edited", "query-fails")),
    Mutation("live: nulls apart", "(coalesce(tenant_id, ''))", "tenant_id", ("shipped-index-edited", "query-fails")),
    Mutation("live: a state less", LIVE, LIVE.replace(", 'suspended'", ""), ("shipped-index-edited", "query-fails")),
    Mutation(
        "listing: one direction",
        "(created_at desc, id desc)",
        "(created_at desc, id)",
        ("shipped-index-edited", "index-unused"),
    ),
    # --- suppression ---
    Mutation(
        "no reason",
        " because each row needs a run of its own and an outbox is short",
        "",
        ("ignore-without-reason", "volatile-default"),
    ),
    Mutation(
        "no such rule", "ignore volatile-default", "ignore volatile-defaults", ("ignore-of-no-rule", "volatile-default")
    ),
    # --- queries ---
    Mutation("stats: a state less", ", 'dead')\n group", ")\n group", ("index-unused",), "SQL_STATS"),
    Mutation("stats: a state more", "'dead')\n group", "'dead', 'done')\n group", ("index-unused",), "SQL_STATS"),
    Mutation("stats: all but one", f"state in {COUNTED}", "state <> 'done'", ("index-unused",), "SQL_STATS"),
    Mutation(
        "stats: a state that is none",
        "where state = 'suspended'",
        "where state = 'asleep'",
        ("unknown-state",),
        "SQL_STATS",
    ),
    Mutation("stats: real time", "run_at <= now()", "run_at <= current_timestamp", ("clock-keyword",), "SQL_STATS"),
    Mutation(
        "claim: whole rows",
        "(table claimed union all table buried)",
        "(select * from claimed union all table buried)",
        ("select-star",),
        "SQL_CLAIM",
    ),
    Mutation("claim: no such column", "w.exhausted", "w.expired", ("query-fails",), "SQL_CLAIM"),
)

HARMLESS = (
    Mutation("comment reworded", "Rows that wait for their time, by queue.", "By queue, the rows that wait."),
    Mutation("comment taken out", "-- For retention: published rows, oldest first.\n", ""),
    Mutation("block comment", "-- Rows that wait for their time, by queue.", "/* Rows that wait /* for long */ */"),
    Mutation("comment within", PAUSES, "create table if not exists x_job_pauses ( -- One row per pause\n"),
    Mutation(
        "keywords in capitals", "create table if not exists x_job_leases", "CREATE TABLE IF NOT EXISTS X_JOB_LEASES"
    ),
    Mutation("line breaks", "name text not null, payload jsonb", "name text not null,\n\n  payload\tjsonb"),
    Mutation("no space where none is needed", "( kind text not null, name", "(kind text not null,name"),
    Mutation("no semicolon at the end", LAST, LAST.removesuffix(";")),
    Mutation("empty statement", LAST, f"{LAST};"),
    Mutation("quoted name", "create table if not exists x_job_leases", 'create table if not exists "x_job_leases"'),
    Mutation("type by its long name", "visible_at timestamptz", "visible_at timestamp with time zone"),
    Mutation("type by its other name", "attempt int not null", "attempt integer not null"),
    Mutation(
        "access method spelled out",
        "x_jobs_run_idx on x_jobs (run_id)",
        "x_jobs_run_idx on x_jobs using btree (run_id)",
    ),
    Mutation(
        "direction spelled out",
        "(lease_key, slot) );\ncreate index if not exists x_job_leases_expiry_idx on x_job_leases (expires_at)",
        "(lease_key, slot) );\ncreate index if not exists x_job_leases_expiry_idx on x_job_leases (expires_at asc)",
    ),
    Mutation(
        "depth: states reordered",
        DEPTH,
        DEPTH.replace(COUNTED, "('dead', 'failed', 'suspended', 'ready', 'running', 'delayed')"),
    ),
    Mutation("live: fuller pages", "(fillfactor = 50) where", "(fillfactor = 90, deduplicate_items = off) where"),
    Mutation("live: no word on pages", "with (fillfactor = 50) where", "where"),
    Mutation("order: emptier pages", "x_jobs (queue, run_at, id)", "x_jobs (queue, run_at, id) with (fillfactor = 70)"),
    Mutation("live: states reordered", LIVE, "('suspended', 'running', 'delayed', 'ready');"),
    Mutation("lease: a list of one", "where state = 'running';", "where state in ('running');"),
    Mutation(
        "stats: states reordered",
        f"state in {COUNTED}",
        "state in ('dead', 'failed', 'suspended', 'ready', 'running', 'delayed')",
        target="SQL_STATS",
    ),
    Mutation("stats: a table name", "from x_jobs\n", "from x_jobs j\n", target="SQL_STATS"),
    Mutation("stats: comment", "select queue,", "select queue, -- each once\n", target="SQL_STATS"),
)

MUTATIONS = HARMFUL + HARMLESS

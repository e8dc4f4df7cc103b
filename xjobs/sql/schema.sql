-- The whole schema of the queue, in one file: the one install point.
--
-- Rules of this file, each checked by a test: splitting it on the statement separator gives only
-- whole statements, no comment holds that separator or a single quote, every statement may be
-- applied again, and a table that has shipped grows by alter statements only.

-- One row per job. The row is the job for its whole life: enqueue writes it, the claim and the
-- settles move its state, retention deletes it.
create table if not exists x_jobs ( id uuid primary key, name text not null, queue text not null default 'default', input jsonb not null, idempotency_key text not null, run_id uuid not null, attempt int not null default 0, max_attempts int not null default 3, state text not null default 'ready', run_at timestamptz not null default now(), visible_at timestamptz, claimed_by text, last_error text, tenant_id text, created_at timestamptz not null default now(), updated_at timestamptz not null default now() );

-- Where the enqueue came from: the W3C trace of the request and the actor who asked. For reading
-- only, no permission is ever derived from them.
alter table x_jobs add column if not exists traceparent text;
alter table x_jobs add column if not exists enqueued_by text;

-- Duplicate protection: at most one live row per job name, tenant and idempotency key. A finished
-- row does not count, so the same work may be asked for again later. Name and tenant are part of
-- the key, since two jobs or two tenants may well derive the same text. The coalesce puts all
-- rows without a tenant into one namespace, a bare null would never equal another null. The two
-- older indexes had narrower keys and are dropped, otherwise they would go on refusing what this
-- one allows. A claim adds an entry next to the one that is there, so pages are left half empty: full
-- ones would all be split by the first claims, and the index would end up as large.
drop index if exists x_jobs_idempotency_live_idx;
drop index if exists x_jobs_name_idempotency_live_idx;
create unique index if not exists x_jobs_name_tenant_idempotency_live_idx on x_jobs (name, (coalesce(tenant_id, '')), idempotency_key) with (fillfactor = 50) where state in ('ready', 'delayed', 'running', 'suspended');

-- Rows that wait for their time, by queue.
-- xjobs: ignore index-covered because databases of the original schema have it, and keep it
create index if not exists x_jobs_claim_idx on x_jobs (queue, run_at) where state in ('ready', 'delayed', 'suspended');

-- What durable steps of a run have recorded. Hangs off the run and not off the job, so that a
-- retry, a suspension and a requeue find the steps again.
create table if not exists x_job_steps ( run_id uuid not null, name text not null, status text not null, output jsonb, started_at timestamptz not null default now(), completed_at timestamptz, wake_at timestamptz, event text, correlation_key text, attempts int not null default 1, error text, primary key (run_id, name) );

-- The ledger of backfills, one row per run: a forced second pass keeps the row of the first.
create table if not exists x_backfills ( run_id uuid primary key, name text not null, checksum text not null, status text not null default 'running', app_version text not null, rows_processed bigint not null default 0, last_cursor text, started_at timestamptz not null default now(), completed_at timestamptz );
create index if not exists x_backfills_name_idx on x_backfills (name, started_at desc);

-- The transactional outbox. The caller writes the row on its own connection, so it commits or
-- rolls back together with the business rows, and the relay publishes what was committed.
create table if not exists x_outbox ( id uuid primary key, job text not null, queue text not null default 'default', input jsonb not null, idempotency_key text not null, max_attempts int not null default 3, run_at timestamptz not null default now(), staged_at timestamptz not null default now(), tenant_id text, traceparent text, enqueued_by text, published_at timestamptz );
create index if not exists x_outbox_unpublished_idx on x_outbox (staged_at) where published_at is null;

-- For retention: published rows, oldest first.
create index if not exists x_outbox_published_idx on x_outbox (published_at) where published_at is not null;

-- The lease of the relay on a row. Written by the statement that picks the row, because a row lock
-- alone ends with that statement. An old lease returns the rows of a relay that died.
alter table x_outbox add column if not exists claimed_at timestamptz;
alter table x_outbox add column if not exists claimed_by text;

-- The run of the job to come, chosen when the row is staged, so that the caller can be told it.
-- xjobs: ignore volatile-default because each row needs a run of its own and an outbox is short
alter table x_outbox add column if not exists run_id uuid not null default gen_random_uuid();

-- The watermark of each schedule: everything up to it has been dealt with. Kept here and not in a
-- process, so that occurrences during a restart are noticed.
create table if not exists x_scheduler_state ( task_name text primary key, last_fired_at timestamptz not null, updated_at timestamptz not null default now() );

-- The last occurrence that really queued jobs, and when. The watermark also moves when nothing is
-- queued, so it cannot answer this.
alter table x_scheduler_state add column if not exists fired_occurrence_at timestamptz;
alter table x_scheduler_state add column if not exists fired_at timestamptz;

-- Leadership as a row with an end and not as an advisory lock: a lock belongs to a session, and a
-- pool hands sessions round.
create table if not exists x_scheduler_leader ( lock_key text primary key, holder text not null, expires_at timestamptz not null );

-- Slots of fleet-wide concurrency limits, one row per slot that is held. The primary key decides
-- between two workers that reach for one slot.
create table if not exists x_job_leases ( lease_key text not null, slot int not null, holder text not null, expires_at timestamptz not null, primary key (lease_key, slot) );
create index if not exists x_job_leases_expiry_idx on x_job_leases (expires_at);

-- Events that runs wait for. Stored, because publisher and waiter are different processes.
create table if not exists x_job_events ( id uuid primary key, name text not null, payload jsonb not null, correlation_key text, published_at timestamptz not null default now(), expires_at timestamptz not null );
create index if not exists x_job_events_lookup_idx on x_job_events (name, published_at);

-- What the body last reported about its progress, as one value that is read with the row.
alter table x_jobs add column if not exists progress jsonb;

-- The stack of the exception that last_error names, shortened before it is written.
alter table x_jobs add column if not exists last_error_stack text;

-- The claim ordinal: how often the row has been claimed, never reset. Every settle is fenced on it,
-- since a worker that claims its own lapsed job again has the same name as before.
alter table x_jobs add column if not exists claims int not null default 0;

-- The order of listings, newest first.
create index if not exists x_jobs_created_idx on x_jobs (created_at desc, id desc);

-- For retention: finished rows, oldest first.
create index if not exists x_jobs_finished_idx on x_jobs (updated_at) where state in ('done', 'failed', 'dead', 'cancelled');

-- For the queue depth, which every worker reads at intervals. The predicate lists the very states
-- that SQL_STATS filters on, so that the planner can prove that the index serves, and the columns
-- are all that it reads.
create index if not exists x_jobs_depth_idx on x_jobs (queue, state, run_at) where state in ('ready', 'delayed', 'running', 'suspended', 'failed', 'dead');

-- Whether another row of a run stands, asked before the steps of the run are deleted. Half empty
-- pages, as above: a claim and a settle add an entry each.
create index if not exists x_jobs_run_idx on x_jobs (run_id) with (fillfactor = 50);

-- Paused queues and schedules. One row per pause and not a mark on every job, so that a pause
-- takes effect at the next claim however many jobs wait.
create table if not exists x_job_pauses ( kind text not null, name text not null, paused_at timestamptz not null default now(), primary key (kind, name) );

-- The workers that live, each renewing its row. A killed one is forgotten when its row lapses.
create table if not exists x_job_workers ( id text primary key, host text not null, queues jsonb not null, concurrency int not null, in_flight jsonb not null, started_at timestamptz not null, heartbeat_at timestamptz not null default now(), expires_at timestamptz not null );

-- When the worker began to shut down, null while it serves. Autoscaling leaves out the jobs that
-- such a worker still holds.
alter table x_job_workers add column if not exists draining_at timestamptz;

-- History per job name in time buckets. The settle that moves a row adds to its minute in the same
-- statement, and older buckets are folded into wider ones, so a name has a bounded number of rows.
create table if not exists x_job_counters ( job text not null, bucket_ms int not null, bucket_start timestamptz not null, done bigint not null default 0, retried bigint not null default 0, failed bigint not null default 0, dead bigint not null default 0, duration_ms bigint not null default 0, primary key (job, bucket_ms, bucket_start) );
create index if not exists x_job_counters_age_idx on x_job_counters (bucket_ms, bucket_start);

-- The claim order with its tiebreak: equal instants run in the order of their ids. Not in the
-- original schema, see docs/decisions for what it was measured to save.
create index if not exists x_jobs_order_idx on x_jobs (queue, run_at, id) where state in ('ready', 'delayed', 'suspended');

-- The leases of each queue by their end, so that a claim finds the lapsed ones without reading the
-- live ones. Not in the original schema either.
create index if not exists x_jobs_lease_idx on x_jobs (queue, visible_at, id) where state = 'running';

-- Steps that wait for an event, by its name, so that a publisher learns at once whether anybody waits
-- and workers find the runs to wake. Not in the original schema.
create index if not exists x_job_steps_waiting_idx on x_job_steps (event) where status = 'waiting';

-- Events by what a wait asks for, so that a look costs the same however many events have its name.
-- Not in the original schema.
create index if not exists x_job_events_match_idx on x_job_events (name, correlation_key, published_at);

create table if not exists x_jobs (
  id              uuid primary key,
  name            text        not null,
  queue           text        not null default 'default',
  input           jsonb       not null,
  idempotency_key text        not null,
  run_id          uuid        not null,
  attempt         int         not null default 0,
  max_attempts    int         not null default 3,
  state           text        not null default 'ready',
  run_at          timestamptz not null default now(),
  visible_at      timestamptz,
  claimed_by      text,
  last_error      text,
  tenant_id       text,
  created_at      timestamptz not null default now(),
  updated_at      timestamptz not null default now()
);

create unique index if not exists x_jobs_idempotency_live_idx
  on x_jobs (idempotency_key)
  where state in ('ready', 'delayed', 'running', 'suspended');

create index if not exists x_jobs_claim_idx
  on x_jobs (queue, run_at)
  where state in ('ready', 'delayed', 'suspended');

create table if not exists x_job_steps (
  run_id       uuid        not null,
  name         text        not null,
  status       text        not null,
  output       jsonb,
  started_at   timestamptz not null default now(),
  completed_at timestamptz,
  wake_at      timestamptz,
  event        text,
  correlation_key text,
  attempts     int         not null default 1,
  error        text,
  primary key (run_id, name)
);

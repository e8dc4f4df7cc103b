-- name: SQL_ENQUEUE_ONE (id, name, queue, input, idempotency_key, run_id, max_attempts, run_at, delay, tenant_id, traceparent, enqueued_by)
-- One job with an id of its own is inserted, or nothing when a live job holds its key; the id when it was.
insert into x_jobs as j (id, name, queue, input, idempotency_key, run_id, max_attempts, state, run_at, tenant_id,
                         traceparent, enqueued_by)
values ($1, $2, $3, $4::jsonb, $5, $6, $7,
        case when coalesce($8::timestamptz, now() + $9::interval) > now() then 'delayed' else 'ready' end,
        coalesce($8::timestamptz, now() + $9::interval, now()), $10, $11, $12)
on conflict (name, (coalesce(tenant_id, '')), idempotency_key)
  where state in ('ready', 'delayed', 'running', 'suspended')
  do nothing
returning j.id

-- name: SQL_ENQUEUE (ids, named, names, queues, inputs, idempotency_keys, run_ids, max_attempts, run_ats, delays, tenant_ids, traceparents, enqueued_bys)
-- Each job is inserted once or answered by the row that holds its id (when the caller chose it) or its live key; no ids: that holder is not visible yet, send it again.
with given as (
  select g.position, g.id, g.name, g.queue, g.input, g.idempotency_key, g.run_id, g.max_attempts, g.tenant_id,
         g.traceparent, g.enqueued_by, coalesce(g.run_at, now() + g.delay, now()) as due_at,
         known.id as known_id, known.run_id as known_run_id
    from unnest($1::uuid[], $2::bool[], $3::text[], $4::text[], $5::text[], $6::text[], $7::uuid[], $8::int[],
                $9::timestamptz[], $10::interval[], $11::text[], $12::text[], $13::text[])
         with ordinality as g(id, named, name, queue, input, idempotency_key, run_id, max_attempts,
                              run_at, delay, tenant_id, traceparent, enqueued_by, position)
    left join lateral (
      select k.id, k.run_id from x_jobs k where g.named and k.id = g.id limit 1
    ) known on true
), made as (
  insert into x_jobs as j (id, name, queue, input, idempotency_key, run_id, max_attempts, state, run_at, tenant_id,
                           traceparent, enqueued_by)
  select g.id, g.name, g.queue, g.input::jsonb, g.idempotency_key, g.run_id, g.max_attempts,
         case when g.due_at > now() then 'delayed' else 'ready' end, g.due_at, g.tenant_id, g.traceparent, g.enqueued_by
    from given g
   where g.known_id is null -- in the order of the arrays, as unnest answers them: the first of two equal keys wins
  on conflict (name, (coalesce(tenant_id, '')), idempotency_key)
    where state in ('ready', 'delayed', 'running', 'suspended')
    do nothing
  returning j.id, j.run_id, j.name, j.tenant_id, j.idempotency_key
)
select coalesce(made.id, g.known_id, sibling.id, holder.id) as id,
       coalesce(made.run_id, g.known_run_id, sibling.run_id, holder.run_id) as run_id,
       made.id is null as deduped
  from given g
  left join made on made.id = g.id and g.known_id is null
  left join made sibling
    on made.id is null and sibling.name = g.name and sibling.idempotency_key = g.idempotency_key
   and coalesce(sibling.tenant_id, '') = coalesce(g.tenant_id, '')
  left join lateral (
    select k.id, k.run_id
      from x_jobs k
     where made.id is null and g.known_id is null
       and k.name = g.name and coalesce(k.tenant_id, '') = coalesce(g.tenant_id, '')
       and k.idempotency_key = g.idempotency_key
       and k.state in ('ready', 'delayed', 'running', 'suspended')
     limit 1
  ) holder on true
 order by g.position

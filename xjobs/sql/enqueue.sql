-- An enqueue wakes the workers of its queue (channel x_jobs_wake, the queue as payload) at its commit: when a new job is
-- due within a second, and no other such job of the queue has been created in the same quarter of a second. Commits
-- that notify wait for each other, so there are at most four a second for each queue. The quarter is that of the
-- statement: what was announced when a long transaction began has been claimed when it commits.

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
returning case
            when j.run_at <= now() + interval '1 second'
             and (select k.id -- of the table as it was before this statement
                    from x_jobs k
                   where k.queue = j.queue and k.run_at <= k.created_at + interval '1 second'
                     and k.created_at >= date_bin('250 milliseconds', statement_timestamp(), 'epoch')
                     and k.created_at < date_bin('250 milliseconds', statement_timestamp(), 'epoch') + interval '250 milliseconds'
                   limit 1) is null
            then (select j.id from pg_notify('x_jobs_wake', j.queue))
            else j.id
          end as id

-- name: SQL_ENQUEUE (ids, named, names, queues, inputs, idempotency_keys, run_ids, max_attempts, run_ats, delays, tenant_ids, traceparents, enqueued_bys)
-- Each job is inserted once; answers the positions (from 1) of those that were not, with the row that holds their id (when the caller chose it) or their live key; no ids: a job of the same arrays holds the key, or one that is not visible yet.
with made as (
  insert into x_jobs as j (id, name, queue, input, idempotency_key, run_id, max_attempts, state, run_at, tenant_id,
                           traceparent, enqueued_by)
  select g.id, g.name, g.queue, g.input::jsonb, g.idempotency_key, g.run_id, g.max_attempts,
         case when coalesce(g.run_at, now() + g.delay) > now() then 'delayed' else 'ready' end,
         coalesce(g.run_at, now() + g.delay, now()), g.tenant_id, g.traceparent, g.enqueued_by
    from unnest($1::uuid[], $2::bool[], $3::text[], $4::text[], $5::text[], $6::text[], $7::uuid[], $8::int[],
                $9::timestamptz[], $10::interval[], $11::text[], $12::text[], $13::text[])
         as g(id, named, name, queue, input, idempotency_key, run_id, max_attempts,
              run_at, delay, tenant_id, traceparent, enqueued_by)
   -- in the order of the arrays, as unnest answers them: the first of two equal keys wins
   where not (g.named and (select k.id from x_jobs k where k.id = g.id limit 1) is not null)
  on conflict (name, (coalesce(tenant_id, '')), idempotency_key)
    where state in ('ready', 'delayed', 'running', 'suspended')
    do nothing
  returning j.id, j.queue, j.run_at
), told as (
  select count(*) as made,
         case
           when bool_or(m.run_at <= now() + interval '1 second')
            and (select k.id
                   from x_jobs k
                  where k.queue = m.queue and k.run_at <= k.created_at + interval '1 second'
                    and k.created_at >= date_bin('250 milliseconds', statement_timestamp(), 'epoch')
                    and k.created_at < date_bin('250 milliseconds', statement_timestamp(), 'epoch') + interval '250 milliseconds'
                  limit 1) is null
           then pg_notify('x_jobs_wake', m.queue)
         end as woken
    from made m
   group by m.queue
)
select g.position::int, coalesce(known.id, holder.id) as id, coalesce(known.run_id, holder.run_id) as run_id
  from unnest($1::uuid[], $2::bool[], $3::text[], $6::text[], $11::text[]) with ordinality
       as g(id, named, name, idempotency_key, tenant_id, position)
  left join lateral (
    select k.id, k.run_id from x_jobs k where g.named and k.id = g.id limit 1
  ) known on true
  left join lateral (
    select k.id, k.run_id
      from x_jobs k
     where k.name = g.name and coalesce(k.tenant_id, '') = coalesce(g.tenant_id, '')
       and k.idempotency_key = g.idempotency_key and k.state in ('ready', 'delayed', 'running', 'suspended')
     limit 1
  ) holder on true
 where (select coalesce(sum(t.made), 0) from told t) < cardinality($1) -- asked first: nearly always all are inserted
   and g.id not in (select m.id from made m)
 order by g.position

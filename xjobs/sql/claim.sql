-- A claim goes by the places of the rows that it has locked, which costs less than their ids. A row that is written anew in
-- the moment between the snapshot and the lock is at a place that the snapshot does not see: the next claim takes it.

-- name: SQL_CLAIM (queues, limit, lease, worker_id, drop_exhausted)
-- Due rows, and the leases that lapsed first, of unpaused queues in (run_at, id) order, each leased to one worker; a lease that lapsed on the final attempt is buried instead and answered as dead or failed.
with served as (
  select q.queue
    from unnest($1::text[]) as q(queue)
   where not exists (select from x_job_pauses p where p.kind = 'queue' and p.name = q.queue)
), found as (
  select d.place, d.exhausted
    from served s
   cross join lateral (
     select w.place, w.id, w.run_at, w.exhausted
       from (select j.ctid as place, j.id, j.run_at, false as exhausted
               from x_jobs j
              where j.queue = s.queue and j.state in ('ready', 'delayed', 'suspended') and j.run_at <= now()
              order by j.run_at, j.id
              limit $2::int
                for update skip locked) w
      union all
     select l.place, l.id, l.run_at, l.exhausted
       from (select j.ctid as place, j.id, j.run_at, j.attempt >= j.max_attempts as exhausted
               from x_jobs j
              where j.queue = s.queue and j.state = 'running' and j.visible_at <= now()
              order by j.visible_at, j.id
              limit $2::int
                for update skip locked) l
   ) d
   order by d.run_at, d.id
   limit $2::int
), buried as (
  update x_jobs j
     set state = case when j.name = any($5::text[]) then 'failed' else 'dead' end,
         visible_at = null, claimed_by = null, last_error_stack = null, updated_at = now(),
         last_error = 'LeaseLapsed: the lease lapsed during the final attempt, its worker is gone or stalled'
   where j.ctid = any(array(select f.place from found f where f.exhausted))
  returning j.id, j.name, j.queue, j.state, j.input, j.idempotency_key, j.run_id, j.attempt, j.max_attempts, j.claims,
            j.run_at, j.visible_at, j.tenant_id, j.created_at, j.traceparent, j.enqueued_by, j.last_error
), counted as (
  insert into x_job_counters as c (job, bucket_ms, bucket_start, failed, dead)
  select b.name, 60000, date_trunc('minute', now()),
         count(*) filter (where b.state = 'failed'), count(*) filter (where b.state = 'dead')
    from buried b
   group by b.name
   order by b.name
  on conflict (job, bucket_ms, bucket_start) do update
     set failed = c.failed + excluded.failed, dead = c.dead + excluded.dead
), claimed as (
  update x_jobs j
     set state = 'running', attempt = j.attempt + 1, claims = j.claims + 1, claimed_by = $4,
         visible_at = now() + $3::interval, updated_at = now()
   where j.ctid = any(array(select f.place from found f where not f.exhausted))
  returning j.id, j.name, j.queue, j.state, j.input, j.idempotency_key, j.run_id, j.attempt, j.max_attempts, j.claims,
            j.run_at, j.visible_at, j.tenant_id, j.created_at, j.traceparent, j.enqueued_by, j.last_error
)
select a.id, a.name, a.queue, a.state, a.input, a.idempotency_key, a.run_id, a.attempt, a.max_attempts, a.claims,
       a.run_at, a.visible_at, a.tenant_id, a.created_at, a.traceparent, a.enqueued_by, a.last_error
  from (table claimed union all table buried) a
 order by a.run_at, a.id

-- name: SQL_GIVE_BACK (worker_id, queues, ids, claims)
-- Running rows of a worker that are not among the claims it knows of, because the answer to a claim was lost, are ready again with their attempt given back; answers how many, in one row.
with known as (
  select g.id, g.claims from unnest($3::uuid[], $4::int[]) as g(id, claims)
), stray as (
  select j.id
    from x_jobs j
   where j.state = 'running' and j.queue = any($2::text[]) and j.claimed_by = $1
     and not exists (select from known k where k.id = j.id and k.claims = j.claims)
   order by j.id -- the order in which rows are locked
     for update skip locked
), moved as (
  update x_jobs j
     set state = 'ready', attempt = greatest(j.attempt - 1, 0), visible_at = null, claimed_by = null, updated_at = now()
   where j.id = any(array(select s.id from stray s))
  returning j.id
)
select count(*)::int from moved

-- Settling by batches. Rows are looked up by their ids, one probe each: "is true" keeps the planner from an index over
-- running rows, which it would otherwise take for all but empty when statistics were taken while nothing ran. They are
-- written by their ids and not by their places: where the lock waited for a renewal, the row has moved to a place that
-- the snapshot of this statement does not see.

-- name: SQL_ACK (ids, worker_id, claims, durations_ms, counted)
-- Moves the claims that still stand to done and adds them to the minute of their job, in one step; answers the ids that moved.
with given as (
  select g.id, g.claims, g.duration_ms
    from unnest($1::uuid[], $3::int[], $4::bigint[]) as g(id, claims, duration_ms)
   order by g.id -- the order in which rows are locked
), held as (
  select k.id, k.name, g.duration_ms
    from given g
   cross join lateral (
     select j.id, j.name
       from x_jobs j
      where j.id = g.id and (j.state = 'running') is true and j.claimed_by = $2 and j.claims = g.claims
        for update
   ) k
), moved as (
  update x_jobs j
     set state = 'done', visible_at = null, claimed_by = null, updated_at = now()
   where j.id = any(array(select h.id from held h))
  returning j.id
), counted as (
  insert into x_job_counters as c (job, bucket_ms, bucket_start, done, duration_ms)
  select h.name, 60000, date_trunc('minute', now()), count(*), sum(h.duration_ms)
    from held h
   where $5::bool
   group by h.name
   order by h.name
  on conflict (job, bucket_ms, bucket_start) do update
     set done = c.done + excluded.done, duration_ms = c.duration_ms + excluded.duration_ms
)
select m.id from moved m order by m.id

-- name: SQL_NACK (ids, worker_id, claims, states, delays, errors, stacks, counted, durations_ms)
-- Moves the claims that still stand to ready, suspended, failed or dead, gives an uncounted attempt back and adds to the minute of their job; answers the ids that moved.
with given as (
  select g.id, g.claims, g.state, g.delay, g.error, g.stack, g.counted, g.duration_ms
    from unnest($1::uuid[], $3::int[], $4::text[], $5::interval[], $6::text[], $7::text[], $8::bool[], $9::bigint[])
         as g(id, claims, state, delay, error, stack, counted, duration_ms)
   order by g.id -- the order in which rows are locked
), held as (
  select k.id, k.name, g.state, g.delay, g.error, g.stack, g.counted, g.duration_ms
    from given g
   cross join lateral (
     select j.id, j.name
       from x_jobs j
      where j.id = g.id and (j.state = 'running') is true and j.claimed_by = $2 and j.claims = g.claims
        for update
   ) k
), moved as (
  update x_jobs j
     set state = h.state, visible_at = null, claimed_by = null, updated_at = now(), run_at = now() + h.delay,
         attempt = case when h.counted then j.attempt else greatest(j.attempt - 1, 0) end,
         last_error = coalesce(h.error, j.last_error),
         last_error_stack = case when h.error is null then j.last_error_stack else h.stack end
    from held h
   where j.id = h.id
  returning j.id
), counted as (
  insert into x_job_counters as c (job, bucket_ms, bucket_start, retried, failed, dead, duration_ms)
  select h.name, 60000, date_trunc('minute', now()),
         count(*) filter (where h.state = 'ready'), count(*) filter (where h.state = 'failed'),
         count(*) filter (where h.state = 'dead'), sum(h.duration_ms)
    from held h
   where h.state in ('failed', 'dead') or (h.state = 'ready' and h.counted)
   group by h.name
   order by h.name
  on conflict (job, bucket_ms, bucket_start) do update
     set retried = c.retried + excluded.retried, failed = c.failed + excluded.failed, dead = c.dead + excluded.dead,
         duration_ms = c.duration_ms + excluded.duration_ms
)
select m.id from moved m order by m.id

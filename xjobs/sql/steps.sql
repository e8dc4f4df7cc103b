-- The steps of runs. Every write is fenced on the claim of the job that makes it, under a lock on its row, so that
-- a cancel or another claim comes either before the write, which is refused then, or after it.

-- name: SQL_STEPS (run_id)
-- Every step of a run, in the order in which they began; the one read of an attempt.
select s.name, s.status, s.output, s.started_at, s.completed_at, s.wake_at, s.event, s.correlation_key, s.attempts,
       s.error
  from x_job_steps s
 where s.run_id = $1
 order by s.started_at, s.name collate "C"

-- name: SQL_STEP_PUT (id, worker_id, claim, name, status, output, error, elapsed, after)
-- What a step came to is recorded while the claim stands; answers when the step began, later than the ones before it, or nothing when the claim is gone.
with held as (
  select j.run_id
    from x_jobs j
   where j.id = $1 and (j.state = 'running') is true and j.claimed_by = $2 and j.claims = $3
     for update
)
insert into x_job_steps as s (run_id, name, status, output, started_at, completed_at, error)
select h.run_id, $4, $5, $6::jsonb,
       greatest(now() - $8::interval, $9::timestamptz + interval '1 microsecond'),
       case when $5 = 'completed' then now() end, $7
  from held h
on conflict (run_id, name) do update
   set status = excluded.status, output = excluded.output, completed_at = excluded.completed_at, wake_at = null,
       attempts = s.attempts + 1, error = excluded.error
returning s.started_at

-- name: SQL_STEP_SLEEP (id, worker_id, claim, name, duration, after)
-- A sleep begins once and is completed by the first look after its end; answers its status, when it began and what is left of it, or nothing when the claim is gone.
with held as (
  select j.run_id
    from x_jobs j
   where j.id = $1 and (j.state = 'running') is true and j.claimed_by = $2 and j.claims = $3
     for update
)
insert into x_job_steps as s (run_id, name, status, started_at, completed_at, wake_at)
select h.run_id, $4, case when $5::interval > interval '0' then 'sleeping' else 'completed' end,
       greatest(now(), $6::timestamptz + interval '1 microsecond'),
       case when $5::interval > interval '0' then null else now() end, now() + $5::interval
  from held h
on conflict (run_id, name) do update
   set status = case when s.wake_at <= now() then 'completed' else 'sleeping' end,
       completed_at = case when s.wake_at <= now() then now() end,
       wake_at = coalesce(s.wake_at, excluded.wake_at)
returning s.status, s.started_at, greatest(s.wake_at - now(), interval '0') as remaining

-- name: SQL_STEP_WAIT (id, worker_id, claim, name, event, correlation_key, timeout, required, after)
-- A wait takes the earliest event that the run has not taken yet, however late it became visible, or ends when its time is up; answers its status, its output, when it began and what is left of it, or nothing when the claim is gone.
with held as (
  select j.run_id
    from x_jobs j
   where j.id = $1 and (j.state = 'running') is true and j.claimed_by = $2 and j.claims = $3
     for update
), wait as (
  select h.run_id,
         (select min(k.created_at) from x_jobs k where k.run_id = h.run_id) as since,
         coalesce((select s.wake_at from x_job_steps s where s.run_id = h.run_id and s.name = $4),
                  now() + $7::interval) as wake_at
    from held h
), found as (
  select e.id, e.payload, e.correlation_key, e.published_at
    from wait w
   cross join lateral (
     (select a.id, a.payload, a.correlation_key, a.published_at
        from x_job_events a
       where $6::text is null and a.name = $5 and a.published_at >= w.since and a.expires_at > now()
         and not exists (select from x_job_steps t
                          where t.run_id = w.run_id and t.event = a.name and t.status = 'completed'
                            and t.output ->> 'id' = a.id::text)
       order by a.published_at, a.id
       limit 1)
     union all
     (select a.id, a.payload, a.correlation_key, a.published_at
        from x_job_events a
       where a.correlation_key = $6 and a.name = $5 and a.published_at >= w.since and a.expires_at > now()
         and not exists (select from x_job_steps t
                          where t.run_id = w.run_id and t.event = a.name and t.status = 'completed'
                            and t.output ->> 'id' = a.id::text)
       order by a.published_at, a.id
       limit 1)
   ) e
)
insert into x_job_steps as s (run_id, name, status, output, started_at, completed_at, wake_at, event, correlation_key)
select w.run_id, $4,
       case when f.id is not null then 'completed' when w.wake_at > now() then 'waiting'
            when $8::bool then 'failed' else 'completed' end,
       case when f.id is not null
            then jsonb_build_object('id', f.id, 'payload', f.payload, 'correlation_key', f.correlation_key,
                                    'published_at', (extract(epoch from f.published_at) * 1000000)::bigint)
            when w.wake_at <= now() and not $8::bool then jsonb_build_object('timed_out', true) end,
       greatest(now(), $9::timestamptz + interval '1 microsecond'),
       case when f.id is not null or (w.wake_at <= now() and not $8::bool) then now() end,
       w.wake_at, $5, $6
  from wait w
  left join found f on true
on conflict (run_id, name) do update
   set status = excluded.status, output = excluded.output, completed_at = excluded.completed_at,
       wake_at = excluded.wake_at
returning s.status, s.output, s.started_at, greatest(s.wake_at - now(), interval '0') as remaining

-- name: SQL_WAKE_WAITS (events)
-- Suspended runs that wait for one of these events (null: for any) become due when there is one that they would take; answers the jobs and their queues.
with waiting as (
  select distinct j.id
    from x_job_steps s
    join x_jobs j on j.run_id = s.run_id
   where s.status = 'waiting' and ($1::text[] is null or s.event = any($1))
     and j.state = 'suspended' and j.run_at > now()
     and exists (
       select
         from x_job_events e
        where e.name = s.event and s.correlation_key is null
          and e.published_at >= (select min(k.created_at) from x_jobs k where k.run_id = s.run_id)
          and e.expires_at > now()
          and not exists (select from x_job_steps t
                           where t.run_id = s.run_id and t.event = e.name and t.status = 'completed'
                             and t.output ->> 'id' = e.id::text)
       union all
       select
         from x_job_events e
        where e.name = s.event and e.correlation_key = s.correlation_key
          and e.published_at >= (select min(k.created_at) from x_jobs k where k.run_id = s.run_id)
          and e.expires_at > now()
          and not exists (select from x_job_steps t
                           where t.run_id = s.run_id and t.event = e.name and t.status = 'completed'
                             and t.output ->> 'id' = e.id::text))
), held as (
  select j.id
    from x_jobs j
   where j.id = any(array(select w.id from waiting w)) and (j.state = 'suspended') is true and j.run_at > now()
   order by j.id
     for update skip locked
), woken as (
  update x_jobs j
     set run_at = now(), updated_at = now()
   where j.id = any(array(select h.id from held h))
  returning j.id, j.queue
)
select w.id, w.queue from woken w order by w.id

-- name: SQL_PROGRESS (id, worker_id, claim, progress)
-- What a body reports is kept with its row while the claim stands; answers the id when it was.
update x_jobs j
   set progress = $4::jsonb, updated_at = now()
 where j.id = $1 and (j.state = 'running') is true and j.claimed_by = $2 and j.claims = $3
returning j.id

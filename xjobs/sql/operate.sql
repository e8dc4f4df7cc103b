-- What makes jobs due wakes the workers of their queues, as an enqueue does (enqueue.sql), but always.

-- name: SQL_CANCEL (id, reason)
-- A live job becomes cancelled, whoever runs it; answers the state that it was in, and the row when it moved.
with found as (
  select j.id, j.state from x_jobs j where j.id = $1 for update
), moved as (
  update x_jobs j
     set state = 'cancelled', visible_at = null, claimed_by = null, updated_at = now(),
         last_error = coalesce($2::text, j.last_error)
    from found f
   where j.id = f.id and f.state in ('ready', 'delayed', 'running', 'suspended')
  returning j.id, j.name, j.queue, j.state, j.input, j.idempotency_key, j.run_id, j.attempt, j.max_attempts, j.claims,
            j.run_at, j.visible_at, j.claimed_by, j.last_error, j.last_error_stack, j.tenant_id, j.created_at,
            j.updated_at, j.traceparent, j.enqueued_by, j.progress
)
select f.state as was, m.id, m.name, m.queue, m.state, m.input, m.idempotency_key, m.run_id, m.attempt, m.max_attempts,
       m.claims, m.run_at, m.visible_at, m.claimed_by, m.last_error, m.last_error_stack, m.tenant_id, m.created_at,
       m.updated_at, m.traceparent, m.enqueued_by, m.progress
  from found f
  left join moved m on m.id = f.id

-- name: SQL_REQUEUE (id, from_step)
-- A finished job whose key is free becomes ready with all its attempts and the same run, whose named step and those that began after it are dropped; answers the state that it was in, the live job that holds its key, and the row when it moved.
with found as (
  select j.id, j.state,
         j.xmin = (select k.xmin from x_jobs k where k.id = $1) as unmoved, -- else it was waited for, and the steps that this statement sees are old
         (select k.id
            from x_jobs k
           where k.name = j.name and coalesce(k.tenant_id, '') = coalesce(j.tenant_id, '')
             and k.idempotency_key = j.idempotency_key and k.id <> j.id
             and k.state in ('ready', 'delayed', 'running', 'suspended')
           limit 1) as holder
    from x_jobs j
   where j.id = $1
     for update
), moved as (
  update x_jobs j
     set state = 'ready', attempt = 0, run_at = now(), visible_at = null, claimed_by = null, updated_at = now()
    from found f
   where j.id = f.id and f.unmoved and f.holder is null and f.state in ('done', 'failed', 'dead', 'cancelled')
  returning j.id, j.name, j.queue, j.state, j.input, j.idempotency_key, j.run_id, j.attempt, j.max_attempts, j.claims,
            j.run_at, j.visible_at, j.claimed_by, j.last_error, j.last_error_stack, j.tenant_id, j.created_at,
            j.updated_at, j.traceparent, j.enqueued_by, j.progress
), target as (
  select s.run_id, s.name, s.started_at
    from moved m
    join x_job_steps s on s.run_id = m.run_id and s.name = $2::text
), dropped as (
  delete from x_job_steps s
   using target t
   where s.run_id = t.run_id and (s.name = t.name or s.started_at > t.started_at)
), woken as (
  select pg_notify('x_jobs_wake', m.queue) from moved m
)
select f.state as was, f.holder, m.id, m.name, m.queue, m.state, m.input, m.idempotency_key, m.run_id, m.attempt,
       m.max_attempts, m.claims, m.run_at, m.visible_at, m.claimed_by, m.last_error, m.last_error_stack, m.tenant_id,
       m.created_at, m.updated_at, m.traceparent, m.enqueued_by, m.progress
  from found f
  left join moved m on m.id = f.id
  left join woken on true

-- name: SQL_PROMOTE (id)
-- A job that waits for its instant becomes due now; answers the state that it was in, and the row when it moved.
with found as (
  select j.id, j.state, j.run_at > now() as waits from x_jobs j where j.id = $1 for update
), moved as (
  update x_jobs j
     set state = 'ready', run_at = now(), updated_at = now()
    from found f
   where j.id = f.id and f.waits and f.state in ('ready', 'delayed')
  returning j.id, j.name, j.queue, j.state, j.input, j.idempotency_key, j.run_id, j.attempt, j.max_attempts, j.claims,
            j.run_at, j.visible_at, j.claimed_by, j.last_error, j.last_error_stack, j.tenant_id, j.created_at,
            j.updated_at, j.traceparent, j.enqueued_by, j.progress
), woken as (
  select pg_notify('x_jobs_wake', m.queue) from moved m
)
select f.state as was, m.id, m.name, m.queue, m.state, m.input, m.idempotency_key, m.run_id, m.attempt, m.max_attempts,
       m.claims, m.run_at, m.visible_at, m.claimed_by, m.last_error, m.last_error_stack, m.tenant_id, m.created_at,
       m.updated_at, m.traceparent, m.enqueued_by, m.progress
  from found f
  left join moved m on m.id = f.id
  left join woken on true

-- name: SQL_REMOVE (id)
-- A job that is not running is deleted, with the steps of its run when no other row of the run stands; answers the state that it was in, and the row when it went.
with found as (
  select j.id, j.state,
         j.xmin = (select k.xmin from x_jobs k where k.id = $1) as unmoved -- else it was waited for, and what this statement sees of the run is old
    from x_jobs j
   where j.id = $1
     for update
), gone as (
  delete from x_jobs j
   using found f
   where j.id = f.id and f.unmoved and f.state <> 'running'
  returning j.id, j.name, j.queue, j.state, j.input, j.idempotency_key, j.run_id, j.attempt, j.max_attempts, j.claims,
            j.run_at, j.visible_at, j.claimed_by, j.last_error, j.last_error_stack, j.tenant_id, j.created_at,
            j.updated_at, j.traceparent, j.enqueued_by, j.progress
), steps as (
  delete from x_job_steps s
   using gone g
   where s.run_id = g.run_id
     and (select k.id from x_jobs k where k.run_id = g.run_id and k.id <> g.id limit 1) is null
)
select f.state as was, g.id, g.name, g.queue, g.state, g.input, g.idempotency_key, g.run_id, g.attempt, g.max_attempts,
       g.claims, g.run_at, g.visible_at, g.claimed_by, g.last_error, g.last_error_stack, g.tenant_id, g.created_at,
       g.updated_at, g.traceparent, g.enqueued_by, g.progress
  from found f
  left join gone g on g.id = f.id

-- name: SQL_CANCEL_MANY (state, queue, name, tenant_id, limit, reason)
-- The oldest live jobs of a state that match become cancelled; answers how many did and how many still could.
with matching as (
  select j.id, j.created_at
    from x_jobs j
   where j.state = $1 and j.state in ('ready', 'delayed', 'running', 'suspended')
     and ($2::text is null or j.queue = $2) and ($3::text is null or j.name = $3)
     and ($4::text is null or j.tenant_id = $4)
), held as (
  select j.id
    from x_jobs j
   where j.id = any(array(select m.id from matching m order by m.created_at, m.id limit $5::int)) and j.state = $1
   order by j.id
     for update
), moved as (
  update x_jobs j
     set state = 'cancelled', visible_at = null, claimed_by = null, updated_at = now(),
         last_error = coalesce($6::text, j.last_error)
   where j.id = any(array(select h.id from held h))
  returning j.id
)
select (select count(*) from moved) as affected,
       (select count(*) from matching) - (select count(*) from moved) as remaining

-- name: SQL_REQUEUE_MANY (state, queue, name, tenant_id, limit)
-- Of the finished jobs of a state that match and whose key is free, the oldest of each key becomes ready; answers how many did and how many a second call could still move.
with free as (
  select distinct on (j.name, coalesce(j.tenant_id, ''), j.idempotency_key) j.id, j.created_at
    from x_jobs j
   where j.state = $1 and j.state in ('done', 'failed', 'dead', 'cancelled')
     and ($2::text is null or j.queue = $2) and ($3::text is null or j.name = $3)
     and ($4::text is null or j.tenant_id = $4)
     and not exists (
       select
         from x_jobs k
        where k.name = j.name and coalesce(k.tenant_id, '') = coalesce(j.tenant_id, '')
          and k.idempotency_key = j.idempotency_key and k.state in ('ready', 'delayed', 'running', 'suspended'))
   order by j.name, coalesce(j.tenant_id, ''), j.idempotency_key, j.created_at, j.id
), held as (
  select j.id
    from x_jobs j
   where j.id = any(array(select f.id from free f order by f.created_at, f.id limit $5::int)) and j.state = $1
   order by j.id
     for update
), moved as (
  update x_jobs j
     set state = 'ready', attempt = 0, run_at = now(), visible_at = null, claimed_by = null, updated_at = now()
   where j.id = any(array(select h.id from held h))
  returning j.id, j.queue
), woken as (
  select pg_notify('x_jobs_wake', q.queue) from (select distinct m.queue from moved m) q
)
select (select count(*) from moved) as affected,
       (select count(*) from free) - (select count(*) from moved) as remaining
  from (select count(*) from woken) w

-- name: SQL_PROMOTE_MANY (state, queue, name, tenant_id, limit)
-- The oldest jobs of a state that match and wait for their instant become due now; answers how many did and how many still wait.
with matching as (
  select j.id, j.created_at
    from x_jobs j
   where j.state = $1 and j.state in ('ready', 'delayed') and j.run_at > now()
     and ($2::text is null or j.queue = $2) and ($3::text is null or j.name = $3)
     and ($4::text is null or j.tenant_id = $4)
), held as (
  select j.id
    from x_jobs j
   where j.id = any(array(select m.id from matching m order by m.created_at, m.id limit $5::int))
     and j.state = $1 and j.run_at > now()
   order by j.id
     for update
), moved as (
  update x_jobs j
     set state = 'ready', run_at = now(), updated_at = now()
   where j.id = any(array(select h.id from held h))
  returning j.id, j.queue
), woken as (
  select pg_notify('x_jobs_wake', q.queue) from (select distinct m.queue from moved m) q
)
select (select count(*) from moved) as affected,
       (select count(*) from matching) - (select count(*) from moved) as remaining
  from (select count(*) from woken) w

-- name: SQL_REMOVE_MANY (state, queue, name, tenant_id, limit)
-- The oldest jobs of a state that match and do not run are deleted, with the steps of runs of which no row stands; answers how many went and how many still match.
with matching as (
  select j.id, j.created_at
    from x_jobs j
   where j.state = $1 and j.state <> 'running'
     and ($2::text is null or j.queue = $2) and ($3::text is null or j.name = $3)
     and ($4::text is null or j.tenant_id = $4)
), held as (
  select j.id
    from x_jobs j
   where j.id = any(array(select m.id from matching m order by m.created_at, m.id limit $5::int)) and j.state = $1
   order by j.id
     for update skip locked
), gone as (
  delete from x_jobs j
   where j.id = any(array(select h.id from held h))
  returning j.id, j.run_id
), steps as (
  delete from x_job_steps s
   where s.run_id = any(array(select g.run_id from gone g))
     and (select k.id from x_jobs k where k.run_id = s.run_id and k.id <> all(array(select g.id from gone g)) limit 1)
         is null
)
select (select count(*) from gone) as affected,
       (select count(*) from matching) - (select count(*) from gone) as remaining

-- name: SQL_JOB (id)
-- The row of one job, or nothing.
select id, name, queue, state, input, idempotency_key, run_id, attempt, max_attempts, claims, run_at, visible_at,
       claimed_by, last_error, last_error_stack, tenant_id, created_at, updated_at, traceparent, enqueued_by, progress
  from x_jobs
 where id = $1

-- name: SQL_JOBS (name, queue, state, limit)
-- The newest rows that match every filter given, newest first.
select id, name, queue, state, input, idempotency_key, run_id, attempt, max_attempts, claims, run_at, visible_at,
       claimed_by, last_error, last_error_stack, tenant_id, created_at, updated_at, traceparent, enqueued_by, progress
  from x_jobs
 where ($1::text is null or name = $1) and ($2::text is null or queue = $2) and ($3::text is null or state = $3)
 order by created_at desc, id desc
 limit $4::int

-- name: SQL_WAITING (limit)
-- The live rows by the instant at which a claim could take them, earliest first and those of paused queues last, with the count of all live rows in each.
select w.id, w.name, w.queue, w.state, w.due_at, w.due_at <= now() as due, w.paused, count(*) over () as total
  from (select j.id, j.name, j.queue, j.state, coalesce(j.visible_at, j.run_at) as due_at,
               exists (select from x_job_pauses p where p.kind = 'queue' and p.name = j.queue) as paused
          from x_jobs j
         where j.state in ('ready', 'delayed', 'running', 'suspended')) w
 order by w.paused, w.due_at, w.id
 limit $1::int

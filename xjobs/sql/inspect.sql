-- name: SQL_JOB (id)
-- The row of one job, or nothing.
select id, name, queue, state, input, idempotency_key, run_id, attempt, max_attempts, claims, run_at, visible_at,
       claimed_by, last_error, last_error_stack, tenant_id, created_at, updated_at, traceparent, enqueued_by, progress
  from x_jobs
 where id = $1

-- name: SQL_JOBS (name, queue, state, tenant_id, id_prefix, created_from, created_to, after_created_at, after_id, limit)
-- The rows that match every filter given and are older than the cursor, newest first.
select id, name, queue, state, input, idempotency_key, run_id, attempt, max_attempts, claims, run_at, visible_at,
       claimed_by, last_error, last_error_stack, tenant_id, created_at, updated_at, traceparent, enqueued_by, progress
  from x_jobs
 where ($1::text is null or name = $1) and ($2::text is null or queue = $2) and ($3::text is null or state = $3)
   and ($4::text is null or tenant_id = $4) and ($5::text is null or starts_with(id::text, $5))
   and ($6::timestamptz is null or created_at >= $6) and ($7::timestamptz is null or created_at < $7)
   and ($8::timestamptz is null or (created_at, id) < ($8, $9::uuid))
 order by created_at desc, id desc
 limit $10::int

-- name: SQL_JOBS_BEFORE (name, queue, state, tenant_id, id_prefix, created_from, created_to, before_created_at, before_id, limit)
-- The rows that match every filter given and are newer than the cursor, those nearest to it, newest first.
select n.id, n.name, n.queue, n.state, n.input, n.idempotency_key, n.run_id, n.attempt, n.max_attempts, n.claims,
       n.run_at, n.visible_at, n.claimed_by, n.last_error, n.last_error_stack, n.tenant_id, n.created_at, n.updated_at,
       n.traceparent, n.enqueued_by, n.progress
  from (select id, name, queue, state, input, idempotency_key, run_id, attempt, max_attempts, claims, run_at,
               visible_at, claimed_by, last_error, last_error_stack, tenant_id, created_at, updated_at, traceparent,
               enqueued_by, progress
          from x_jobs
         where ($1::text is null or name = $1) and ($2::text is null or queue = $2)
           and ($3::text is null or state = $3) and ($4::text is null or tenant_id = $4)
           and ($5::text is null or starts_with(id::text, $5))
           and ($6::timestamptz is null or created_at >= $6) and ($7::timestamptz is null or created_at < $7)
           and (created_at, id) > ($8::timestamptz, $9::uuid)
         order by created_at, id
         limit $10::int) n
 order by n.created_at desc, n.id desc

-- name: SQL_WAITING (limit)
-- The live rows by the instant at which a claim could take them, earliest first and those of paused queues last, with the count of all live rows in each.
select w.id, w.name, w.queue, w.state, w.due_at, w.due_at <= now() as due, w.paused, count(*) over () as total
  from (select j.id, j.name, j.queue, j.state, coalesce(j.visible_at, j.run_at) as due_at,
               exists (select from x_job_pauses p where p.kind = 'queue' and p.name = j.queue) as paused
          from x_jobs j
         where j.state in ('ready', 'delayed', 'running', 'suspended')) w
 order by w.paused, w.due_at, w.id
 limit $1::int

-- The workers that live: each announces itself at intervals, and one that stopped doing so is forgotten.

-- name: SQL_WORKER_ANNOUNCE (id, host, queues, concurrency, in_flight, started_at, ttl, draining)
-- The worker is listed for ttl from now; the first announcement that says draining sets draining_at, and later ones keep it.
insert into x_job_workers as w (id, host, queues, concurrency, in_flight, started_at, heartbeat_at, expires_at, draining_at)
values ($1, $2, $3::jsonb, $4, $5::jsonb, $6::timestamptz, now(), now() + $7::interval, case when $8::bool then now() end)
on conflict (id) do update
   set host = excluded.host, queues = excluded.queues, concurrency = excluded.concurrency,
       in_flight = excluded.in_flight, started_at = excluded.started_at, heartbeat_at = excluded.heartbeat_at,
       expires_at = excluded.expires_at,
       draining_at = case when $8::bool then coalesce(w.draining_at, excluded.draining_at) end
returning w.draining_at

-- name: SQL_WORKER_FORGET (id)
-- The worker is not listed any more.
delete from x_job_workers where id = $1 returning id

-- name: SQL_WORKERS ()
-- The workers whose announcement has not lapsed, by start and id as bytes; rows of lapsed ones are deleted, unless somebody is writing them.
-- xjobs: ignore sequential-scan because the table has as many rows as there are workers
with lapsed as (
  delete from x_job_workers w
   where w.id = any(array(select l.id from x_job_workers l where l.expires_at <= now() order by l.id for update skip locked))
)
select w.id, w.host, w.queues, w.concurrency, w.in_flight, w.started_at, w.heartbeat_at, w.expires_at, w.draining_at
  from x_job_workers w
 where w.expires_at > now()
 order by w.started_at, w.id collate "C"

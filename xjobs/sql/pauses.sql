-- name: SQL_PAUSE (kind, name)
-- The queue or schedule is paused from now on; a pause that stands keeps its first instant.
insert into x_job_pauses (kind, name) values ($1, $2) on conflict (kind, name) do nothing returning name

-- name: SQL_RESUME (kind, name)
-- The queue or schedule is not paused any more; the workers of a queue are woken.
delete from x_job_pauses
 where kind = $1 and name = $2
returning case when kind = 'queue' then (select name from pg_notify('x_jobs_wake', name)) else name end as name

-- name: SQL_PAUSED (kind)
-- What is paused and since when, ordered by name as bytes.
select name, paused_at from x_job_pauses where kind = $1 order by name collate "C"

-- name: SQL_STATS ()
-- One row per queue with a live, failed or dead job, each job counted in exactly one bucket; ordered by queue as bytes.
select queue,
       count(*) filter (where state in ('ready', 'delayed') and run_at <= now()) as ready,
       count(*) filter (where state in ('ready', 'delayed') and run_at > now()) as delayed,
       count(*) filter (where state = 'running') as running,
       count(*) filter (where state = 'suspended') as suspended,
       count(*) filter (where state = 'failed') as failed,
       count(*) filter (where state = 'dead') as dead,
       coalesce(max(now() - run_at) filter (where state in ('ready', 'delayed') and run_at <= now()),
                interval '0') as oldest_ready
  from x_jobs
 where state in ('ready', 'delayed', 'running', 'suspended', 'failed', 'dead')
 group by queue
 order by queue collate "C"

-- name: SQL_SCALER_DEPTH ()
-- How much work each unpaused queue with a live job has for workers to come: its due rows and its running ones, less those that a live worker holds which is draining; ordered by queue as bytes.
select d.queue, sum(d.counted)::int as depth
  from (select j.queue, count(*) filter (where j.run_at <= now()) as counted
          from x_jobs j
         where j.state in ('ready', 'delayed', 'suspended')
         group by j.queue
        union all
        select j.queue, count(*) filter (where w.id is null) as counted
          from x_jobs j
          left join lateral (
            select k.id
              from x_job_workers k
             where k.id = j.claimed_by and k.draining_at is not null and k.expires_at > now()
             limit 1
          ) w on true
         where j.state = 'running'
         group by j.queue) d
 where not exists (select from x_job_pauses p where p.kind = 'queue' and p.name = d.queue)
 group by d.queue
 order by d.queue collate "C"

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

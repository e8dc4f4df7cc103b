-- name: SQL_HEARTBEAT (ids, worker_id, claims, lease)
-- Extends the leases of claims that still stand to a full term from now; answers the ids that were extended.
with held as (
  select j.id
    from x_jobs j
    join unnest($1::uuid[], $3::int[]) as g(id, claims) on g.id = j.id
   where j.id = any($1::uuid[]) and j.state = 'running' and j.claimed_by = $2 and j.claims = g.claims
   order by j.id
     for update of j
)
update x_jobs j
   set visible_at = now() + $4::interval, updated_at = now()
 where j.id = any(array(select h.id from held h))
returning j.id

-- Leases of claims. As in settle.sql, "is true" keeps the planner from an index over running rows.

-- name: SQL_HEARTBEAT (ids, worker_id, claims, lease)
-- Extends the leases of claims that still stand to a full term from now; answers the ids that were extended, in their order.
with given as (
  select g.id, g.claims
    from unnest($1::uuid[], $3::int[]) as g(id, claims)
   order by g.id -- the order in which rows are locked
), held as (
  select k.id
    from given g
   cross join lateral (
     select j.id
       from x_jobs j
      where j.id = g.id and (j.state = 'running') is true and j.claimed_by = $2 and j.claims = g.claims
        for update
   ) k
), extended as (
  update x_jobs j
     set visible_at = now() + $4::interval, updated_at = now()
   where j.id = any(array(select h.id from held h))
  returning j.id
)
select e.id from extended e order by e.id

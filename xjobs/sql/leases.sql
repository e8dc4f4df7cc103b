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

-- name: SQL_RENEW (worker_id, lease, ids, claims, keys, slots, holders)
-- Extends the leases and the slots of a worker that still stand to a full term from now; answers (kind, position, standing) for each given one: a lease is held, cancelled or lost, a slot held or lost.
with given as (
  select g.position, g.id, g.claims
    from unnest($3::uuid[], $4::int[]) with ordinality as g(id, claims, position)
   order by g.id -- the order in which rows are locked
), held as (
  select g.position, k.id
    from given g
   cross join lateral (
     select j.id
       from x_jobs j
      where j.id = g.id and (j.state = 'running') is true and j.claimed_by = $1 and j.claims = g.claims
        for update
   ) k
), renewed as (
  update x_jobs j
     set visible_at = now() + $2::interval, updated_at = now()
   where j.id = any(array(select h.id from held h))
), asked as (
  select s.position, s.lease_key, s.slot, s.holder
    from unnest($5::text[], $6::int[], $7::text[]) with ordinality as s(lease_key, slot, holder, position)
   order by s.lease_key collate "C", s.slot -- the order in which rows are locked
), kept as (
  select a.position, k.lease_key, k.slot
    from asked a
   cross join lateral (
     select l.lease_key, l.slot
       from x_job_leases l
      where l.lease_key = a.lease_key and l.slot = a.slot and l.holder = a.holder and l.expires_at > now()
        for update
   ) k
), extended as (
  update x_job_leases l
     set expires_at = now() + $2::interval
   where (l.lease_key, l.slot) in (select k.lease_key, k.slot from kept k)
)
select 'lease' as kind, g.position::int,
       case when h.id is not null then 'held' when c.id is not null then 'cancelled' else 'lost' end as standing
  from given g
  left join held h on h.position = g.position
  left join lateral (
    select j.id from x_jobs j where j.id = g.id and (j.state = 'cancelled') is true and j.claims = g.claims limit 1
  ) c on true
union all
select 'slot' as kind, a.position::int, case when k.slot is not null then 'held' else 'lost' end as standing
  from asked a
  left join kept k on k.position = a.position
 order by kind, position

-- Slots of fleet-wide concurrency limits: one row per slot that is held, each with an end.

-- name: SQL_SLOT_ACQUIRE (keys, limits, holders, ttl)
-- Each request takes the lowest free slot of its key below its limit, or none; a slot that is held is never given again, while a free one may be refused to one of several that reach for it. Answers (position, slot) of those that took one.
with given as (
  select g.position, g.lease_key, g.slots, g.holder,
         row_number() over (partition by g.lease_key order by g.position) as place
    from unnest($1::text[], $2::int[], $3::text[]) with ordinality as g(lease_key, slots, holder, position)
), free as (
  select k.lease_key, s.slot, row_number() over (partition by k.lease_key order by s.slot) as place
    from (select g.lease_key, max(g.slots) as slots, count(*) as asked from given g group by g.lease_key) k
   cross join lateral ( -- among so many there are as many free ones as are asked for
     select k.asked + count(*) as enough from x_job_leases l where l.lease_key = k.lease_key and l.expires_at > now()
   ) e
   cross join lateral generate_series(0, least(k.slots, e.enough)::int - 1) as s(slot)
   where not exists (
     select from x_job_leases l where l.lease_key = k.lease_key and l.slot = s.slot and l.expires_at > now()
   )
), chosen as (
  select g.position, g.lease_key, f.slot, g.holder
    from given g
    join free f on f.lease_key = g.lease_key and f.place = g.place and f.slot < g.slots
), taken as (
  insert into x_job_leases as l (lease_key, slot, holder, expires_at)
  select c.lease_key, c.slot, c.holder, now() + $4::interval
    from chosen c
   order by c.lease_key collate "C", c.slot -- the order in which rows are locked
  on conflict (lease_key, slot) do update
     set holder = excluded.holder, expires_at = excluded.expires_at
   where l.expires_at <= now()
  returning l.lease_key, l.slot
)
select c.position::int, c.slot
  from chosen c
  join taken t on t.lease_key = c.lease_key and t.slot = c.slot
 order by c.position

-- name: SQL_SLOT_RELEASE (keys, slots, holders)
-- Frees the slots that their holders still hold; answers how many, in one row.
with given as (
  select g.lease_key, g.slot, g.holder
    from unnest($1::text[], $2::int[], $3::text[]) as g(lease_key, slot, holder)
   order by g.lease_key collate "C", g.slot -- the order in which rows are locked
), held as (
  select k.lease_key, k.slot
    from given g
   cross join lateral (
     select l.lease_key, l.slot
       from x_job_leases l
      where l.lease_key = g.lease_key and l.slot = g.slot and l.holder = g.holder
        for update
   ) k
), freed as (
  delete from x_job_leases l where (l.lease_key, l.slot) in (select h.lease_key, h.slot from held h) returning l.slot
)
select count(*)::int from freed

-- name: SQL_SLOT_HOLDERS (keys)
-- Who holds the live slots of the keys, as (key, slot, holder), by key as bytes and slot.
select l.lease_key, l.slot, l.holder
  from x_job_leases l
 where l.lease_key = any($1::text[]) and l.expires_at > now()
 order by l.lease_key collate "C", l.slot

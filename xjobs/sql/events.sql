-- Events that runs wait for. They are stored until they expire and a wait does not use them up. Instants are those of
-- the statement and not of its transaction, so that an event is never older than a run that began before it.

-- name: SQL_EVENT_PUBLISH (id, name, payload, correlation_key, ttl)
-- One event is stored, and at the commit the workers are told its name when some run waits for it; answers when it was published and when it expires.
with made as (
  insert into x_job_events as e (id, name, payload, correlation_key, published_at, expires_at)
  values ($1, $2, $3::jsonb, $4, statement_timestamp(), statement_timestamp() + $5::interval)
  returning e.name, e.published_at, e.expires_at
)
select m.published_at, m.expires_at,
       case when exists (select from x_job_steps s where s.status = 'waiting' and s.event = m.name)
            then pg_notify('x_events_wake', m.name)::text end as sent
  from made m

-- name: SQL_EVENTS (name, limit)
-- The events of a name (null: of all) that have not expired, the last one published first.
select e.id, e.name, e.payload, e.correlation_key, e.published_at, e.expires_at
  from x_job_events e
 where ($1::text is null or e.name = $1) and e.expires_at > now()
 order by e.id desc
 limit $2::int

-- name: SQL_EVENTS_PURGE (limit)
-- The first events that have expired are deleted, those that another purge has in hand left out; answers how many went.
with expired as (
  select e.id
    from x_job_events e
   where e.expires_at <= now()
   order by e.id -- about the order of publication, so that the scan ends early
   limit $1::int
     for update skip locked
), gone as (
  delete from x_job_events e
   where e.id = any(array(select x.id from expired x))
  returning e.id
)
select count(*) as gone from gone

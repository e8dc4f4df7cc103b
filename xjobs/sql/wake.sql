-- Telling workers that there is work. A notification is a hint: workers also poll.

-- name: SQL_WAKE (payload)
-- Every session that listens for work is told this queue, or that it may be any one when the payload is empty.
select pg_notify('x_jobs_wake', $1)::text as sent

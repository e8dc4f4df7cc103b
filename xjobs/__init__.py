"""xjobs: a durable job queue on Postgres, with an in-memory twin."""

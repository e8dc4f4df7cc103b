"""How statements reach a store: blocking Postgres, async Postgres, and memory."""

"""The shop's database: one engine for requests and job bodies alike, and the job queue beside it."""

from __future__ import annotations

import xjobs
from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.orm import sessionmaker

Session = sessionmaker(expire_on_commit=False)


def connect(url: str) -> Engine:
    """Bind `Session` to the database, and put its job queue in use."""
    engine = create_shop_engine(url)
    Session.configure(bind=engine)
    # On SQLite, for a laptop without Postgres, jobs live in memory.
    xjobs.use(xjobs.Queue.connect("memory://" if engine.dialect.name == "sqlite" else url))
    return engine


def create_shop_engine(url: str) -> Engine:
    """An engine for a URL as hosting platforms give it: `postgresql://` here means psycopg 3."""
    parsed = make_url(url)
    return create_engine(parsed.set(drivername="postgresql+psycopg") if parsed.drivername == "postgresql" else parsed)

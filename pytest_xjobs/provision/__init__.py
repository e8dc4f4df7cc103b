"""The Postgres server of a test run: finding binaries, starting a cluster of our own, or taking an existing server.

`find_binaries` says which installation is used, `Cluster` runs a throw-away server from it, `Existing` is a server that
somebody else runs. Both are a `Server`, which is all that the rest of the plugin knows.

Only the standard library is imported here; psycopg comes in when a connection is made.
"""

from __future__ import annotations

from pytest_xjobs.provision.binaries import Binaries, find_binaries
from pytest_xjobs.provision.cluster import Cluster
from pytest_xjobs.provision.errors import PostgresNotFound, ServerError, ServerFailed, ServerUnreachable
from pytest_xjobs.provision.existing import Existing
from pytest_xjobs.provision.scratch import reap
from pytest_xjobs.provision.server import Server

__all__ = [
    "Binaries",
    "Cluster",
    "Existing",
    "PostgresNotFound",
    "Server",
    "ServerError",
    "ServerFailed",
    "ServerUnreachable",
    "find_binaries",
    "reap",
]

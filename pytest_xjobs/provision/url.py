"""A server's parameters, written as a URL that libpq reads."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from urllib.parse import quote


def libpq_url(parameters: Mapping[str, str]) -> str:
    """A libpq URL; whatever the authority part cannot hold (a socket's directory) goes into the query."""
    rest = dict(parameters)
    escape = functools.partial(quote, safe="")
    authority = escape(rest.pop("user", ""))
    if password := rest.pop("password", ""):
        authority += f":{escape(password)}"
    if authority:
        authority += "@"
    path = escape(rest.pop("dbname", ""))
    host = rest.get("host", "")
    if host and not re.search(r"[/@,]", host):
        del rest["host"]
        authority += f"[{host}]" if ":" in host else escape(host)
        if port := rest.pop("port", ""):
            authority += f":{port}"
    query = "&".join(f"{name}={quote(value, safe='/')}" for name, value in rest.items())
    return f"postgresql://{authority}/{path}{'?' if query else ''}{query}"

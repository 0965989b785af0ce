"""The pages of a running service, as the command line names them."""

from __future__ import annotations

from extproc.adapters.http_client import HttpClient
from extproc.addresses import UnixSocket, parse_endpoint


def pages_at(where: str) -> tuple[HttpClient, str]:
    """Who asks for them, and what their URLs begin with. `where`: a URL, or unix:/path. Raises ConfigError."""
    door = parse_endpoint(where) if where.startswith("unix:") else None
    if isinstance(door, UnixSocket):
        return HttpClient(socket=door.path), "http://localhost"
    return HttpClient(), where.rstrip("/")

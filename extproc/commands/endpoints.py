"""Addresses that Envoy connects to, as the command line names them."""

from __future__ import annotations

from extproc.addresses import Endpoint, UnixSocket, host_port, parse_endpoint
from extproc.errors import ConfigError


def worker(text: str) -> Endpoint:
    """A worker's address, or its Unix socket. Raises ConfigError."""
    where = parse_endpoint(text)
    return where if isinstance(where, UnixSocket) else endpoint(text)


def endpoint(text: str) -> tuple[str, int]:
    """Host and port that Envoy connects to: neither "all interfaces" nor "any port". Raises ConfigError."""
    host, port = host_port(text)
    if host in ("0.0.0.0", "::") or not port:
        raise ConfigError(f"'{text}' is no address to connect to: name a host and a port")
    return host, port

"""What an operator says about one backend: where it is, and what its pages cannot tell."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from urllib.parse import SplitResult, urlsplit

import msgspec

from extproc.adapters.engines.known import ENGINES
from extproc.core.events import fault
from extproc.core.model import Capability, Instance, Lifecycle
from extproc.errors import ConfigError


class Backend(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine's HTTP server, as the agent reaches it and as routers shall see it."""

    url: str
    id: str = ""  # host:port of the URL if left out
    address: str = ""  # ip:port that Envoy connects to; that of the URL if left out
    cluster: str = "pool"
    engine: str = "vllm"
    hardware: str = ""
    tensor_parallel: int = 1
    zone: str = ""
    max_num_seqs: int | None = None
    capabilities: tuple[Capability, ...] | None = None  # all that it can do; left out, it counts as able to do all

    @property
    def name(self) -> str:
        """Return the id it is published under."""
        return self.id or urlsplit(self.url).netloc.rpartition("@")[2].strip("[").replace("]", "")

    def page(self, path: str) -> str:
        """Return the URL of one of the engine's pages; a path in the backend's own URL is kept."""
        return self.url.rstrip("/") + path

    async def resolve(self) -> str:
        """Return the `ip:port` that Envoy is to connect to. Raises OSError if the host has no address."""
        if self.address:
            return self.address
        parts = urlsplit(self.url)
        host, port = parts.hostname or "", _port(parts)
        try:
            ip = str(ipaddress.ip_address(host))
        except ValueError:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            ip = str(min(found, key=lambda info: info[0] != socket.AF_INET)[4][0])
        return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def check(backends: list[Backend]) -> None:
    """Raise ConfigError, naming the backend, if a list of backends cannot be published."""
    seen: set[str] = set()
    for backend in backends:
        try:
            parts = urlsplit(backend.url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and _port(parts) > 0
        except ValueError:
            usable = False
        if not usable:
            raise ConfigError(f"backend {backend.url!r} is not a URL such as http://127.0.0.1:8000")
        if backend.engine not in ENGINES:
            raise ConfigError(f"backend {backend.name}: engine {backend.engine!r} is not one of {', '.join(ENGINES)}")
        if why := fault(_sample(backend)):
            raise ConfigError(f"backend {backend.url}: {why}")
        if backend.name in seen:
            raise ConfigError(f"two backends have the id {backend.name!r}: name them apart with `id`")
        seen.add(backend.name)
    if not backends:
        raise ConfigError("no backend is given: use --backend URL or --backends FILE")


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _sample(backend: Backend) -> Instance:
    """Return a record as it would be published, with a stand-in for an address that is yet to be looked up."""
    return Instance(
        id=backend.name,
        incarnation="",
        address=backend.address or "127.0.0.1:1",
        cluster=backend.cluster,
        models=(),
        lifecycle=Lifecycle.STARTING,
    )

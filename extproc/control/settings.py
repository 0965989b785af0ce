"""What the operator chooses of the Envoy side."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from enum import StrEnum

from extproc.errors import ConfigError

HostPort = tuple[str, int]


class Shape(StrEnum):
    """How a decision names its destination. The service does the same for both: it is a matter of clusters."""

    POOL = "pool"  # a cluster a pool; its endpoints in order of preference ride in dynamic metadata
    INSTANCE = "instance"  # a cluster an instance, named by the header alone; no second choice on a retry


@dataclass(frozen=True, slots=True)
class Upstream:
    """An instance that Envoy may send to. `cluster` is the pool it belongs to."""

    id: str
    address: HostPort
    cluster: str = "pool"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoySettings:
    """Everything the generated configuration depends on."""

    upstreams: tuple[Upstream, ...]
    workers: tuple[HostPort, ...] = (("127.0.0.1", 9002),)  # one `extproc serve` process each
    listen: HostPort = ("0.0.0.0", 8080)
    admin: HostPort | None = ("127.0.0.1", 9901)
    shape: Shape = Shape.POOL
    cluster_header: str = "x-upstream-cluster"
    fail_closed: bool = False  # refuse what needs a decision and got none, instead of balancing it
    message_timeout_s: float = 0.25  # what a decision may take before Envoy goes on without it
    body_limit_bytes: int = 64 * 1024 * 1024
    stream_idle_timeout_s: float = 600.0  # silence between two chunks of an answer
    sse_usage: bool = True  # token usage of streamed answers, by a filter that Envoy calls work in progress

    def __post_init__(self) -> None:
        """Raise ConfigError for what Envoy would refuse or, worse, accept."""
        if not self.upstreams:
            raise ConfigError("no backend: name at least one, such as --backend gpu-0=10.0.0.1:8000")
        if not self.workers:
            raise ConfigError("no ext_proc worker: name at least one, such as --extproc 127.0.0.1:9002")
        ids = [backend.id for backend in self.upstreams]
        if len(set(ids)) < len(ids):
            raise ConfigError("two backends have the same id")
        if self.shape is Shape.POOL and not all(is_ip(backend.address[0]) for backend in self.upstreams):
            raise ConfigError(
                "a backend is given by host name, but Envoy's override_host policy takes ip:port alone; "
                "give its IP address, or choose --shape instance"
            )

    @property
    def pools(self) -> dict[str, tuple[Upstream, ...]]:
        """Backends by their pool, in the order given."""
        names = dict.fromkeys(backend.cluster for backend in self.upstreams)
        return {name: tuple(b for b in self.upstreams if b.cluster == name) for name in names}

    @property
    def default_pool(self) -> str:
        """The pool that takes what comes without a decision: the first one."""
        return self.upstreams[0].cluster


def is_ip(host: str) -> bool:
    """Whether a host is an address and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True

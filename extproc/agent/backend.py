"""What an operator says about one backend: where it is, and what its pages cannot tell."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

import msgspec

from extproc.adapters.engines.known import ENGINES, engine_from
from extproc.adapters.kv_events import KvEventsSettings
from extproc.addresses import http_url
from extproc.core.fleet.events import decode_instance, fault
from extproc.core.speeds.profile import KNOWN_HARDWARE
from extproc.core.values.instance import Capability, Instance, Lifecycle, Role
from extproc.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from extproc.adapters.engines.reading import Engine

_COUNTS = (
    "gpus",
    "tensor_parallel",
    "pipeline_parallel",
    "data_parallel",
    "expert_parallel",
    "nodes",
    "max_num_seqs",
    "step_tokens",
    "kv_bytes_per_token",
)
_RATES = ("network_limit_bytes_s", "kv_transfer_bytes_s")
_AMOUNTS = ("price_per_hour", "lora_load_s")


class KvEvents(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where an engine publishes its KV events; `{host}` in an endpoint stands for the host of its URL."""

    endpoint: str  # such as tcp://{host}:5557
    replay_endpoint: str = ""  # without one, whatever is lost costs all that is known of the cache
    bind: bool = False  # the engine connects to us
    topic: str = ""


class Backend(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine's HTTP server, as the agent reaches it and as routers shall see it."""

    url: str
    id: str = ""  # host:port of the URL if left out
    address: str = ""  # ip:port that Envoy connects to; that of the URL if left out
    cluster: str = "pool"
    engine: str | dict[str, Any] = "vllm"  # the name of one that is built in, or a mapping
    hardware: str = ""
    model: str = ""  # that it loads, for the time before it lists any
    storage: str = ""  # label of where its weights are loaded from: nvme, s3 …
    gpus: int | None = None
    interconnect: str = ""
    fabric: str = ""
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int | None = None  # what the engine tells if left out
    expert_parallel: int = 1
    nodes: int = 1
    precision: str = ""  # what the engine tells if left out
    zone: str = ""
    price_per_hour: float | None = None
    tags: dict[str, str] = {}
    network_limit_bytes_s: float | None = None
    role: Role = Role.BOTH
    kv_domain: str = ""
    kv_bytes_per_token: int | None = None
    kv_transfer_bytes_s: float | None = None
    lora_load_s: float | None = None  # to load an adapter; learned if left out
    max_num_seqs: int | None = None  # told by the engine, or learned, if left out
    step_tokens: int | None = None  # vLLM's --max-num-batched-tokens; told by the engine if left out
    capabilities: tuple[Capability, ...] | None = None  # all that it can do; left out, it counts as able to do all
    kv_events: KvEvents | None = None

    @property
    def name(self) -> str:
        """Return the id it is published under."""
        if self.id:
            return self.id
        name = urlsplit(self.url).netloc.rpartition("@")[2].strip("[").replace("]", "")
        return f"0{name}" if name.startswith(":") else name  # a name begins with a letter or digit: 0::1 is ::1

    @property
    def is_local(self) -> bool:
        """Tell whether it runs on the agent's own machine, as far as its URL says."""
        parts = http_url(self.url)
        host = (parts.hostname if parts else None) or ""
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"

    def reader(self) -> Engine:
        """Return what reads its pages. Raises ConfigError if there is no such engine or the mapping is wrong."""
        if not isinstance(self.engine, str):
            return engine_from(self.engine)
        if self.engine not in ENGINES:
            raise ConfigError(f"backend {self.name}: engine {self.engine!r} is not one of {', '.join(ENGINES)}")
        return ENGINES[self.engine]

    def kv_source(self) -> KvEventsSettings | None:
        """Return where its KV events come from, None if it tells none. Raises ConfigError."""
        given = self.kv_events
        if given is None:
            return None
        host = urlsplit(self.url).hostname or ""
        where = f"[{host}]" if ":" in host else host
        return KvEventsSettings(
            endpoint=given.endpoint.replace("{host}", where),
            replay_endpoint=given.replay_endpoint.replace("{host}", where) or None,
            bind=given.bind,
            topic=given.topic,
        )

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
            try:
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except OSError as error:
                raise OSError(f"cannot look up {host}: {(error.strerror or str(error)).lower()}") from error
            ip = str(min(found, key=lambda info: info[0] != socket.AF_INET)[4][0])
        return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def check(backends: Sequence[Backend]) -> None:
    """Raise ConfigError, naming the backend, if a list of backends cannot be published."""
    seen: set[str] = set()
    for backend in backends:
        if http_url(backend.url) is None:
            raise ConfigError(f"backend {backend.url!r} is not a URL such as http://127.0.0.1:8000")
        backend.reader()
        backend.kv_source()
        if why := fault(_sample(backend)) or _fault_in_numbers(backend) or _fault_to_routers(backend):
            raise ConfigError(f"backend {backend.url}: {why}")
        if backend.name in seen:
            raise ConfigError(f"two backends have the id {backend.name!r}: name them apart with `id`")
        seen.add(backend.name)
    if not backends:
        raise ConfigError("no backend is given: use --backend URL or --backends FILE")


def unknown_hardware(backends: Iterable[Backend]) -> list[str]:
    """Return one line for each hardware label that no profile is known for, naming those that are."""
    labels = dict.fromkeys(backend.hardware for backend in backends if backend.hardware)
    known = ", ".join(KNOWN_HARDWARE)
    return [
        f"hardware {label!r} has no profile, so its speed is guessed until it is learned; known: {known}"
        for label in labels
        if label not in KNOWN_HARDWARE
    ]


def _fault_in_numbers(backend: Backend) -> str:
    for name in _COUNTS:
        value = getattr(backend, name)
        if value is not None and value < 1:
            return f"{name} must be at least 1, not {value}"
    for name in _RATES:
        value = getattr(backend, name)
        if value is not None and not 0 < value < math.inf:
            return f"{name} must be more than 0, not {value}"
    if backend.role is not Role.BOTH and not backend.kv_domain:
        return f"role {backend.role} needs a kv_domain: the name of those that it hands KV blocks to, or takes from"
    for name in _AMOUNTS:
        value = getattr(backend, name)
        if value is not None and not 0 <= value < math.inf:
            return f"{name} must be 0 or more, not {value}"
    return ""


def _fault_to_routers(backend: Backend) -> str:
    """What routers would refuse its records for: numbers beyond what anybody has."""
    names = (*_COUNTS, *_RATES, *_AMOUNTS)
    told = {name: value for name in names if (value := getattr(backend, name)) is not None}
    try:
        decode_instance(msgspec.json.encode(msgspec.structs.replace(_sample(backend), **told)))
    except (ValueError, OverflowError) as error:
        return str(error)
    return ""


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

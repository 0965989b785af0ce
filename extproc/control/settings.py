"""What the operator chooses of the Envoy side."""

from __future__ import annotations

import ipaddress
import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from extproc.addresses import Endpoint, HostPort, UnixSocket
from extproc.control.scope import Scope
from extproc.core.pairs.hand_over import HEADERS, HandOver
from extproc.errors import ConfigError
from extproc.stream.held import MAX_HOLD_S

EXTPROC_CLUSTER = "extproc"
XDS_CLUSTER = "xds"
OWN_SUFFIX = "/own"  # of the name of an instance's cluster without its alternatives
MIN_BODY_BYTES = 64 * 1024  # also a connection's buffer
MAX_BODY_BYTES = 120 * 1024 * 1024  # with its framing, what the service takes in one gRPC message

MAX_HEADER_CHARS = 40  # Envoy takes no longer expressions for the headers that the service may set
MAX_RETRIES = 5  # Envoy takes no longer expressions for what counts them
_DURATIONS = (
    "message_timeout_s",
    "max_hold_s",
    "request_timeout_s",
    "stream_idle_timeout_s",
    "try_idle_timeout_s",
    "upstream_idle_s",
    "keepalive_s",
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")  # what may stand in a header value, a statistic and a file


class Shape(StrEnum):
    """How a decision names its destination. The service does the same for both: it is a matter of clusters."""

    POOL = "pool"  # a cluster a pool; its endpoints in order of preference ride in dynamic metadata
    INSTANCE = "instance"  # a cluster an instance, named by the header; a retry goes from it into its pool


class RetryOn(StrEnum):
    """What is tried on another instance, as long as no byte of an answer has reached the client."""

    REFUSED = "refused"  # what none has begun to compute: could not be connected to, 429, 503
    FAILED = "failed"  # and what one broke down at: its connection was lost, 500, 502, 504


class RequestBodies(StrEnum):
    """How Envoy shows the service a request's body."""

    BUFFERED = "buffered"  # whole, once it is there
    FULL_DUPLEX = "full-duplex"  # chunk by chunk; the service holds it until it has decided, and hands it back
    STREAMED = "streamed"  # chunk by chunk; Envoy holds it too


@dataclass(frozen=True, slots=True)
class Upstream:
    """An instance that Envoy may send to. `cluster` is the pool it belongs to."""

    id: str
    address: HostPort
    cluster: str = "pool"


@dataclass(frozen=True, slots=True, kw_only=True)
class XdsSource:
    """Where Envoy learns its clusters and endpoints while it runs, instead of having them written down."""

    servers: tuple[Endpoint, ...] = (("127.0.0.1", 18000),)  # one `extproc xds` process each
    delta: bool = True  # what changed, instead of the state of the world
    aggregated: bool = True  # one stream for all types, which keeps clusters before their endpoints
    node_id: str = "envoy"  # by which the control plane tells Envoys apart; `envoy --service-node` has precedence
    node_cluster: str = "extproc"
    directory: str = ""  # of files, as Envoy sees it, instead of the servers


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsToService:
    """How Envoy knows the service, and shows itself to it. Paths are Envoy's."""

    ca: str  # PEM file of who signs the service's certificate
    name: str = "extproc"  # that the certificate must be for, and that is asked for
    certificate: str = ""  # PEM file of Envoy's own, for mTLS
    key: str = ""
    sds_directory: str = ""  # holds files that tell Envoy of these; with it, changed files are read anew

    def __post_init__(self) -> None:
        """Raise ConfigError for what Envoy would refuse."""
        if bool(self.certificate) != bool(self.key):
            raise ConfigError("Envoy's own certificate needs both --extproc-tls-cert and --extproc-tls-key")
        for path in (self.ca, self.certificate, self.key, self.sds_directory):
            if path and not path.startswith("/"):
                raise ConfigError(f"'{path}' is not an absolute path, as Envoy needs it")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoySettings:
    """Everything the generated configuration depends on."""

    upstreams: tuple[Upstream, ...] = ()  # none with `xds`
    xds: XdsSource | None = None
    pool: str = "pool"  # with `xds`: the pool that takes what comes without a decision
    workers: tuple[Endpoint, ...] = (("127.0.0.1", 9002),)  # one `extproc serve` process each
    tls: TlsToService | None = None  # to the workers and the control plane; None: in the clear
    listen: HostPort = ("0.0.0.0", 8080)
    admin: HostPort | None = ("127.0.0.1", 9901)
    shape: Shape = Shape.POOL
    cluster_header: str = "x-upstream-cluster"
    body_mode: RequestBodies = RequestBodies.BUFFERED
    hand_over: HandOver = HandOver.NONE  # whose headers tell the two instances of a pair of each other
    fail_closed: bool = False  # refuse what needs a decision and got none, instead of balancing it
    fail_closed_at: tuple[Scope, ...] = ()  # the same for parts of the traffic
    retry_on: RetryOn = RetryOn.FAILED
    retries: int = 2  # at most; never more than a decision names alternatives
    retry_budget_percent: float = 50.0  # of a cluster's requests that may be retries at once
    try_idle_timeout_s: float | None = None  # silence of one instance, its queue included, that ends a try
    message_timeout_s: float = 0.25  # what a decision may take before Envoy goes on without it
    max_hold_s: float = MAX_HOLD_S  # for which the service may hold a request; Envoy waits if it is asked to
    request_timeout_s: float = 60.0  # for a client to send its whole request
    stream_idle_timeout_s: float = 600.0  # silence between two chunks of an answer
    keepalive_s: float = 30.0  # silence after which the other end of a connection has to show that it is there
    upstream_idle_s: float = 4.0  # of a connection to an instance: less than the 5 s after which uvicorn closes it
    body_limit_bytes: int = 32 * 1024 * 1024  # of a request, and of a JSON answer whose usage is read
    json_usage: bool = True  # token usage of answers in one piece
    sse_usage: bool = True  # token usage of streamed answers, by a filter that Envoy calls work in progress
    health_path: str = ""  # such as /health: Envoy's own check of the pools, for what comes without a decision
    max_connections: int | None = None  # clients' connections at once
    max_heap_bytes: int | None = None  # of Envoy; near it the largest buffers go first, then new requests get 503

    def __post_init__(self) -> None:
        """Raise ConfigError for what Envoy would refuse or, worse, accept."""
        if self.xds is not None:
            self._check_xds(self.xds)
        elif not self.upstreams:
            raise ConfigError("no backend: name at least one, such as --backend gpu-0=10.0.0.1:8000")
        if not self.workers:
            raise ConfigError("no ext_proc worker: name at least one, such as --extproc 127.0.0.1:9002")
        _check_alike(self.workers)
        self._check_names()
        for name in _DURATIONS:
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and 0.001 <= value <= 86_400):
                raise ConfigError(f"{name} is {value:g}, but must be between 0.001 and 86400 seconds")
        if not 0 <= self.retries <= MAX_RETRIES:
            raise ConfigError(f"retries is {self.retries}, but must be from 0 to {MAX_RETRIES}")
        if not 0.0 <= self.retry_budget_percent <= 100.0:
            raise ConfigError(f"retry_budget_percent is {self.retry_budget_percent:g}, but must be from 0 to 100")
        for name in ("max_connections", "max_heap_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}, but must be at least 1")
        if not MIN_BODY_BYTES <= self.body_limit_bytes <= MAX_BODY_BYTES:
            raise ConfigError(
                f"body_limit_bytes is {self.body_limit_bytes}, but must be from {MIN_BODY_BYTES} to {MAX_BODY_BYTES}"
            )
        if self.health_path and not self.health_path.startswith("/"):
            raise ConfigError(f"health_path is '{self.health_path}', but must begin with /")

    def _check_xds(self, xds: XdsSource) -> None:
        if self.upstreams:
            raise ConfigError("with xDS the instances come from the registry: name no backend")
        if not xds.servers and not xds.directory:
            raise ConfigError("no xDS server: name at least one, such as --xds 127.0.0.1:18000")
        if xds.servers and xds.directory:
            raise ConfigError("xDS comes from servers or from files, not from both")
        if xds.directory and not xds.directory.startswith("/"):
            raise ConfigError(f"'{xds.directory}' must be a whole path: Envoy may run somewhere else")
        _check_alike(xds.servers)
        if not (xds.node_id and xds.node_cluster):
            raise ConfigError("an Envoy that uses xDS needs a node id and a node cluster")

    def _check_names(self) -> None:
        ids = Counter(upstream.id for upstream in self.upstreams)
        for name in (*ids, *self.pools, self.default_pool):
            if not _NAME.fullmatch(name):
                raise ConfigError(f"'{name}' is no name for a backend or pool: letters, digits and . _ : - alone")
        if len(self.cluster_header) > MAX_HEADER_CHARS:
            raise ConfigError(f"'{self.cluster_header}' is longer than the {MAX_HEADER_CHARS} characters of a header")
        clusters = Counter([EXTPROC_CLUSTER, *self.pools])
        if self.xds is not None:
            clusters += Counter([XDS_CLUSTER, self.default_pool])
        if self.shape is Shape.INSTANCE:
            clusters += ids
        for counted, what in ((ids, "backends"), (clusters, "clusters")):
            twice = [name for name, count in counted.items() if count > 1]
            if twice:
                raise ConfigError(f"two {what} have the name '{twice[0]}'")

    @property
    def closed_scopes(self) -> tuple[Scope, ...]:
        """Where what needs a decision and got none is refused."""
        return (Scope(), *self.fail_closed_at) if self.fail_closed else self.fail_closed_at

    @property
    def pools(self) -> dict[str, tuple[Upstream, ...]]:
        """Upstreams by their pool, in the order given."""
        names = dict.fromkeys(upstream.cluster for upstream in self.upstreams)
        return {name: tuple(each for each in self.upstreams if each.cluster == name) for name in names}

    @property
    def partner_headers(self) -> tuple[str, ...]:
        """Headers beside the cluster's that decisions set and clients must not."""
        return HEADERS[self.hand_over]

    @property
    def default_pool(self) -> str:
        """The pool that takes what comes without a decision: the first one, or with xDS the one that is named."""
        return self.upstreams[0].cluster if self.upstreams else self.pool

    @property
    def named_hosts(self) -> tuple[str, ...]:
        """Hosts of upstreams that are given by name. Decisions name addresses; Envoy has to find them by DNS."""
        return tuple(upstream.address[0] for upstream in self.upstreams if not is_ip(upstream.address[0]))


def _check_alike(servers: Iterable[Endpoint]) -> None:
    """Raise ConfigError for a mixture of which Envoy looks up the names, and silently leaves out the sockets."""
    sockets = [each for each in servers if isinstance(each, UnixSocket)]
    names = [each[0] for each in servers if not isinstance(each, UnixSocket) and not is_ip(each[0])]
    if sockets and names:
        raise ConfigError(f"{sockets[0]} and {names[0]} cannot be of one cluster: name IP addresses beside sockets")


def is_ip(host: str) -> bool:
    """Whether a host is an address and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True

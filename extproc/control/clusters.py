"""Envoy clusters: the pools, the instances, and the ext_proc service itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from envoy_data_plane.envoy.config.cluster.v3 import (
    CircuitBreakers,
    CircuitBreakersThresholds,
    CircuitBreakersThresholdsRetryBudget,
    Cluster,
    ClusterCommonLbConfig,
    ClusterCustomClusterType,
    ClusterDiscoveryType,
    ClusterDnsLookupFamily,
    ClusterEdsClusterConfig,
    ClusterLbPolicy,
    LoadBalancingPolicy,
    LoadBalancingPolicyPolicy,
    OutlierDetection,
    UpstreamConnectionOptions,
)
from envoy_data_plane.envoy.config.core.v3 import (
    Address,
    ConfigSource,
    HealthCheck,
    HealthCheckGrpcHealthCheck,
    HealthCheckHttpHealthCheck,
    Http1ProtocolOptions,
    Http2ProtocolOptions,
    KeepaliveSettings,
    Pipe,
    SocketAddress,
    TcpKeepalive,
    TypedExtensionConfig,
)
from envoy_data_plane.envoy.config.core.v3 import HttpProtocolOptions as CommonHttpOptions
from envoy_data_plane.envoy.config.endpoint.v3 import ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints
from envoy_data_plane.envoy.extensions.clusters.composite.v3 import ClusterConfig as CompositeConfig
from envoy_data_plane.envoy.extensions.clusters.composite.v3 import ClusterConfigClusterEntry
from envoy_data_plane.envoy.extensions.load_balancing_policies.least_request.v3 import LeastRequest
from envoy_data_plane.envoy.extensions.load_balancing_policies.override_host.v3 import (
    OverrideHost,
    OverrideHostOverrideHostSource,
)
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import (
    HttpProtocolOptions,
    HttpProtocolOptionsExplicitHttpConfig,
)
from envoy_data_plane.envoy.type.metadata.v3 import MetadataKey, MetadataKeyPathSegment
from envoy_data_plane.envoy.type.v3 import Percent
from envoy_data_plane.google.protobuf import Any as AnyMessage

from extproc.addresses import Endpoint as ServiceEndpoint
from extproc.addresses import HostPort, UnixSocket
from extproc.control.service_tls import transport_socket
from extproc.control.settings import (
    EXTPROC_CLUSTER,
    XDS_CLUSTER,
    EnvoySettings,
    RequestBodies,
    Shape,
    TlsToService,
    is_ip,
)
from extproc.stream.messages import ALTERNATIVES_KEY, ENDPOINTS_HEADER, ENDPOINTS_NAMESPACE

# Where a cluster's endpoints are: written down in it, or published apart from it.
Endpoints = Sequence[ServiceEndpoint] | ConfigSource

# Envoy's default of 1,024 requests a cluster is below what a fleet streams at once, and cuts ext_proc streams too.
_MANY = 100_000
_RETRIES_ALWAYS = 20  # at once, so that a small fleet's budget is not rounded to nothing
_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def clusters(settings: EnvoySettings) -> list[Cluster]:
    """All clusters of the bootstrap. In the shape `instance` the pools remain, for what comes without a decision."""
    result = [
        pool_cluster(name, [upstream.address for upstream in members], settings)
        for name, members in settings.pools.items()
    ]
    if settings.shape is Shape.INSTANCE:
        for upstream in settings.upstreams:
            result += instance_clusters(upstream.id, upstream.address, upstream.cluster, settings)
    result.append(extproc_cluster(settings.workers, settings.tls, settings.body_mode))
    if settings.xds is not None and settings.xds.servers:
        result.append(xds_cluster(settings.xds.servers, settings.tls))
    return result


def xds_cluster(servers: Iterable[ServiceEndpoint], tls: TlsToService | None = None) -> Cluster:
    """The control plane. Without keepalive a frozen one, or one behind a dead link, would be waited for in silence."""
    cluster = _cluster(XDS_CLUSTER, list(servers), _grpc_http(), connect_timeout_s=1.0)
    cluster.common_lb_config = _no_panic()
    if tls is not None:
        cluster.transport_socket = transport_socket(tls)
    return cluster


def extproc_cluster(
    workers: Iterable[ServiceEndpoint],
    tls: TlsToService | None = None,
    body_mode: RequestBodies = RequestBodies.BUFFERED,
) -> Cluster:
    """The ext_proc and access-log service, one endpoint a worker process.

    The health check runs without traffic too: its default of 60 s would keep a dead worker "healthy" that long.
    """
    half_second = timedelta(seconds=0.5)
    check = HealthCheck(
        timeout=timedelta(seconds=1),  # a worker that reads very large bodies may be late and is not dead
        interval=half_second,
        no_traffic_interval=half_second,
        unhealthy_threshold=1,
        healthy_threshold=1,
        grpc_health_check=HealthCheckGrpcHealthCheck(),
    )
    cluster = _cluster(EXTPROC_CLUSTER, list(workers), _grpc_http(), connect_timeout_s=0.25)
    cluster.health_checks = [check]
    # In a burst of thousands a worker answers the check late. If none were asked then, all would go undecided; a dead
    # one refuses at once, and a frozen one costs the message timeout. FULL_DUPLEX_STREAMED has no such timeout: there a
    # frozen one would hold each request for as long as its client waits.
    cluster.common_lb_config = _no_panic() if body_mode is RequestBodies.FULL_DUPLEX else _last_resort()
    if tls is not None:
        cluster.transport_socket = transport_socket(tls)
    return cluster


def pool_cluster(name: str, endpoints: Endpoints, settings: EnvoySettings) -> Cluster:
    """Endpoints in the order that the decision gives; least request where there is none.

    In the shape `instance` the first of them has a cluster of its own, and the pool only its alternatives.
    """
    key = ALTERNATIVES_KEY if settings.shape is Shape.INSTANCE else ENDPOINTS_HEADER
    cluster = _engines(name, endpoints, settings)
    cluster.load_balancing_policy = _policy(
        "envoy.load_balancing_policies.override_host",
        OverrideHost(
            override_host_sources=[OverrideHostOverrideHostSource(metadata=_lb_metadata(key))],
            selected_host_key=_lb_metadata("served"),
            fallback_policy=_policy("envoy.load_balancing_policies.least_request", LeastRequest()),
        ),
    )
    cluster.outlier_detection = _unreachable_hosts()
    if settings.health_path:
        cluster.health_checks = [_http_check(settings.health_path)]
        cluster.ignore_health_on_host_removal = True  # else what the registry removed would stay until a check fails
    cluster.common_lb_config = _last_resort()
    return cluster


def instance_clusters(name: str, address: HostPort, pool: str, settings: EnvoySettings) -> list[Cluster]:
    """One instance, and the cluster that decisions name: first the instance, then the pool for its alternatives."""
    if not settings.retries:
        return [instance_cluster(name, address, settings)]
    return [instance_cluster(own_name(name), address, settings), failover_cluster(name, pool, settings)]


def own_name(name: str) -> str:
    """The cluster of an instance alone. No id has a slash, so that it is nobody else's name."""
    return f"{name}/own"


def instance_cluster(name: str, address: HostPort, settings: EnvoySettings) -> Cluster:
    """One instance alone. It has no health of its own in Envoy: the decision knows it."""
    cluster = _engines(name, [address], settings)
    cluster.common_lb_config = _no_panic()
    return cluster


def failover_cluster(name: str, pool: str, settings: EnvoySettings) -> Cluster:
    """An instance for the first try, its pool for each further one.

    Not an aggregate cluster: that forgets the decision's metadata, and may ask one instance twice.
    """
    tries = [ClusterConfigClusterEntry(name=each) for each in (own_name(name), *[pool] * settings.retries)]
    return Cluster(
        name=name,
        connect_timeout=timedelta(seconds=1),
        lb_policy=ClusterLbPolicy.CLUSTER_PROVIDED,
        cluster_type=ClusterCustomClusterType(
            name="envoy.clusters.composite", typed_config=AnyMessage.pack(CompositeConfig(clusters=tries))
        ),
        circuit_breakers=_wide_open(settings.retry_budget_percent),
    )


def _unreachable_hosts() -> OutlierDetection:
    """Leave out what cannot be connected to or resets connections.

    An answer is never held against an instance: 500 may be one odd prompt, and 503 is how a full engine asks for
    less, which the router's own cool-down weighs.
    """
    return OutlierDetection(
        split_external_local_origin_errors=True,
        consecutive_local_origin_failure=3,
        enforcing_consecutive_local_origin_failure=100,
        enforcing_consecutive_5xx=0,
        enforcing_consecutive_gateway_failure=0,
        enforcing_success_rate=0,
        enforcing_local_origin_success_rate=0,
        interval=timedelta(seconds=1),
        base_ejection_time=timedelta(seconds=5),
        max_ejection_percent=50,
    )


def _http_check(path: str) -> HealthCheck:
    """Unhurried: an engine's event loop may be late while a long prompt is computed."""
    every = timedelta(seconds=5)
    return HealthCheck(
        timeout=every,
        interval=every,
        no_traffic_interval=every,
        unhealthy_threshold=2,
        healthy_threshold=1,
        http_health_check=HealthCheckHttpHealthCheck(path=path),
    )


def _engine_http(settings: EnvoySettings) -> HttpProtocolOptions:
    """HTTP/1.1, on connections that Envoy closes before the engine does: a request sent into a close is lost."""
    return HttpProtocolOptions(
        common_http_protocol_options=CommonHttpOptions(idle_timeout=timedelta(seconds=settings.upstream_idle_s)),
        explicit_http_config=HttpProtocolOptionsExplicitHttpConfig(http_protocol_options=Http1ProtocolOptions()),
    )


def _grpc_http() -> HttpProtocolOptions:
    """HTTP/2, on connections whose other end must show that it lives."""
    keepalive = KeepaliveSettings(interval=timedelta(seconds=5), timeout=timedelta(seconds=1))
    return HttpProtocolOptions(
        explicit_http_config=HttpProtocolOptionsExplicitHttpConfig(
            http2_protocol_options=Http2ProtocolOptions(connection_keepalive=keepalive)
        )
    )


def _engines(name: str, endpoints: Endpoints, settings: EnvoySettings) -> Cluster:
    cluster = _cluster(name, endpoints, _engine_http(settings))
    cluster.circuit_breakers = _wide_open(settings.retry_budget_percent)
    # A host that vanished says nothing; one that computes for long says nothing either, but its kernel does.
    cluster.upstream_connection_options = UpstreamConnectionOptions(tcp_keepalive=tcp_keepalive(settings))
    return cluster


def _cluster(name: str, endpoints: Endpoints, http: HttpProtocolOptions, connect_timeout_s: float = 1.0) -> Cluster:
    cluster = Cluster(
        name=name,
        connect_timeout=timedelta(seconds=connect_timeout_s),
        circuit_breakers=_wide_open(),
        typed_extension_protocol_options={_HTTP_OPTIONS: AnyMessage.pack(http)},
    )
    if isinstance(endpoints, ConfigSource):
        cluster.type = ClusterDiscoveryType.EDS
        cluster.eds_cluster_config = ClusterEdsClusterConfig(eds_config=endpoints)
        return cluster
    cluster.type = ClusterDiscoveryType.STATIC
    if not all(isinstance(address, UnixSocket) or is_ip(address[0]) for address in endpoints):
        cluster.type = ClusterDiscoveryType.STRICT_DNS
        # As the agent resolves a backend's name: a decision's address has to be among those that Envoy found.
        cluster.dns_lookup_family = ClusterDnsLookupFamily.V4_PREFERRED
    hosts = [LbEndpoint(endpoint=Endpoint(address=service_address(address))) for address in endpoints]
    cluster.load_assignment = ClusterLoadAssignment(
        cluster_name=name, endpoints=[LocalityLbEndpoints(lb_endpoints=hosts)]
    )
    return cluster


def _wide_open(retry_percent: float = 50.0) -> CircuitBreakers:
    """Limits that never bite before the router's own, with retries bounded by a budget instead of a count.

    Envoy lets `min_retry_concurrency` retries through in any case, and a retry counts until its answer begins.
    """
    budget = CircuitBreakersThresholdsRetryBudget(
        budget_percent=Percent(value=retry_percent), min_retry_concurrency=_RETRIES_ALWAYS if retry_percent else 0
    )
    return CircuitBreakers(
        thresholds=[
            CircuitBreakersThresholds(
                max_connections=_MANY, max_pending_requests=_MANY, max_requests=_MANY, retry_budget=budget
            )
        ]
    )


def tcp_keepalive(settings: EnvoySettings) -> TcpKeepalive:
    """Questions to a silent other end, which its kernel answers however busy the program is. In whole seconds."""
    return TcpKeepalive(
        keepalive_time=max(1, round(settings.keepalive_s)),
        keepalive_interval=max(1, round(settings.keepalive_s / 3)),
        keepalive_probes=3,
    )


def _no_panic() -> ClusterCommonLbConfig:
    """With few endpoints, all ill, Envoy would send to them nevertheless; it shall fail at once instead."""
    return ClusterCommonLbConfig(healthy_panic_threshold=Percent(value=0.0))


def _last_resort() -> ClusterCommonLbConfig:
    """Only when not one endpoint is well are the others tried. Envoy's 50 % would mix them in earlier."""
    return ClusterCommonLbConfig(healthy_panic_threshold=Percent(value=1.0))


def _policy(name: str, message: OverrideHost | LeastRequest) -> LoadBalancingPolicy:
    extension = TypedExtensionConfig(name=name, typed_config=AnyMessage.pack(message))
    return LoadBalancingPolicy(policies=[LoadBalancingPolicyPolicy(typed_extension_config=extension)])


def _lb_metadata(key: str) -> MetadataKey:
    return MetadataKey(key=ENDPOINTS_NAMESPACE, path=[MetadataKeyPathSegment(key=key)])


def service_address(endpoint: ServiceEndpoint) -> Address:
    """A TCP address or a Unix socket as Envoy writes them."""
    return Address(pipe=Pipe(path=str(endpoint.path))) if isinstance(endpoint, UnixSocket) else socket_address(endpoint)


def socket_address(address: HostPort) -> Address:
    """A TCP address as Envoy writes it."""
    host, port = address
    return Address(socket_address=SocketAddress(address=host, port_value=port))

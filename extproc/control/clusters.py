"""Envoy clusters: the pools, the instances, and the ext_proc service itself."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from envoy_data_plane.envoy.config.cluster.v3 import (
    CircuitBreakers,
    CircuitBreakersThresholds,
    CircuitBreakersThresholdsRetryBudget,
    Cluster,
    ClusterCommonLbConfig,
    ClusterDiscoveryType,
    LoadBalancingPolicy,
    LoadBalancingPolicyPolicy,
    OutlierDetection,
)
from envoy_data_plane.envoy.config.core.v3 import (
    Address,
    HealthCheck,
    HealthCheckGrpcHealthCheck,
    Http2ProtocolOptions,
    KeepaliveSettings,
    SocketAddress,
    TypedExtensionConfig,
)
from envoy_data_plane.envoy.config.endpoint.v3 import ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints
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

from extproc.control.settings import EnvoySettings, HostPort, Shape, is_ip

EXTPROC_CLUSTER = "extproc"

# Envoy's default of 1,024 requests a cluster is below what a fleet streams at once, and cuts ext_proc streams too.
_MANY = 100_000


def clusters(settings: EnvoySettings) -> list[Cluster]:
    """All clusters of the bootstrap. In the shape `instance` the pools remain, for what comes without a decision."""
    pools = settings.pools
    result = [_pool(name, [backend.address for backend in members]) for name, members in pools.items()]
    if settings.shape is Shape.INSTANCE:
        result += [_instance(backend.id, backend.address) for backend in settings.upstreams]
    return [*result, extproc_cluster(settings.workers)]


def extproc_cluster(workers: Iterable[HostPort]) -> Cluster:
    """The ext_proc and access-log service, one endpoint a worker process.

    The health check runs without traffic too: its default of 60 s would keep a dead worker "healthy" that long.
    """
    half_second = timedelta(seconds=0.5)
    check = HealthCheck(
        timeout=half_second,
        interval=half_second,
        no_traffic_interval=half_second,
        unhealthy_threshold=1,
        healthy_threshold=1,
        grpc_health_check=HealthCheckGrpcHealthCheck(),
    )
    keepalive = KeepaliveSettings(interval=timedelta(seconds=5), timeout=timedelta(seconds=1))
    http2 = HttpProtocolOptions(
        explicit_http_config=HttpProtocolOptionsExplicitHttpConfig(
            http2_protocol_options=Http2ProtocolOptions(connection_keepalive=keepalive)
        )
    )
    name = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    cluster = _cluster(EXTPROC_CLUSTER, list(workers), connect_timeout_s=0.25)
    cluster.typed_extension_protocol_options = {name: AnyMessage.pack(http2)}
    cluster.health_checks = [check]
    cluster.common_lb_config = _no_panic()
    return cluster


def _pool(name: str, addresses: list[HostPort]) -> Cluster:
    """Endpoints in the order that the decision gives; least request where there is none."""
    cluster = _cluster(name, addresses)
    cluster.load_balancing_policy = _policy(
        "envoy.load_balancing_policies.override_host",
        OverrideHost(
            override_host_sources=[
                OverrideHostOverrideHostSource(metadata=_lb_metadata("x-gateway-destination-endpoint"))
            ],
            selected_host_key=_lb_metadata("served"),
            fallback_policy=_policy("envoy.load_balancing_policies.least_request", LeastRequest()),
        ),
    )
    # Gateway failures alone: an engine that answers 500 to one odd prompt is not ill.
    cluster.outlier_detection = OutlierDetection(
        consecutive_5xx=0,
        consecutive_gateway_failure=3,
        enforcing_consecutive_gateway_failure=100,
        interval=timedelta(seconds=1),
        base_ejection_time=timedelta(seconds=5),
        max_ejection_percent=50,
    )
    return cluster


def _instance(name: str, address: HostPort) -> Cluster:
    cluster = _cluster(name, [address])
    cluster.common_lb_config = _no_panic()
    return cluster


def _cluster(name: str, addresses: list[HostPort], connect_timeout_s: float = 1.0) -> Cluster:
    static = all(is_ip(host) for host, _ in addresses)
    hosts = [LbEndpoint(endpoint=Endpoint(address=socket_address(address))) for address in addresses]
    return Cluster(
        name=name,
        type=ClusterDiscoveryType.STATIC if static else ClusterDiscoveryType.STRICT_DNS,
        connect_timeout=timedelta(seconds=connect_timeout_s),
        circuit_breakers=_wide_open(),
        load_assignment=ClusterLoadAssignment(cluster_name=name, endpoints=[LocalityLbEndpoints(lb_endpoints=hosts)]),
    )


def _wide_open() -> CircuitBreakers:
    """Limits that never bite before the router's own, with retries bounded by a budget instead of a count."""
    budget = CircuitBreakersThresholdsRetryBudget(budget_percent=Percent(value=50.0), min_retry_concurrency=50)
    return CircuitBreakers(
        thresholds=[
            CircuitBreakersThresholds(
                max_connections=_MANY, max_pending_requests=_MANY, max_requests=_MANY, retry_budget=budget
            )
        ]
    )


def _no_panic() -> ClusterCommonLbConfig:
    """With few endpoints, all ill, Envoy would send to them nevertheless; it shall fail at once instead."""
    return ClusterCommonLbConfig(healthy_panic_threshold=Percent(value=0.0))


def _policy(name: str, message: OverrideHost | LeastRequest) -> LoadBalancingPolicy:
    extension = TypedExtensionConfig(name=name, typed_config=AnyMessage.pack(message))
    return LoadBalancingPolicy(policies=[LoadBalancingPolicyPolicy(typed_extension_config=extension)])


def _lb_metadata(key: str) -> MetadataKey:
    return MetadataKey(key="envoy.lb", path=[MetadataKeyPathSegment(key=key)])


def socket_address(address: HostPort) -> Address:
    """A TCP address as Envoy writes it."""
    host, port = address
    return Address(socket_address=SocketAddress(address=host, port_value=port))

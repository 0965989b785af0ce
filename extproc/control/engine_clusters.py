"""Envoy clusters of engines: the pools, and an instance of its own with its pool behind it."""

from __future__ import annotations

from datetime import timedelta

from envoy_data_plane.envoy.config.cluster.v3 import (
    Cluster,
    ClusterCustomClusterType,
    ClusterLbPolicy,
    LoadBalancingPolicy,
    LoadBalancingPolicyPolicy,
    OutlierDetection,
    UpstreamConnectionOptions,
)
from envoy_data_plane.envoy.config.core.v3 import (
    HealthCheck,
    HealthCheckHttpHealthCheck,
    Http1ProtocolOptions,
    TypedExtensionConfig,
)
from envoy_data_plane.envoy.config.core.v3 import HttpProtocolOptions as CommonHttpOptions
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
from envoy_data_plane.google.protobuf import Any as AnyMessage

from extproc.addresses import HostPort
from extproc.control.cluster_parts import Endpoints, last_resort, made_cluster, no_panic, tcp_keepalive, wide_open
from extproc.control.settings import OWN_SUFFIX, EnvoySettings, Shape
from extproc.stream.messages import ALTERNATIVES_KEY, ENDPOINTS_HEADER, ENDPOINTS_NAMESPACE


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
    cluster.common_lb_config = last_resort()
    return cluster


def instance_clusters(name: str, address: HostPort, pool: str, settings: EnvoySettings) -> list[Cluster]:
    """One instance, and the cluster that decisions name: first the instance, then the pool for its alternatives."""
    if not settings.retries:
        return [instance_cluster(name, address, settings)]
    return [instance_cluster(own_name(name), address, settings), failover_cluster(name, pool, settings)]


def own_name(name: str) -> str:
    """The cluster of an instance alone. No other cluster may have a name that ends like that."""
    return f"{name}{OWN_SUFFIX}"


def instance_cluster(name: str, address: HostPort, settings: EnvoySettings) -> Cluster:
    """One instance alone. It has no health of its own in Envoy: the decision knows it."""
    cluster = _engines(name, [address], settings)
    cluster.common_lb_config = no_panic()
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
        circuit_breakers=wide_open(settings.retry_budget_percent),
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


def _engines(name: str, endpoints: Endpoints, settings: EnvoySettings) -> Cluster:
    cluster = made_cluster(name, endpoints, _engine_http(settings))
    cluster.circuit_breakers = wide_open(settings.retry_budget_percent)
    # A host that vanished says nothing; one that computes for long says nothing either, but its kernel does.
    cluster.upstream_connection_options = UpstreamConnectionOptions(tcp_keepalive=tcp_keepalive(settings))
    return cluster


def _policy(name: str, message: OverrideHost | LeastRequest) -> LoadBalancingPolicy:
    extension = TypedExtensionConfig(name=name, typed_config=AnyMessage.pack(message))
    return LoadBalancingPolicy(policies=[LoadBalancingPolicyPolicy(typed_extension_config=extension)])


def _lb_metadata(key: str) -> MetadataKey:
    return MetadataKey(key=ENDPOINTS_NAMESPACE, path=[MetadataKeyPathSegment(key=key)])

"""What Envoy clusters of every kind are made of: endpoints, limits, and whom to ask when all are ill."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from envoy_data_plane.envoy.config.cluster.v3 import (
    CircuitBreakers,
    CircuitBreakersThresholds,
    CircuitBreakersThresholdsRetryBudget,
    Cluster,
    ClusterCommonLbConfig,
    ClusterDiscoveryType,
    ClusterDnsLookupFamily,
    ClusterEdsClusterConfig,
)
from envoy_data_plane.envoy.config.core.v3 import ConfigSource, TcpKeepalive
from envoy_data_plane.envoy.config.endpoint.v3 import ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import HttpProtocolOptions
from envoy_data_plane.envoy.type.v3 import Percent
from envoy_data_plane.google.protobuf import Any as AnyMessage

from extproc.addresses import Endpoint as ServiceEndpoint
from extproc.addresses import UnixSocket
from extproc.control.envoy_addresses import service_address
from extproc.control.settings import EnvoySettings, is_ip

# Where a cluster's endpoints are: written down in it, or published apart from it.
Endpoints = Sequence[ServiceEndpoint] | ConfigSource

# Envoy's default of 1,024 requests a cluster is below what a fleet streams at once, and cuts ext_proc streams too.
_MANY = 100_000
_RETRIES_ALWAYS = 20  # at once, so that a small fleet's budget is not rounded to nothing
_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def made_cluster(name: str, endpoints: Endpoints, http: HttpProtocolOptions, connect_timeout_s: float = 1.0) -> Cluster:
    """A cluster by its name, whose endpoints are asked as `http` says; within limits that never bite."""
    cluster = Cluster(
        name=name,
        connect_timeout=timedelta(seconds=connect_timeout_s),
        circuit_breakers=wide_open(),
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


def wide_open(retry_percent: float = 50.0) -> CircuitBreakers:
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


def no_panic() -> ClusterCommonLbConfig:
    """With few endpoints, all ill, Envoy would send to them nevertheless; it shall fail at once instead."""
    return ClusterCommonLbConfig(healthy_panic_threshold=Percent(value=0.0))


def last_resort() -> ClusterCommonLbConfig:
    """Only when not one endpoint is well are the others tried. Envoy's 50 % would mix them in earlier."""
    return ClusterCommonLbConfig(healthy_panic_threshold=Percent(value=1.0))

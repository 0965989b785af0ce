"""An Envoy without extproc that balances round robin: what the router is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from envoy_data_plane.envoy.config.bootstrap.v3 import Bootstrap, BootstrapStaticResources
from envoy_data_plane.envoy.config.cluster.v3 import Cluster, ClusterDiscoveryType, ClusterLbPolicy
from envoy_data_plane.envoy.config.core.v3 import Address, SocketAddress
from envoy_data_plane.envoy.config.endpoint.v3 import ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints
from envoy_data_plane.envoy.config.listener.v3 import Filter, FilterChain, Listener
from envoy_data_plane.envoy.config.route.v3 import Route, RouteAction, RouteConfiguration, RouteMatch, VirtualHost
from envoy_data_plane.envoy.extensions.filters.http.router.v3 import Router
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
    HttpFilter,
)
from envoy_data_plane.google.protobuf import Any as AnyMessage

from extproc.control.render import render

_CLUSTER = "instances"


def round_robin(listen: tuple[str, int], endpoints: Sequence[tuple[str, int]]) -> dict[str, Any]:
    """Bootstrap, as plain values, of an Envoy that sends each request to the next of `endpoints` (ip, port)."""
    route = Route(match=RouteMatch(prefix="/"), route=RouteAction(cluster=_CLUSTER, timeout=timedelta(0)))
    manager = HttpConnectionManager(
        stat_prefix="plain",
        route_config=RouteConfiguration(
            name="plain", virtual_hosts=[VirtualHost(name="all", domains=["*"], routes=[route])]
        ),
        http_filters=[HttpFilter(name="envoy.filters.http.router", typed_config=AnyMessage.pack(Router()))],
    )
    network_filter = Filter(name="envoy.filters.network.http_connection_manager", typed_config=AnyMessage.pack(manager))
    listener = Listener(name="plain", address=_address(listen), filter_chains=[FilterChain(filters=[network_filter])])
    hosts = [LbEndpoint(endpoint=Endpoint(address=_address(endpoint))) for endpoint in endpoints]
    cluster = Cluster(
        name=_CLUSTER,
        type=ClusterDiscoveryType.STATIC,
        lb_policy=ClusterLbPolicy.ROUND_ROBIN,
        connect_timeout=timedelta(seconds=1),
        load_assignment=ClusterLoadAssignment(
            cluster_name=_CLUSTER, endpoints=[LocalityLbEndpoints(lb_endpoints=hosts)]
        ),
    )
    resources = BootstrapStaticResources(listeners=[listener], clusters=[cluster])
    return render(Bootstrap(static_resources=resources))


def _address(host_port: tuple[str, int]) -> Address:
    host, port = host_port
    return Address(socket_address=SocketAddress(address=host, port_value=port))

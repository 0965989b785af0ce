"""Envoy clusters of our own services: ext_proc with the access log, and the control plane."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from envoy_data_plane.envoy.config.cluster.v3 import Cluster
from envoy_data_plane.envoy.config.core.v3 import (
    HealthCheck,
    HealthCheckGrpcHealthCheck,
    Http2ProtocolOptions,
    KeepaliveSettings,
)
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import (
    HttpProtocolOptions,
    HttpProtocolOptionsExplicitHttpConfig,
)

from extproc.addresses import Endpoint as ServiceEndpoint
from extproc.control.cluster_parts import last_resort, made_cluster, no_panic
from extproc.control.service_tls import transport_socket
from extproc.control.settings import EXTPROC_CLUSTER, XDS_CLUSTER, RequestBodies, TlsToService


def xds_cluster(servers: Iterable[ServiceEndpoint], tls: TlsToService | None = None) -> Cluster:
    """The control plane. Without keepalive a frozen one, or one behind a dead link, would be waited for in silence."""
    cluster = made_cluster(XDS_CLUSTER, list(servers), _grpc_http(), connect_timeout_s=1.0)
    cluster.common_lb_config = no_panic()
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
    cluster = made_cluster(EXTPROC_CLUSTER, list(workers), _grpc_http(), connect_timeout_s=0.25)
    cluster.health_checks = [check]
    # In a burst of thousands a worker answers the check late. If none were asked then, all would go undecided; a dead
    # one refuses at once, and a frozen one costs the message timeout. Not so in full duplex: once asked, Envoy cannot
    # go on without an answer, so that a dead one asked would be a 500 for as long as it is dead.
    full_duplex = body_mode is RequestBodies.FULL_DUPLEX
    cluster.common_lb_config = no_panic() if full_duplex else last_resort()
    if tls is not None:
        cluster.transport_socket = transport_socket(tls)
    return cluster


# Each piece of a body is a frame in full duplex and streamed. Of a client that writes single bytes Envoy's default of
# 10,000 are waiting before a buffer is full, and it would end the connection with everybody's requests on it.
_MAX_OUTBOUND_FRAMES = 1_000_000


def _grpc_http() -> HttpProtocolOptions:
    """HTTP/2, on connections whose other end must show that it lives."""
    keepalive = KeepaliveSettings(interval=timedelta(seconds=5), timeout=timedelta(seconds=1))
    return HttpProtocolOptions(
        explicit_http_config=HttpProtocolOptionsExplicitHttpConfig(
            http2_protocol_options=Http2ProtocolOptions(
                connection_keepalive=keepalive, max_outbound_frames=_MAX_OUTBOUND_FRAMES
            )
        )
    )

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


# Frames that may wait to be written: beyond them Envoy takes the other end for hostile, and ends the connection with
# everybody's requests on it. Our services are not, and clients must not be able to bring it about: who writes a body in
# single bytes has each sent as a frame (full duplex, streamed) until a buffer is full, and when a thousand requests end
# at once, as those of one HTTP/2 connection do with it, a thousand streams are reset. By default 10,000 and 1,000.
_MAX_WAITING_FRAMES = 1_000_000


def _grpc_http() -> HttpProtocolOptions:
    """HTTP/2, on connections whose other end must show that it lives."""
    keepalive = KeepaliveSettings(interval=timedelta(seconds=5), timeout=timedelta(seconds=1))
    return HttpProtocolOptions(
        explicit_http_config=HttpProtocolOptionsExplicitHttpConfig(
            http2_protocol_options=Http2ProtocolOptions(
                connection_keepalive=keepalive,
                max_outbound_frames=_MAX_WAITING_FRAMES,
                max_outbound_control_frames=_MAX_WAITING_FRAMES,
            )
        )
    )

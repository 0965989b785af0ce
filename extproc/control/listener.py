"""The listener: HTTP connections, header stripping, access log."""

from __future__ import annotations

from datetime import timedelta

from betterproto2 import Message
from envoy_data_plane.envoy.config.accesslog.v3 import AccessLog
from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutation as OneMutation
from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutationRemoveOnMatch
from envoy_data_plane.envoy.config.core.v3 import (
    ApiVersion,
    Http1ProtocolOptions,
    Http2ProtocolOptions,
    KeepaliveSettings,
    TypedExtensionConfig,
)
from envoy_data_plane.envoy.config.listener.v3 import Filter, FilterChain, Listener
from envoy_data_plane.envoy.extensions.access_loggers.grpc.v3 import CommonGrpcAccessLogConfig, HttpGrpcAccessLogConfig
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
    HttpConnectionManagerUpgradeConfig,
)
from envoy_data_plane.envoy.extensions.http.early_header_mutation.header_mutation.v3 import HeaderMutation
from envoy_data_plane.envoy.type.matcher.v3 import StringMatcher
from envoy_data_plane.envoy.type.tracing.v3 import CustomTag
from envoy_data_plane.google.protobuf import Any as AnyMessage

from extproc.control.cluster_parts import tcp_keepalive
from extproc.control.envoy_addresses import socket_address
from extproc.control.filters import filters, grpc_service
from extproc.control.local_replies import local_replies
from extproc.control.routes import route_configuration
from extproc.control.settings import EnvoySettings, RequestBodies

# Points in time that Envoy can tell apart: request received, sent upstream, answer's first byte, its body's first byte.
_DURATIONS = {
    "ttft_us": "DS_RX_BEG:US_RX_BODY_BEG",  # engines send headers before the first token, so the body counts
    "headers_us": "DS_RX_BEG:US_RX_BEG",
    "dispatched_us": "DS_RX_BEG:US_TX_BEG",  # what routing cost
}
# What clients' headers must not begin with; Envoy keeps names in lower case.
_STRIPPED = (
    "x-extproc-",
    "x-gateway-destination-endpoint",  # with -subset and -served: the endpoint picker protocol
    "x-envoy-",  # Envoy believes these of clients whose x-forwarded-for looks internal: retries, timeouts, destinations
)
# Of one connection. Bodies have a limit of their own, which Envoy heeds only where it is not the lower one.
_BUFFER_BYTES = 1024 * 1024
_HTTP2_WINDOW_BYTES = 16 * 1024 * 1024  # of a stream, Envoy's default; the same holds for it


def listener(settings: EnvoySettings) -> Listener:
    """The listener that clients connect to."""
    chain = FilterChain(
        filters=[
            Filter(
                name="envoy.filters.network.http_connection_manager",
                typed_config=AnyMessage.pack(connection_manager(settings)),
            )
        ]
    )
    address = socket_address(settings.listen)
    if address.socket_address is not None and settings.listen[0] == "::":
        address.socket_address.ipv4_compat = True  # all interfaces of both families, as elsewhere
    return Listener(
        name="llm",
        address=address,
        filter_chains=[chain],
        per_connection_buffer_limit_bytes=_at_most(_BUFFER_BYTES, settings),
        tcp_keepalive=tcp_keepalive(settings),
    )


def _at_most(usual_bytes: int, settings: EnvoySettings) -> int:
    """What Envoy may hold of a connection or a stream: as usual, unless bodies have no other limit.

    Where calls without a decision are refused, the route before the decision is the refusal. That is an answer of
    Envoy's own, to which the virtual host's limit of bodies does not apply, but these do.
    """
    only_limit = settings.closed_scopes and settings.body_mode is not RequestBodies.FULL_DUPLEX
    return settings.body_limit_bytes if only_limit else min(usual_bytes, settings.body_limit_bytes)


def connection_manager(settings: EnvoySettings) -> HttpConnectionManager:
    """Everything that happens to a request between the client's socket and the instance's."""
    return HttpConnectionManager(
        stat_prefix="llm",
        stream_idle_timeout=timedelta(seconds=settings.stream_idle_timeout_s),
        request_timeout=timedelta(seconds=settings.request_timeout_s),
        # Probes and old tools speak HTTP/1.0; a refusal would cut off what they are still sending.
        http_protocol_options=Http1ProtocolOptions(accept_http_10=True, default_host_for_http_10="llm"),
        http2_protocol_options=Http2ProtocolOptions(
            initial_stream_window_size=_at_most(_HTTP2_WINDOW_BYTES, settings),
            # A client that vanished would keep its instance computing until its kernel gives up, a quarter of an hour.
            connection_keepalive=KeepaliveSettings(
                interval=timedelta(seconds=settings.keepalive_s), timeout=timedelta(seconds=settings.keepalive_s / 2)
            ),
        ),
        # Engines decode paths: unless Envoy does so first, `/%761/…` is served by them and looks like no call to us.
        # `%2F` stays, as in names of models.
        normalize_path=True,
        merge_slashes=True,
        upgrade_configs=[HttpConnectionManagerUpgradeConfig(upgrade_type="websocket")],
        early_header_mutation_extensions=[_strip(settings)],
        access_log=[AccessLog(name="envoy.access_loggers.http_grpc", typed_config=AnyMessage.pack(_access_log()))],
        local_reply_config=local_replies(settings),
        route_config=route_configuration(settings),
        http_filters=filters(settings),
    )


def early_mutations(settings: EnvoySettings) -> list[OneMutation]:
    """Take away the headers that only we may set, before the route is chosen; in a filter it would be too late."""
    return [
        OneMutation(remove=settings.cluster_header),
        *(OneMutation(remove=name) for name in settings.partner_headers),
        *(
            OneMutation(remove_on_match=HeaderMutationRemoveOnMatch(key_matcher=StringMatcher(prefix=prefix)))
            for prefix in _STRIPPED
        ),
    ]


def _strip(settings: EnvoySettings) -> TypedExtensionConfig:
    mutations = HeaderMutation(mutations=early_mutations(settings))
    return _extension("envoy.http.early_header_mutation.header_mutation", mutations)


def _access_log() -> HttpGrpcAccessLogConfig:
    """One entry a request to the service, sent off the request path."""
    tags = [CustomTag(tag=tag, value=f"%COMMON_DURATION({span}:us)%") for tag, span in _DURATIONS.items()]
    return HttpGrpcAccessLogConfig(
        common_config=CommonGrpcAccessLogConfig(
            log_name="extproc",
            transport_api_version=ApiVersion.V3,
            buffer_flush_interval=timedelta(milliseconds=50),
            grpc_service=grpc_service(),
            custom_tags=tags,
        )
    )


def _extension(name: str, message: Message) -> TypedExtensionConfig:
    return TypedExtensionConfig(name=name, typed_config=AnyMessage.pack(message))

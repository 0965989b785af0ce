"""The HTTP filters: ext_proc, token usage of the answers, router."""

from __future__ import annotations

import re
from datetime import timedelta

from betterproto2 import Message
from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutationRules
from envoy_data_plane.envoy.config.core.v3 import (
    BackoffStrategy,
    GrpcService,
    GrpcServiceEnvoyGrpc,
    RetryPolicy,
)
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ExternalProcessor,
    MetadataOptions,
    MetadataOptionsMetadataNamespaces,
    ProcessingMode,
    ProcessingModeBodySendMode,
    ProcessingModeHeaderSendMode,
)
from envoy_data_plane.envoy.extensions.filters.http.router.v3 import Router
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.envoy.type.matcher.v3 import RegexMatcher
from envoy_data_plane.google.protobuf import Any as AnyMessage

from extproc.control.attempt_log import attempt_log
from extproc.control.settings import EXTPROC_CLUSTER, EnvoySettings, RequestBodies
from extproc.control.usage import usage_filters
from extproc.stream.patience import MARGIN_S

EXT_PROC_FILTER = "envoy.filters.http.ext_proc"
_PARTNER_CHARACTERS = 5

_BODY_MODES = {
    RequestBodies.BUFFERED: ProcessingModeBodySendMode.BUFFERED,
    RequestBodies.FULL_DUPLEX: ProcessingModeBodySendMode.FULL_DUPLEX_STREAMED,
    RequestBodies.STREAMED: ProcessingModeBodySendMode.STREAMED,
}


def filters(settings: EnvoySettings) -> list[HttpFilter]:
    """The chain, in order."""
    chain = [_filter(EXT_PROC_FILTER, ext_proc(settings))]
    chain += [_filter(name, message) for name, message in usage_filters(settings)]
    return [*chain, _filter("envoy.filters.http.router", Router(upstream_log=[attempt_log(grpc_service())]))]


def ext_proc(settings: EnvoySettings) -> ExternalProcessor:
    """Headers and body of the request, headers and trailers of the answer, never its body.

    The header phase is needed: without it Envoy has chosen the route before the body arrives. The answer's trailers
    keep the gRPC stream open to the very end, and its end releases the reservation. A failing service lets requests
    go on; the routes decide what becomes of those (`routes`).
    """
    return ExternalProcessor(
        grpc_service=grpc_service(retry=True),
        failure_mode_allow=True,
        message_timeout=timedelta(seconds=settings.message_timeout_s),
        max_message_timeout=timedelta(seconds=settings.max_hold_s + MARGIN_S),
        processing_mode=_processing_mode(settings.body_mode),
        # Without it Envoy lets headers go, and chooses the route, before the body is here.
        send_body_without_waiting_for_header_response=settings.body_mode is RequestBodies.STREAMED,
        metadata_options=MetadataOptions(
            receiving_namespaces=MetadataOptionsMetadataNamespaces(untyped=["envoy.lb", "extproc"]),
            # Endpoints to choose from, where a filter before this one sets them; clients cannot.
            forwarding_namespaces=MetadataOptionsMetadataNamespaces(untyped=["envoy.lb.subset_hint"]),
        ),
        request_attributes=["request.id", "source.address"],
        response_attributes=["upstream.address", "upstream.request_attempt_count", "response.code"],
        mutation_rules=HeaderMutationRules(
            disallow_all=True, allow_expression=RegexMatcher(regex=_allowed_headers(settings))
        ),
    )


def _processing_mode(bodies: RequestBodies) -> ProcessingMode:
    """The request's trailers are asked for only where they may be what tells a body's end."""
    send = ProcessingModeHeaderSendMode.SEND
    mode = ProcessingMode(
        request_header_mode=send,
        request_body_mode=_BODY_MODES[bodies],
        response_header_mode=send,
        response_trailer_mode=send,
    )
    if bodies is RequestBodies.FULL_DUPLEX:
        mode.request_trailer_mode = send
    return mode


def _allowed_headers(settings: EnvoySettings) -> str:
    """Expression of the headers that the service may set.

    Envoy refuses expressions of more than 100 RE2 instructions, about one a character: of partners the names' beginning
    has to do, and of x-ratelimit-* and anthropic-ratelimit-* what they have in common.
    """
    partners = "|".join(re.escape(name[:_PARTNER_CHARACTERS]) for name in settings.partner_headers)
    ours = re.escape(settings.cluster_header) + (f"|(?:{partners}).*" if partners else "")
    return f"{ours}|.*-(?:extproc|ratel).*|(?:content|retry)-.*|:path"


def grpc_service(*, retry: bool = False) -> GrpcService:
    """How Envoy reaches the service. A stream that could not begin is tried on another worker."""
    policy = RetryPolicy(
        retry_on="connect-failure,refused-stream,reset,unavailable,cancelled",
        num_retries=2,
        retry_back_off=BackoffStrategy(base_interval=timedelta(milliseconds=5)),
    )
    return GrpcService(
        envoy_grpc=GrpcServiceEnvoyGrpc(cluster_name=EXTPROC_CLUSTER), retry_policy=policy if retry else None
    )


def _filter(name: str, message: Message) -> HttpFilter:
    return HttpFilter(name=name, typed_config=AnyMessage.pack(message))

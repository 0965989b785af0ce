"""The routes: by decision, and what becomes of a request that has none."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

from envoy_data_plane.envoy.config.core.v3 import DataSource, HeaderValue, HeaderValueOption
from envoy_data_plane.envoy.config.route.v3 import (
    DirectResponseAction,
    HeaderMatcher,
    RetryPolicy,
    RetryPolicyRetryBackOff,
    RetryPolicyRetryHostPredicate,
    Route,
    RouteAction,
    RouteConfiguration,
    RouteMatch,
    VirtualHost,
)
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import ExtProcPerRoute
from envoy_data_plane.envoy.extensions.retry.host.previous_hosts.v3 import PreviousHostsPredicate
from envoy_data_plane.envoy.type.matcher.v3 import RegexMatcher, StringMatcher
from envoy_data_plane.google.protobuf import Any as AnyMessage

from extproc.api.paths import ROUTED_PATHS
from extproc.control.filters import EXT_PROC_FILTER
from extproc.control.settings import EnvoySettings, RequestBodies
from extproc.stream.messages import TRAILERS_HEADER

_NO_DECISION = {
    "message": "The inference router is not available.",
    "type": "server_error",
    "param": None,
    "code": "router_unavailable",
}
_BAD_UPGRADE = {
    "message": "A WebSocket upgrade must be a GET request.",
    "type": "invalid_request_error",
    "param": None,
    "code": "invalid_upgrade",
}

PerFilter = dict[str, AnyMessage]


def route_configuration(settings: EnvoySettings) -> RouteConfiguration:
    """One virtual host for all domains. Its clusters may come and go, so they are not checked beforehand."""
    host = VirtualHost(
        name="all",
        domains=["*"],
        request_body_buffer_limit=settings.body_limit_bytes,
        routes=routes(settings),
    )
    return RouteConfiguration(name="llm", validate_clusters=False, virtual_hosts=[host])


def routes(settings: EnvoySettings) -> list[Route]:
    """In the order in which Envoy tries them.

    The header cannot come from a client: it is stripped before the first of them is looked at.
    """
    decided = HeaderMatcher(name=settings.cluster_header, present_match=True)
    idle_timeout = timedelta(seconds=settings.stream_idle_timeout_s)
    # Envoy 1.40 doubles a body that goes to a service and has trailers if its route has a retry policy. When it is
    # handed back, a decision tells by a header; a streamed one's trailers are not known yet.
    retries = None if settings.body_mode is RequestBodies.STREAMED else _retries()
    result = _upgrades(settings)
    by_decision = RouteAction(
        cluster_header=settings.cluster_header,
        timeout=timedelta(0),  # Envoy's default of 15 s would cut answers
        idle_timeout=idle_timeout,
        retry_policy=retries,
    )
    if settings.body_mode is RequestBodies.FULL_DUPLEX:
        trailers = HeaderMatcher(name=TRAILERS_HEADER, present_match=True)
        once = replace(by_decision, retry_policy=None)
        result.append(Route(match=RouteMatch(prefix="/", headers=[decided, trailers]), route=once))
    result.append(Route(match=RouteMatch(prefix="/", headers=[decided]), route=by_decision))
    if settings.fail_closed:
        result += _refusals()
    balanced = RouteAction(
        cluster=settings.default_pool, timeout=timedelta(0), idle_timeout=idle_timeout, retry_policy=retries
    )
    result.append(Route(match=RouteMatch(prefix="/"), route=balanced))
    return result


def _upgrades(settings: EnvoySettings) -> list[Route]:
    """WebSocket upgrades bypass ext_proc, which would wait for the end of a body that has none.

    An upgrade is a GET. Anything else that calls itself one would get past the decision, and is refused.
    """
    websocket = HeaderMatcher(name="upgrade", string_match=StringMatcher(exact="websocket", ignore_case=True))
    get = HeaderMatcher(name=":method", string_match=StringMatcher(exact="GET"))
    off = {EXT_PROC_FILTER: AnyMessage.pack(ExtProcPerRoute(disabled=True))}
    return [
        Route(
            match=RouteMatch(prefix="/", headers=[websocket, get]),
            route=RouteAction(cluster=settings.default_pool, timeout=timedelta(0)),
            typed_per_filter_config=off,
        ),
        _answer(RouteMatch(prefix="/", headers=[websocket]), 400, _BAD_UPGRADE, off),
    ]


def _refusals() -> list[Route]:
    """503 for what needs a decision and got none."""
    post = HeaderMatcher(name=":method", string_match=StringMatcher(exact="POST"))
    matches = [RouteMatch(safe_regex=RegexMatcher(regex=path), headers=[post]) for path in ROUTED_PATHS]
    return [_answer(match, 503, _NO_DECISION) for match in matches]


def _answer(match: RouteMatch, status: int, error: dict[str, str | None], filters: PerFilter | None = None) -> Route:
    """A JSON answer of Envoy's own."""
    body = DataSource(inline_string=json.dumps({"error": error}))
    json_type = HeaderValueOption(header=HeaderValue(key="content-type", value="application/json"))
    return Route(
        match=match,
        direct_response=DirectResponseAction(status=status, body=body),
        response_headers_to_add=[json_type],
        typed_per_filter_config=filters or {},
    )


def _retries() -> RetryPolicy:
    """Only what cannot have reached the client, and never twice on the same instance."""
    previous_hosts = RetryPolicyRetryHostPredicate(
        name="envoy.retry_host_predicates.previous_hosts", typed_config=AnyMessage.pack(PreviousHostsPredicate())
    )
    return RetryPolicy(
        retry_on="connect-failure,refused-stream,reset-before-request,retriable-status-codes",
        retriable_status_codes=[503],
        num_retries=2,
        retry_host_predicate=[previous_hosts],
        host_selection_retry_max_attempts=5,
        retry_back_off=RetryPolicyRetryBackOff(base_interval=timedelta(milliseconds=10)),
    )

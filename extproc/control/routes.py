"""The routes: by decision, and what becomes of a request that has none."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from envoy_data_plane.envoy.config.route.v3 import (
    HeaderMatcher,
    Route,
    RouteAction,
    RouteConfiguration,
    RouteMatch,
    VirtualHost,
)
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import ExtProcPerRoute
from envoy_data_plane.envoy.type.matcher.v3 import StringMatcher
from envoy_data_plane.google.protobuf import Any as AnyMessage

from extproc.api.errors import Dialect, refusal
from extproc.control.filters import EXT_PROC_FILTER
from extproc.control.refusals import answer, refusals
from extproc.control.retries import by_alternatives, undecided
from extproc.control.scope import Scope
from extproc.control.settings import EnvoySettings


def route_configuration(settings: EnvoySettings) -> RouteConfiguration:
    """A virtual host for all domains, and one for each that is told apart. Clusters may come and go: not checked."""
    domains = sorted({scope.domain for scope in settings.closed_scopes if scope.domain})
    return RouteConfiguration(
        name="llm",
        validate_clusters=False,
        ignore_port_in_host_matching=bool(domains),
        virtual_hosts=[*(_host(domain, domain, settings) for domain in domains), _host("all", "*", settings)],
    )


def _host(name: str, domain: str, settings: EnvoySettings) -> VirtualHost:
    closed = [scope for scope in settings.closed_scopes if scope.has_host(domain)]
    return VirtualHost(
        name=name,
        domains=[domain],
        request_body_buffer_limit=settings.body_limit_bytes,
        routes=routes(settings, closed),
    )


def routes(settings: EnvoySettings, closed: Sequence[Scope]) -> list[Route]:
    """In the order in which Envoy tries them. `closed`: where calls without a decision are refused.

    The header cannot come from a client: it is stripped before the first of them is looked at.
    """
    decided = HeaderMatcher(name=settings.cluster_header, present_match=True)
    idle_timeout = timedelta(seconds=settings.stream_idle_timeout_s)
    by_decision = RouteAction(
        cluster_header=settings.cluster_header,
        timeout=timedelta(0),  # Envoy's default of 15 s would cut answers
        idle_timeout=idle_timeout,
    )
    balanced = RouteAction(
        cluster=settings.default_pool,
        timeout=timedelta(0),
        idle_timeout=idle_timeout,
        retry_policy=undecided(settings),
    )
    return [
        *_upgrades(settings),
        *by_alternatives(Route(match=RouteMatch(prefix="/", headers=[decided]), route=by_decision), settings),
        *refusals(closed),
        Route(match=RouteMatch(prefix="/"), route=balanced),
    ]


def _upgrades(settings: EnvoySettings) -> list[Route]:
    """WebSocket upgrades bypass ext_proc, which would wait for the end of a body that has none.

    An upgrade is a GET. Anything else that calls itself one would get past the decision, and is refused.
    """
    websocket = HeaderMatcher(name="upgrade", string_match=StringMatcher(exact="websocket", ignore_case=True))
    get = HeaderMatcher(name=":method", string_match=StringMatcher(exact="GET"))
    off = {EXT_PROC_FILTER: AnyMessage.pack(ExtProcPerRoute(disabled=True))}
    no_upgrade = refusal(400, "invalid_upgrade", "A WebSocket upgrade must be a GET request.", Dialect.OPENAI)
    return [
        Route(
            match=RouteMatch(prefix="/", headers=[websocket, get]),
            route=RouteAction(cluster=settings.default_pool, timeout=timedelta(0)),
            typed_per_filter_config=off,
        ),
        answer(RouteMatch(prefix="/", headers=[websocket]), 400, no_upgrade.body, off),
    ]

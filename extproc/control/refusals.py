"""Fail-closed: what is refused with 503 if it needs a decision and got none, and in whose shape."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from envoy_data_plane.envoy.config.core.v3 import DataSource, HeaderValue, HeaderValueOption
from envoy_data_plane.envoy.config.route.v3 import DirectResponseAction, HeaderMatcher, Route, RouteMatch
from envoy_data_plane.envoy.type.matcher.v3 import RegexMatcher, StringMatcher
from envoy_data_plane.google.protobuf import Any as AnyMessage

from extproc.api.errors import refusal
from extproc.api.paths import ROUTED_DIALECTS, SLASH
from extproc.control.scope import Scope

UNAVAILABLE = ("router_unavailable", "The inference router is not available.")


def refusals(scopes: Sequence[Scope]) -> Iterator[Route]:
    """503 for calls that extproc routes, on paths of these scopes; their domains are the caller's concern."""
    if not scopes:
        return
    paths = {scope.path for scope in scopes}
    for prefix in ("",) if "" in paths else sorted(paths):
        for path, dialect in ROUTED_DIALECTS.items():
            headers = [HeaderMatcher(name=":method", string_match=StringMatcher(exact="POST"))]
            if prefix:
                beginning = RegexMatcher(regex=SLASH.join(map(re.escape, prefix.split("/"))) + ".*")
                headers.append(HeaderMatcher(name=":path", string_match=StringMatcher(safe_regex=beginning)))
            match = RouteMatch(safe_regex=RegexMatcher(regex=path), headers=headers)
            yield answer(match, 503, refusal(503, *UNAVAILABLE, dialect).body)


def answer(match: RouteMatch, status: int, body: bytes, filters: dict[str, AnyMessage] | None = None) -> Route:
    """A JSON answer of Envoy's own."""
    json_type = HeaderValueOption(header=HeaderValue(key="content-type", value="application/json"))
    return Route(
        match=match,
        direct_response=DirectResponseAction(status=status, body=DataSource(inline_string=body.decode())),
        response_headers_to_add=[json_type],
        typed_per_filter_config=filters or {},
    )

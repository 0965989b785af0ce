"""A connection manager that serves other hosts too: our logs, and the shape of Envoy's answers, are for one alone."""

from __future__ import annotations

from dataclasses import replace

from envoy_data_plane.envoy.config.accesslog.v3 import AccessLog, AccessLogFilter, AndFilter, ExtensionFilter
from envoy_data_plane.envoy.extensions.access_loggers.filters.cel.v3 import ExpressionFilter
from envoy_data_plane.envoy.extensions.filters.http.router.v3 import Router
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
    HttpFilter,
)
from envoy_data_plane.google.protobuf import Any as AnyMessage


def of_host(virtual_host: str, manager: HttpConnectionManager) -> HttpConnectionManager:
    """The manager with logs and local replies that heed requests of a virtual host only. Its last filter routes."""
    *before, router = manager.http_filters
    replies = manager.local_reply_config
    if replies is not None:
        mappers = [replace(each, filter=_both(virtual_host, each.filter)) for each in replies.mappers]
        replies = replace(replies, mappers=mappers)
    return replace(
        manager,
        access_log=[_limited(virtual_host, each) for each in manager.access_log],
        local_reply_config=replies,
        http_filters=[*before, _routing(virtual_host, router)],
    )


def _routing(virtual_host: str, http_filter: HttpFilter) -> HttpFilter:
    assert http_filter.typed_config is not None
    router = http_filter.typed_config.unpack()
    assert isinstance(router, Router)
    logs = [_limited(virtual_host, each) for each in router.upstream_log]
    return replace(http_filter, typed_config=AnyMessage.pack(replace(router, upstream_log=logs)))


def _limited(virtual_host: str, log: AccessLog) -> AccessLog:
    return replace(log, filter=_both(virtual_host, log.filter))


def _both(virtual_host: str, other: AccessLogFilter | None) -> AccessLogFilter:
    expression = ExpressionFilter(expression=f"xds.virtual_host_name == '{virtual_host}'")
    named = ExtensionFilter(name="envoy.access_loggers.extension_filters.cel", typed_config=AnyMessage.pack(expression))
    ours = AccessLogFilter(extension_filter=named)
    return ours if other is None else AccessLogFilter(and_filter=AndFilter(filters=[ours, other]))

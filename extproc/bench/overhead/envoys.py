"""Envoy's configuration in each of the three ways, and of the upstream that stands for all instances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from extproc.addresses import UnixSocket
from extproc.bench.overhead.figures import ALONE, FLOOR, OURS
from extproc.bench.overhead.fleet import POOL, address
from extproc.bench.overhead.headers import ECHO_HEADER, HOLD_HEADER, STREAM_HEADER
from extproc.control.bootstrap import bootstrap
from extproc.control.filters import EXT_PROC_FILTER
from extproc.control.settings import EXTPROC_CLUSTER, EnvoySettings, Upstream

_HOLD_S = 600
_ANYWHERE = ("127.0.0.1", 1)  # until the port is known
_MAX_BODY_BYTES = 64 * 1024 * 1024
_USAGE = '"usage":{"prompt_tokens":1000,"completion_tokens":2,"total_tokens":1002}'
_JSON = (
    '{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"ok"}}],' + _USAGE + "}"
)
_EVENTS = (
    'data: {"choices":[{"index":0,"delta":{"content":"ok"}}]}\n\ndata: {"choices":[],'
    + _USAGE
    + "}\n\ndata: [DONE]\n\n"
)


def configurations(
    ports: Mapping[str, tuple[int, int]],
    upstream_port: int,
    instances: int,
    sockets: Mapping[str, Sequence[Path]],
) -> dict[str, dict[str, Any]]:
    """Of each way. By way as well: its ports for clients and for Envoy's own pages, and the workers' sockets."""
    upstreams = tuple(Upstream(f"gpu-{number}", (address(number), upstream_port), POOL) for number in range(instances))
    workers = tuple(UnixSocket(path) for path in sockets[OURS])
    whole = bootstrap(EnvoySettings(upstreams=upstreams, workers=workers, listen=_ANYWHERE, admin=_ANYWHERE))
    made = {OURS: whole, FLOOR: _told_nothing(deepcopy(whole)), ALONE: _alone(_told_nothing(deepcopy(whole)))}
    for name, values in made.items():
        for place, port in zip((_listener(values), values["admin"]), ports[name], strict=True):
            place["address"]["socket_address"]["port_value"] = port
    _point_at(made[FLOOR], sockets[FLOOR])
    return made


def _told_nothing(values: dict[str, Any]) -> dict[str, Any]:
    """Without the access log: the service is asked, and that is all."""
    manager = _manager(values)
    del manager["access_log"]
    for each in manager["http_filters"]:
        each["typed_config"].pop("upstream_log", None)
    return values


def _alone(values: dict[str, Any]) -> dict[str, Any]:
    """Without any service: everything takes the route of what comes without a decision."""
    manager, resources = _manager(values), values["static_resources"]
    manager["http_filters"] = [each for each in manager["http_filters"] if each["name"] != EXT_PROC_FILTER]
    for host in manager["route_config"]["virtual_hosts"]:
        for route in host["routes"]:
            route.pop("typed_per_filter_config", None)
    resources["clusters"] = [each for each in resources["clusters"] if each["name"] != EXTPROC_CLUSTER]
    return values


def _point_at(values: dict[str, Any], sockets: Sequence[Path]) -> None:
    """Let the service's cluster have these workers."""
    clusters = values["static_resources"]["clusters"]
    (cluster,) = (each for each in clusters if each["name"] == EXTPROC_CLUSTER)
    hosts = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    for host, path in zip(hosts, sockets, strict=True):
        host["endpoint"]["address"]["pipe"]["path"] = str(path)


def upstream(port: int) -> dict[str, Any]:
    """An Envoy that answers by itself on every loopback address, once it has read the whole body.

    One socket for a thousand addresses listens on all there are; what comes from elsewhere is closed at once.
    """
    loopback = {"address_prefix": "127.0.0.0", "prefix_len": 8}
    extensions = "type.googleapis.com/envoy.extensions.filters"
    fault = {
        "@type": f"{extensions}.http.fault.v3.HTTPFault",
        "delay": {"fixed_delay": f"{_HOLD_S}s", "percentage": {"numerator": 100}},
        "headers": [{"name": HOLD_HEADER, "present_match": True}],
    }
    buffer = {"@type": f"{extensions}.http.buffer.v3.Buffer", "max_request_bytes": _MAX_BODY_BYTES}
    manager = {
        "@type": f"{extensions}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "upstream",
        "stream_idle_timeout": f"{_HOLD_S}s",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": _answers()}]},
        "http_filters": [
            {"name": "fault", "typed_config": fault},
            {"name": "buffer", "typed_config": buffer},
            {"name": "router", "typed_config": {"@type": f"{extensions}.http.router.v3.Router"}},
        ],
    }
    listener = {
        "name": "upstream",
        "address": {"socket_address": {"address": "0.0.0.0", "port_value": port}},
        "filter_chains": [
            {
                "filter_chain_match": {"source_prefix_ranges": [loopback]},
                "filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}],
            }
        ],
    }
    return {"static_resources": {"listeners": [listener]}}


def _answers() -> list[dict[str, Any]]:
    streamed = {"prefix": "/", "headers": [{"name": STREAM_HEADER, "present_match": True}]}
    return [
        _answer(streamed, _EVENTS, "text/event-stream"),
        _answer({"prefix": "/"}, _JSON, "application/json"),
    ]


def _answer(match: dict[str, Any], body: str, content_type: str) -> dict[str, Any]:
    return {
        "match": match,
        "direct_response": {"status": 200, "body": {"inline_string": body}},
        "response_headers_to_add": [
            {"header": {"key": "content-type", "value": content_type}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"},
            {"header": {"key": ECHO_HEADER, "value": "%REQ(x-upstream-cluster)%"}},
        ],
    }


def _manager(values: dict[str, Any]) -> dict[str, Any]:
    manager: dict[str, Any] = _listener(values)["filter_chains"][0]["filters"][0]["typed_config"]
    return manager


def _listener(values: dict[str, Any]) -> dict[str, Any]:
    listener: dict[str, Any] = values["static_resources"]["listeners"][0]
    return listener

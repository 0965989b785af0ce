"""Envoy Gateway: routes, backends and policies, and an EnvoyPatchPolicy for what they have no field for."""

from __future__ import annotations

from typing import Any

from betterproto2 import Message
from envoy_data_plane.envoy.config.route.v3 import Route, RouteAction

from extproc.control.filters import ext_proc, filters
from extproc.control.listener import early_mutations
from extproc.control.meshes.parts import (
    Resource,
    calling,
    check_pools,
    manager_fields,
    mesh_routes,
    pool,
    resource,
    short_time,
)
from extproc.control.meshes.place import MeshPlace
from extproc.control.render import render
from extproc.control.routes import routes
from extproc.control.settings import EXTPROC_CLUSTER, EnvoySettings, HostPort, is_ip
from extproc.errors import ConfigError

_GATEWAY_API = "gateway.networking.k8s.io"
_API = "gateway.envoyproxy.io"
_V1ALPHA1 = f"{_API}/v1alpha1"
_LISTENER = "http"
_POLICY = "extproc"
_MANY = 100_000  # requests at once; the product's default of 1,024 is below what a fleet streams

_BODY_MODES = {"BUFFERED": "Buffered", "STREAMED": "Streamed", "FULL_DUPLEX_STREAMED": "FullDuplexStreamed"}
_TYPES = {
    "listener": "type.googleapis.com/envoy.config.listener.v3.Listener",
    "route": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
    "cluster": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
}
# Fields of ext_proc that an EnvoyExtensionPolicy cannot say, or says only in part.
_FILTER_FIELDS = ("processing_mode", "max_message_timeout", "mutation_rules", "metadata_options")


def envoy_gateway_resources(settings: EnvoySettings, place: MeshPlace) -> list[Resource]:
    """For a Gateway of Envoy Gateway with one listener. Raises ConfigError."""
    check_pools(settings)
    return [
        _gateway(place),
        *(_backend(name, [each.address for each in members], place) for name, members in settings.pools.items()),
        _backend(EXTPROC_CLUSTER, list(settings.workers), place),
        _http_route(settings, place),
        _client_policy(settings, place),
        _traffic_policy(settings, place),
        _extension_policy(settings, place),
        _patch_policy(settings, place),
    ]


def filter_name(place: MeshPlace) -> str:
    """What Envoy Gateway calls the filter of our EnvoyExtensionPolicy."""
    return f"envoy.filters.http.ext_proc/{service_cluster(place)}"


def service_cluster(place: MeshPlace) -> str:
    """What it calls the cluster of the service."""
    return f"envoyextensionpolicy/{place.namespace}/{_POLICY}/extproc/0"


def pool_clusters(settings: EnvoySettings, place: MeshPlace) -> dict[str, str]:
    """What it calls the clusters of the pools: by the rules of the HTTPRoute, the default pool's being the last."""
    names = [*(name for name in settings.pools if name != settings.default_pool), settings.default_pool]
    return {name: f"httproute/{place.namespace}/{place.gateway}/rule/{index}" for index, name in enumerate(names)}


def _gateway(place: MeshPlace) -> Resource:
    listener = {"name": _LISTENER, "protocol": "HTTP", "port": 80}
    spec = {"gatewayClassName": place.gateway_class, "listeners": [listener]}
    return resource(f"{_GATEWAY_API}/v1", "Gateway", place.gateway, place.namespace, spec)


def _backend(name: str, addresses: list[HostPort], place: MeshPlace) -> Resource:
    if len({is_ip(host) for host, _ in addresses}) > 1:
        raise ConfigError(f"a Backend holds addresses or host names, not both: {name}")
    endpoints = [
        {"ip": {"address": host, "port": port}} if is_ip(host) else {"fqdn": {"hostname": host, "port": port}}
        for host, port in addresses
    ]
    return resource(_V1ALPHA1, "Backend", name, place.namespace, {"endpoints": endpoints})


def _backend_reference(name: str) -> dict[str, str]:
    return {"group": _API, "kind": "Backend", "name": name}


def _http_route(settings: EnvoySettings, place: MeshPlace) -> Resource:
    """A rule makes the cluster of its backends. A decision for the default pool is routed by the patches alone."""
    rules: list[dict[str, Any]] = []
    for name in pool_clusters(settings, place):
        rule: dict[str, Any] = {"backendRefs": [_backend_reference(name)]}
        if name != settings.default_pool:
            rule = {"matches": [{"headers": [{"name": settings.cluster_header, "value": name}]}]} | rule
        rules.append(rule)
    spec: dict[str, Any] = {"parentRefs": [{"name": place.gateway}]}
    if place.domain != "*":
        spec["hostnames"] = [place.domain]
    return resource(f"{_GATEWAY_API}/v1", "HTTPRoute", place.gateway, place.namespace, spec | {"rules": rules})


def _client_policy(settings: EnvoySettings, place: MeshPlace) -> Resource:
    """Header stripping before the route is chosen, and the times that clients get."""
    removed = early_mutations(settings)
    early = {
        "remove": [each.remove for each in removed if each.remove],
        "removeOnMatch": [
            {"type": "Prefix", "value": each.remove_on_match.key_matcher.prefix}
            for each in removed
            if each.remove_on_match is not None and each.remove_on_match.key_matcher is not None
        ],
    }
    timeouts = {
        "requestReceivedTimeout": _seconds(settings.request_timeout_s),
        "streamIdleTimeout": _seconds(settings.stream_idle_timeout_s),
    }
    spec = {
        "targetRefs": [{"group": _GATEWAY_API, "kind": "Gateway", "name": place.gateway}],
        "headers": {"earlyRequestHeaders": early},
        "timeout": {"http": timeouts},
    }
    return resource(_V1ALPHA1, "ClientTrafficPolicy", _POLICY, place.namespace, spec)


def _traffic_policy(settings: EnvoySettings, place: MeshPlace) -> Resource:
    """Breakers, ejection and idle connections of the pools; times and retries of what has no decision."""
    cluster = pool(settings.default_pool, settings)
    ejection = cluster.outlier_detection
    assert ejection is not None
    action = _fallback(settings)
    spec: dict[str, Any] = {
        "targetRefs": [_our_route(place)],
        "circuitBreaker": _breakers(),
        "timeout": {
            "tcp": {"connectTimeout": short_time(cluster.connect_timeout)},
            "http": {
                "requestTimeout": short_time(action.timeout),
                "connectionIdleTimeout": _seconds(settings.upstream_idle_s),
            },
        },
        "healthCheck": {
            "passive": {
                "splitExternalLocalOriginErrors": True,
                "consecutiveLocalOriginFailures": ejection.consecutive_local_origin_failure,
                "consecutive5XxErrors": 0,
                "consecutiveGatewayErrors": 0,
                "interval": short_time(ejection.interval),
                "baseEjectionTime": short_time(ejection.base_ejection_time),
                "maxEjectionPercent": ejection.max_ejection_percent,
            }
        },
    }
    policy = action.retry_policy
    if policy is not None:
        causes = ["connect-failure", "refused-stream", "retriable-status-codes"]
        statuses = list(policy.retriable_status_codes)
        spec["retry"] = {
            "numRetries": policy.num_retries,
            "retryOn": {"triggers": causes, "httpStatusCodes": statuses},
        }
    return resource(_V1ALPHA1, "BackendTrafficPolicy", _POLICY, place.namespace, spec)


def _fallback(settings: EnvoySettings) -> RouteAction:
    action = routes(settings)[-1].route
    assert action is not None
    return action


def _extension_policy(settings: EnvoySettings, place: MeshPlace) -> Resource:
    ours = ext_proc(settings)
    mode, options = ours.processing_mode, ours.metadata_options
    assert mode is not None
    assert options is not None
    metadata: dict[str, list[str]] = {}
    if options.receiving_namespaces is not None:
        metadata["writableNamespaces"] = list(options.receiving_namespaces.untyped)
    if options.forwarding_namespaces is not None:
        metadata["accessibleNamespaces"] = list(options.forwarding_namespaces.untyped)
    body = _BODY_MODES[str(mode.request_body_mode.name)]
    processor = {
        "backendRefs": [_backend_reference(EXTPROC_CLUSTER)],
        "backendSettings": {
            "circuitBreaker": _breakers(),
            "healthCheck": {
                "active": {
                    "type": "GRPC",
                    "timeout": "1s",
                    "interval": "500ms",
                    "unhealthyThreshold": 1,
                    "healthyThreshold": 1,
                }
            },
        },
        # With bodies that are handed back, Envoy Gateway refuses to let requests through without their decision.
        "failOpen": ours.failure_mode_allow and body != "FullDuplexStreamed",
        "messageTimeout": short_time(ours.message_timeout),
        "metadata": metadata,
        "processingMode": {
            "request": {"body": body, "attributes": list(ours.request_attributes)},
            "response": {"attributes": list(ours.response_attributes)},
        },
    }
    spec = {"targetRefs": [_our_route(place)], "extProc": [processor]}
    return resource(_V1ALPHA1, "EnvoyExtensionPolicy", _POLICY, place.namespace, spec)


def _our_route(place: MeshPlace) -> dict[str, str]:
    return {"group": _GATEWAY_API, "kind": "HTTPRoute", "name": place.gateway}


def _breakers() -> dict[str, int]:
    return {"maxConnections": _MANY, "maxPendingRequests": _MANY, "maxParallelRequests": _MANY}


def _seconds(time_s: float) -> str:
    milliseconds = round(time_s * 1000)
    return f"{milliseconds}ms" if milliseconds % 1000 else f"{milliseconds // 1000}s"


def _patch_policy(settings: EnvoySettings, place: MeshPlace) -> Resource:
    spec = {
        "targetRef": {"group": _GATEWAY_API, "kind": "Gateway", "name": place.gateway},
        "type": "JSONPatch",
        "jsonPatches": [
            *_cluster_patches(settings, place),
            *_listener_patches(settings, place),
            *_route_patches(settings, place),
        ],
    }
    return resource(_V1ALPHA1, "EnvoyPatchPolicy", _POLICY, place.namespace, spec)


def _cluster_patches(settings: EnvoySettings, place: MeshPlace) -> list[dict[str, Any]]:
    """The endpoints that a decision names, in its order. The product's own override reads a header alone."""
    result = []
    for name, cluster in pool_clusters(settings, place).items():
        ours = render(pool(name, settings))
        for field in ("load_balancing_policy", "common_lb_config"):
            if field in ours:
                result.append(_patch("cluster", cluster, ours[field], path=f"/{field}"))
    return result


def _listener_patches(settings: EnvoySettings, place: MeshPlace) -> list[dict[str, Any]]:
    name = f"{place.namespace}/{place.gateway}/{_LISTENER}"
    manager = "$..filters[?(@.name=='envoy.filters.network.http_connection_manager')]"
    ours = f"$..http_filters[?(@.name=='{filter_name(place)}')]"
    router = "$..http_filters[?(@.name=='envoy.filters.http.router')]"
    _, *between, last = [_values(each, place) for each in filters(settings)]
    fields = manager_fields(settings, "access_log", "local_reply_config")
    service = _values(ext_proc(settings), place)
    patches = [(ours, f"/typed_config/{field}", service[field]) for field in _FILTER_FIELDS if field in service]
    retries = service["grpc_service"]["retry_policy"]
    patches.append((ours, "/typed_config/grpc_service/retry_policy", retries))
    patches.append((router, "/typed_config/upstream_log", last["typed_config"]["upstream_log"]))
    # The answer passes the filters from last to first, so these see it after the service, which never sees its body.
    patches += [(manager, "/typed_config/http_filters/0", each) for each in reversed(between)]
    patches += [(manager, "/typed_config/access_log/-", each) for each in fields["access_log"]]
    patches.append((manager, "/typed_config/local_reply_config", fields["local_reply_config"]))
    return [
        _patch("listener", name, calling(service_cluster(place), value), json_path, path)
        for json_path, path, value in patches
    ]


def _route_patches(settings: EnvoySettings, place: MeshPlace) -> list[dict[str, Any]]:
    name = f"{place.namespace}/{place.gateway}/{_LISTENER}"
    hosts = "$.virtual_hosts[*]"
    inserted = [_without_filters(each) for each in mesh_routes(settings, pool_clusters(settings, place))]
    return [
        _patch("route", name, settings.body_limit_bytes, hosts, "/request_body_buffer_limit"),
        *(_patch("route", name, _values(each, place), hosts, "/routes/0") for each in reversed(inserted)),
    ]


def _without_filters(route: Route) -> Route:
    """Envoy Gateway's filter is off where a route does not switch it on, so there is nothing to switch off."""
    route.typed_per_filter_config = {}
    return route


def _values(message: Message, place: MeshPlace) -> dict[str, Any]:
    values: dict[str, Any] = calling(service_cluster(place), render(message))
    return values


def _patch(kind: str, name: str, value: Any, json_path: str = "", path: str = "") -> dict[str, Any]:
    operation: dict[str, Any] = {"op": "add"}
    if json_path:
        operation["jsonPath"] = json_path
    return {"type": _TYPES[kind], "name": name, "operation": operation | {"path": path, "value": value}}

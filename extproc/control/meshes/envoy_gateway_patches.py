"""Envoy Gateway: the EnvoyPatchPolicy, for what its other policies have no field for.

Patches name what the product generates, and fail where it generates something else.
"""

from __future__ import annotations

from typing import Any

from betterproto2 import Message
from envoy_data_plane.envoy.config.route.v3 import Route

from extproc.control.filters import ext_proc, filters
from extproc.control.meshes.parts import calling, manager_fields, mesh_routes, pool
from extproc.control.meshes.place import MeshPlace
from extproc.control.render import render
from extproc.control.settings import EnvoySettings

GATEWAY_API = "gateway.networking.k8s.io"
LISTENER = "http"
POLICY = "extproc"  # the name of each of our policies

_TYPES = {
    "listener": "type.googleapis.com/envoy.config.listener.v3.Listener",
    "route": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
    "cluster": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
}
# Fields of ext_proc that an EnvoyExtensionPolicy cannot say, or says only in part.
_FILTER_FIELDS = ("processing_mode", "max_message_timeout", "mutation_rules", "metadata_options")


def filter_name(place: MeshPlace) -> str:
    """What Envoy Gateway calls the filter of our EnvoyExtensionPolicy."""
    return f"envoy.filters.http.ext_proc/{service_cluster(place)}"


def service_cluster(place: MeshPlace) -> str:
    """What it calls the cluster of the service."""
    return f"envoyextensionpolicy/{place.namespace}/{POLICY}/extproc/0"


def pool_clusters(settings: EnvoySettings, place: MeshPlace) -> dict[str, str]:
    """What it calls the clusters of the pools: by the rules of the HTTPRoute, the default pool's being the last."""
    names = [*(name for name in settings.pools if name != settings.default_pool), settings.default_pool]
    return {name: f"httproute/{place.namespace}/{place.gateway}/rule/{index}" for index, name in enumerate(names)}


def patch_policy(settings: EnvoySettings, place: MeshPlace) -> dict[str, Any]:
    """The policy's `spec`."""
    return {
        "targetRef": {"group": GATEWAY_API, "kind": "Gateway", "name": place.gateway},
        "type": "JSONPatch",
        "jsonPatches": [
            *_cluster_patches(settings, place),
            *_listener_patches(settings, place),
            *_route_patches(settings, place),
        ],
    }


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
    name = f"{place.namespace}/{place.gateway}/{LISTENER}"
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
    name = f"{place.namespace}/{place.gateway}/{LISTENER}"
    hosts = "$.virtual_hosts[*]"
    inserted = [_without_filters(each) for each in mesh_routes(settings, pool_clusters(settings, place), place.domain)]
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

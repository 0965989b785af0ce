"""Istio: pools as ServiceEntry, what Istio can say of them in its own words, the rest as an EnvoyFilter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from envoy_data_plane.envoy.config.cluster.v3 import Cluster
from envoy_data_plane.envoy.config.route.v3 import RetryPolicy

from extproc.addresses import HostPort
from extproc.control.filters import filters
from extproc.control.listener import connection_manager
from extproc.control.meshes.one_host import of_host
from extproc.control.meshes.parts import (
    Resource,
    check_pools,
    mesh_routes,
    pool,
    resource,
    short_time,
    without_decision,
)
from extproc.control.meshes.place import MeshPlace
from extproc.control.render import render
from extproc.control.service_clusters import extproc_cluster
from extproc.control.settings import EnvoySettings, Upstream, is_ip

_API = "networking.istio.io/v1"
_PORT = 80  # of the pools' names in the mesh; their endpoints have ports of their own
_MANAGER = "envoy.filters.network.http_connection_manager"
_ROUTER = "envoy.filters.http.router"
_INGRESS = {"istio": "ingressgateway"}  # the labels of Istio's own ingress gateway

# The rest of the connection manager is Istio's, and may serve other hosts. Repeated fields are appended to its own.
_MANAGER_FIELDS = ("early_header_mutation_extensions", "access_log", "local_reply_config")


def istio_resources(settings: EnvoySettings, place: MeshPlace) -> list[Resource]:
    """For Istio's ingress gateway, in its namespace. Raises ConfigError."""
    check_pools(settings, place)
    result = []
    for name, members in settings.pools.items():
        if not place.services:
            result.append(_service_entry(name, members, place))
        result.append(_destination_rule(name, settings, place))
    return [*result, _gateway(place), _virtual_service(settings, place), _envoy_filter(settings, place)]


def _host_of(name: str, settings: EnvoySettings, place: MeshPlace) -> HostPort:
    """A pool's host and port in the mesh: its Service's, or those of the ServiceEntry that we make."""
    return settings.pools[name][0].address if place.services else (_entry_host(name), _PORT)


def _entry_host(name: str) -> str:
    return f"{name}.extproc.internal"


def _service_entry(name: str, members: tuple[Upstream, ...], place: MeshPlace) -> Resource:
    endpoints = [{"address": each.address[0], "ports": {"http": each.address[1]}} for each in members]
    spec = {
        "hosts": [_entry_host(name)],
        "location": "MESH_EXTERNAL",
        "ports": [{"number": _PORT, "name": "http", "protocol": "HTTP"}],
        "resolution": "STATIC" if all(is_ip(each.address[0]) for each in members) else "DNS",
        "endpoints": endpoints,
    }
    return resource(_API, "ServiceEntry", f"extproc-{name}", place.namespace, spec)


def _destination_rule(name: str, settings: EnvoySettings, place: MeshPlace) -> Resource:
    cluster = pool(name, settings)
    ejection = cluster.outlier_detection
    assert ejection is not None
    host, _ = _host_of(name, settings, place)
    policy: dict[str, Any] = {
        # Else Istio adds `locality_weighted_lb_config`, and Envoy refuses a cluster with it and a policy of ours.
        "loadBalancer": {"simple": "LEAST_REQUEST", "localityLbSetting": {"enabled": False}},
        "connectionPool": {
            "tcp": {"connectTimeout": short_time(cluster.connect_timeout)},
            "http": {"idleTimeout": f"{settings.upstream_idle_s:g}s"},
        },
        "outlierDetection": {
            "splitExternalLocalOriginErrors": True,
            "consecutiveLocalOriginFailures": ejection.consecutive_local_origin_failure,
            "consecutive5xxErrors": 0,
            "consecutiveGatewayErrors": 0,
            "interval": short_time(ejection.interval),
            "baseEjectionTime": short_time(ejection.base_ejection_time),
            "maxEjectionPercent": ejection.max_ejection_percent,
        },
    }
    if not place.services:
        policy["tls"] = {"mode": "DISABLE"}
    spec = {"host": host, "trafficPolicy": policy}
    return resource(_API, "DestinationRule", f"extproc-{name}", place.namespace, spec)


def _gateway(place: MeshPlace) -> Resource:
    server = {"port": {"number": _PORT, "name": "http", "protocol": "HTTP"}, "hosts": [place.domain]}
    return resource(_API, "Gateway", place.gateway, place.namespace, {"selector": _INGRESS, "servers": [server]})


def _virtual_service(settings: EnvoySettings, place: MeshPlace) -> Resource:
    """What becomes of a request without a decision, in Istio's words."""
    action = without_decision(settings, place.domain)
    host, port = _host_of(settings.default_pool, settings, place)
    route = {
        "name": "without-decision",
        "route": [{"destination": {"host": host, "port": {"number": port}}}],
        "timeout": short_time(action.timeout),
        "retries": _retries(action.retry_policy),
    }
    spec = {"hosts": [place.domain], "gateways": [place.gateway], "http": [route]}
    return resource(_API, "VirtualService", place.gateway, place.namespace, spec)


def _retries(policy: RetryPolicy | None) -> dict[str, Any]:
    if policy is None:
        return {"attempts": 0}
    statuses = [str(status) for status in policy.retriable_status_codes]
    causes = [cause for cause in policy.retry_on.split(",") if cause != "retriable-status-codes"]
    return {"attempts": policy.num_retries, "retryOn": ",".join([*causes, *statuses])}


def _envoy_filter(settings: EnvoySettings, place: MeshPlace) -> Resource:
    spec = {
        "workloadSelector": {"labels": _INGRESS},
        "configPatches": [
            *_cluster_patches(settings, place),
            *_filter_patches(settings, place),
            *_route_patches(settings, place),
        ],
    }
    return resource("networking.istio.io/v1alpha3", "EnvoyFilter", "extproc", place.namespace, spec)


def _cluster_patches(settings: EnvoySettings, place: MeshPlace) -> list[dict[str, Any]]:
    service = extproc_cluster(settings.workers, settings.tls, settings.body_mode)
    result = [_patch("CLUSTER", {}, "ADD", render(service))]
    for name in settings.pools:
        whole = pool(name, settings)
        ours = Cluster(load_balancing_policy=whole.load_balancing_policy, common_lb_config=whole.common_lb_config)
        host, port = _host_of(name, settings, place)
        where = {"cluster": {"service": host, "portNumber": port}}
        result.append(_patch("CLUSTER", where, "MERGE", render(ours)))
    return result


def _filter_patches(settings: EnvoySettings, place: MeshPlace) -> list[dict[str, Any]]:
    """Into every chain of the gateway: filters are off where a virtual host does not switch them on (`_filters_on`)."""
    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
    }
    ours = of_host(_virtual_host(place), connection_manager(settings))
    *before, router = ours.http_filters
    fields = manager | {name: value for name, value in render(ours).items() if name in _MANAGER_FIELDS}
    return [
        _patch("NETWORK_FILTER", _in_chain(), "MERGE", {"name": _MANAGER, "typed_config": fields}),
        *(
            _patch("HTTP_FILTER", _in_chain(_ROUTER), "INSERT_BEFORE", render(replace(each, disabled=True)))
            for each in before
        ),
        _patch("HTTP_FILTER", _in_chain(_ROUTER), "MERGE", render(router)),
    ]


def _filters_on(settings: EnvoySettings) -> dict[str, Any]:
    on = {"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "config": {}}
    return {each.name: on for each in filters(settings)[:-1]}


def _virtual_host(place: MeshPlace) -> str:
    return f"{place.domain}:{_PORT}"


def _route_patches(settings: EnvoySettings, place: MeshPlace) -> list[dict[str, Any]]:
    host = {"routeConfiguration": {"vhost": {"name": _virtual_host(place)}}}
    fields = {
        "request_body_buffer_limit": settings.body_limit_bytes,
        "typed_per_filter_config": _filters_on(settings),
    }
    hosts = {name: _host_of(name, settings, place) for name in settings.pools}
    clusters = {name: f"outbound|{port}||{name_there}" for name, (name_there, port) in hosts.items()}
    # Each becomes the first, so that the last one here is tried first.
    inserted = [render(each) for each in reversed(mesh_routes(settings, clusters, place.domain))]
    return [
        _patch("VIRTUAL_HOST", host, "MERGE", fields),
        *(_patch("HTTP_ROUTE", host, "INSERT_FIRST", each) for each in inserted),
    ]


def _in_chain(http_filter: str = "") -> dict[str, Any]:
    manager: dict[str, Any] = {"name": _MANAGER}
    if http_filter:
        manager["subFilter"] = {"name": http_filter}
    return {"listener": {"filterChain": {"filter": manager}}}


def _patch(part: str, where: Mapping[str, Any], operation: str, value: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "applyTo": part,
        "match": {"context": "GATEWAY", **where},
        "patch": {"operation": operation, "value": dict(value)},
    }

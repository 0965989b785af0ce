"""Envoy Gateway: routes, backends and policies. What these have no field for is in `envoy_gateway_patches`."""

from __future__ import annotations

import re
from typing import Any

from extproc.addresses import HostPort, UnixSocket
from extproc.control.filters import ext_proc
from extproc.control.listener import early_mutations
from extproc.control.meshes.envoy_gateway_patches import GATEWAY_API, LISTENER, POLICY, patch_policy, pool_clusters
from extproc.control.meshes.parts import (
    Resource,
    check_pools,
    pool,
    resource,
    short_time,
    without_decision,
)
from extproc.control.meshes.place import MeshPlace
from extproc.control.settings import EXTPROC_CLUSTER, EnvoySettings, is_ip
from extproc.errors import ConfigError

_API = "gateway.envoyproxy.io"
_V1ALPHA1 = f"{_API}/v1alpha1"
_SERVICE = re.compile(r"([a-z0-9-]+)(?:\.([a-z0-9-]+)(?:\.svc(?:\.[a-z0-9.-]+)?)?)?")
_MANY = 100_000  # requests at once; the product's default of 1,024 is below what a fleet streams

_BODY_MODES = {"BUFFERED": "Buffered", "STREAMED": "Streamed", "FULL_DUPLEX_STREAMED": "FullDuplexStreamed"}


def envoy_gateway_resources(settings: EnvoySettings, place: MeshPlace) -> list[Resource]:
    """For a Gateway of Envoy Gateway with one listener. Raises ConfigError."""
    check_pools(settings, place)
    workers = _workers(settings)
    if place.services and (len(workers) > 1 or is_ip(workers[0][0])):
        raise ConfigError("with --services extproc is one Service by its name: --extproc SERVICE:PORT")
    return [
        _gateway(place),
        *([] if place.services else _backends(settings, place)),
        _http_route(settings, place),
        _client_policy(settings, place),
        _traffic_policy(settings, place),
        _extension_policy(settings, place),
        resource(_V1ALPHA1, "EnvoyPatchPolicy", POLICY, place.namespace, patch_policy(settings, place)),
    ]


def _workers(settings: EnvoySettings) -> list[HostPort]:
    """Addresses of the service. Raises ConfigError for ways to it that a Backend has no words for."""
    if settings.tls is not None:
        raise ConfigError("TLS to a Backend is the matter of a BackendTLSPolicy of yours: leave out --extproc-tls-…")
    sockets = [each for each in settings.workers if isinstance(each, UnixSocket)]
    if sockets:
        raise ConfigError(f"Envoy Gateway reaches extproc by an address, not by {sockets[0]}")
    return [each for each in settings.workers if not isinstance(each, UnixSocket)]


def _gateway(place: MeshPlace) -> Resource:
    listener = {"name": LISTENER, "protocol": "HTTP", "port": 80}
    spec = {"gatewayClassName": place.gateway_class, "listeners": [listener]}
    return resource(f"{GATEWAY_API}/v1", "Gateway", place.gateway, place.namespace, spec)


def _backends(settings: EnvoySettings, place: MeshPlace) -> list[Resource]:
    pools = settings.pools.items()
    pooled = [_backend(name, [each.address for each in members], place) for name, members in pools]
    return [*pooled, _backend(EXTPROC_CLUSTER, _workers(settings), place)]


def _backend(name: str, addresses: list[HostPort], place: MeshPlace) -> Resource:
    if len({is_ip(host) for host, _ in addresses}) > 1:
        raise ConfigError(f"a Backend holds addresses or host names, not both: {name}")
    endpoints = [
        {"ip": {"address": host, "port": port}} if is_ip(host) else {"fqdn": {"hostname": host, "port": port}}
        for host, port in addresses
    ]
    return resource(_V1ALPHA1, "Backend", name, place.namespace, {"endpoints": endpoints})


def _reference(name: str, address: HostPort, place: MeshPlace) -> dict[str, Any]:
    """To a Backend of ours by its name, or to the Service at an address."""
    if not place.services:
        return {"group": _API, "kind": "Backend", "name": name}
    host, port = address
    service = _SERVICE.fullmatch(host)
    if service is None:
        raise ConfigError(f"'{host}' is no Service: SERVICE, SERVICE.NAMESPACE or SERVICE.NAMESPACE.svc.cluster.local")
    reference: dict[str, Any] = {"kind": "Service", "name": service[1], "port": port}
    if service[2] not in (None, place.namespace):
        reference["namespace"] = service[2]
    return reference


def _http_route(settings: EnvoySettings, place: MeshPlace) -> Resource:
    """A rule makes the cluster of its backends. A decision for the default pool is routed by the patches alone."""
    rules: list[dict[str, Any]] = []
    for name in pool_clusters(settings, place):
        rule: dict[str, Any] = {"backendRefs": [_reference(name, settings.pools[name][0].address, place)]}
        if name != settings.default_pool:
            rule = {"matches": [{"headers": [{"name": settings.cluster_header, "value": name}]}]} | rule
        rules.append(rule)
    spec: dict[str, Any] = {"parentRefs": [{"name": place.gateway}]}
    if place.domain != "*":
        spec["hostnames"] = [place.domain]
    return resource(f"{GATEWAY_API}/v1", "HTTPRoute", place.gateway, place.namespace, spec | {"rules": rules})


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
        "targetRefs": [{"group": GATEWAY_API, "kind": "Gateway", "name": place.gateway}],
        "headers": {"earlyRequestHeaders": early},
        "timeout": {"http": timeouts},
    }
    return resource(_V1ALPHA1, "ClientTrafficPolicy", POLICY, place.namespace, spec)


def _traffic_policy(settings: EnvoySettings, place: MeshPlace) -> Resource:
    """Breakers, ejection and idle connections of the pools; times and retries of what has no decision."""
    cluster = pool(settings.default_pool, settings)
    ejection = cluster.outlier_detection
    assert ejection is not None
    action = without_decision(settings, place.domain)
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
        causes = policy.retry_on.split(",")
        statuses = {"httpStatusCodes": list(policy.retriable_status_codes)} if policy.retriable_status_codes else {}
        spec["retry"] = {"numRetries": policy.num_retries, "retryOn": {"triggers": causes} | statuses}
    return resource(_V1ALPHA1, "BackendTrafficPolicy", POLICY, place.namespace, spec)


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
        "backendRefs": [_reference(EXTPROC_CLUSTER, _workers(settings)[0], place)],
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
    return resource(_V1ALPHA1, "EnvoyExtensionPolicy", POLICY, place.namespace, spec)


def _our_route(place: MeshPlace) -> dict[str, str]:
    return {"group": GATEWAY_API, "kind": "HTTPRoute", "name": place.gateway}


def _breakers() -> dict[str, int]:
    return {"maxConnections": _MANY, "maxPendingRequests": _MANY, "maxParallelRequests": _MANY}


def _seconds(time_s: float) -> str:
    milliseconds = round(time_s * 1000)
    return f"{milliseconds}ms" if milliseconds % 1000 else f"{milliseconds // 1000}s"

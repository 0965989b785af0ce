"""What the bases of all meshes share, and Consul's: Envoys as products configure them, before our patches.

What comes over xDS there (routes, endpoints) is in place here, so that an Envoy without a control plane can run it.
Filters that only Istio's build of Envoy has (istio.alpn, istio.stats) are left out.
"""

from __future__ import annotations

import json
from typing import Any

Values = dict[str, Any]
HostPort = tuple[str, int]
NEIGHBOUR = "shop.example.com"  # another host of Istio's gateway, served by the same endpoints
Services = dict[HostPort, list[HostPort]]  # pods of Kubernetes' Services, by the Service's host and port

EXT = "type.googleapis.com/envoy.extensions"
MANAGER = f"{EXT}.filters.network.http_connection_manager.v3.HttpConnectionManager"
HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
UNLIMITED = 4_294_967_295


def address_of(host_port: HostPort) -> Values:
    return {"socket_address": {"address": host_port[0], "port_value": host_port[1]}}


def assignment(name: str, endpoints: list[HostPort]) -> Values:
    hosts = [{"endpoint": {"address": address_of(each)}, "load_balancing_weight": 1} for each in endpoints]
    return {"cluster_name": name, "endpoints": [{"locality": {}, "load_balancing_weight": 1, "lb_endpoints": hosts}]}


def bootstrap_of(listener: Values, clusters: list[Values], admin: HostPort) -> Values:
    return {
        "admin": {"address": address_of(admin)},
        "static_resources": {"listeners": [listener], "clusters": clusters},
    }


def of_kind(resources: list[Values], kind: str) -> list[Values]:
    """The `spec`s of all resources of a kind."""
    return [each["spec"] for each in resources if each["kind"] == kind]


def consul(resources: list[Values], admin: HostPort, public: HostPort) -> Values:
    """The bootstrap of a sidecar, with the listener that Consul makes for callers, its TLS and intentions left out."""
    (resource,) = resources
    proxy = resource["service"]["connect"]["sidecar_service"]["proxy"]
    listeners = json.loads(f"[{proxy['config']['envoy_extra_static_listeners_json']}]")
    clusters = json.loads(f"[{proxy['config']['envoy_extra_static_clusters_json']}]")
    local = (proxy["local_service_address"], proxy["local_service_port"])
    clusters.append(
        {
            "name": "local_app",
            "type": "STATIC",
            "connect_timeout": "5s",
            "load_assignment": assignment("local_app", [local]),
        }
    )
    tcp = {
        "@type": f"{EXT}.filters.network.tcp_proxy.v3.TcpProxy",
        "stat_prefix": "public_listener",
        "cluster": "local_app",
    }
    public_listener = {
        "name": "public_listener",
        "address": address_of(public),
        "filter_chains": [{"filters": [{"name": "envoy.filters.network.tcp_proxy", "typed_config": tcp}]}],
    }
    bootstrap = bootstrap_of(public_listener, clusters, admin)
    bootstrap["static_resources"]["listeners"] += listeners
    return bootstrap

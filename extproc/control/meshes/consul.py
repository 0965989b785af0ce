"""Consul: a service whose sidecar's Envoy holds the bootstrap's listener, behind the listener that Consul makes.

Consul has no way to add our filters to its own listeners. Its extension `builtin/ext-proc` shows a service headers of
requests alone; `builtin/property-override` cannot add to lists, such as that of filters
(https://developer.hashicorp.com/consul/docs/envoy-extension/property-override). What it lets in whole are listeners and
clusters of the bootstrap that its sidecars start with.
"""

from __future__ import annotations

import json

from extproc.control.clusters import clusters
from extproc.control.listener import listener
from extproc.control.meshes.parts import Resource
from extproc.control.meshes.place import MeshPlace
from extproc.control.render import render
from extproc.control.settings import EnvoySettings
from extproc.errors import ConfigError


def consul_resources(settings: EnvoySettings, place: MeshPlace) -> list[Resource]:
    """A service definition. Raises ConfigError.

    Consul's listener checks who calls, and hands over to "the local application", which is our listener.
    """
    if settings.xds is not None:
        raise ConfigError("a sidecar's Envoy has Consul's control plane already: --backend instead of --xds")
    host, port = settings.listen
    if host not in ("127.0.0.1", "::1"):
        raise ConfigError("with Consul its own listener takes the connections: --listen 127.0.0.1:8080, for example")
    config = {
        # Of Consul's own listener, where it speaks HTTP: else answers would end after 15 s.
        "local_request_timeout_ms": 0,
        "local_idle_timeout_ms": round(settings.stream_idle_timeout_s * 1000),
        "envoy_extra_static_listeners_json": json.dumps(render(listener(settings)), indent=1),
        # Several are written one after the other, without the brackets of a list.
        "envoy_extra_static_clusters_json": ",\n".join(
            json.dumps(render(each), indent=1) for each in clusters(settings)
        ),
    }
    proxy = {"local_service_address": host, "local_service_port": port, "config": config}
    service = {"name": place.gateway, "port": port, "connect": {"sidecar_service": {"proxy": proxy}}}
    return [{"service": service}]

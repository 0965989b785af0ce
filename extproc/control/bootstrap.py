"""Puts the parts together: a complete bootstrap, or the fragments for an Envoy that has one already."""

from __future__ import annotations

from typing import Any

from envoy_data_plane.envoy.config.bootstrap.v3 import Admin, Bootstrap, BootstrapStaticResources

from extproc.control.clusters import clusters, socket_address
from extproc.control.filters import filters
from extproc.control.listener import listener
from extproc.control.render import render
from extproc.control.routes import route_configuration
from extproc.control.settings import EnvoySettings

FRAGMENTS = ("bootstrap", "filters", "routes", "clusters")


def bootstrap(settings: EnvoySettings) -> dict[str, Any]:
    """A complete configuration for `envoy -c`, as plain values in protobuf's JSON form."""
    admin = Admin(address=socket_address(settings.admin)) if settings.admin else None
    resources = BootstrapStaticResources(listeners=[listener(settings)], clusters=clusters(settings))
    return render(Bootstrap(admin=admin, static_resources=resources))


def fragment(name: str, settings: EnvoySettings) -> Any:
    """One of FRAGMENTS as plain values: what to put into `http_filters`, `route_config` or `clusters`."""
    match name:
        case "filters":
            return [render(each) for each in filters(settings)]
        case "routes":
            return render(route_configuration(settings))
        case "clusters":
            return [render(each) for each in clusters(settings)]
    return bootstrap(settings)

"""Puts the parts together: a complete bootstrap, or the fragments for an Envoy that has one already."""

from __future__ import annotations

from typing import Any

from envoy_data_plane.envoy.config.bootstrap.v3 import Admin, Bootstrap, BootstrapStaticResources

from extproc.control.clusters import clusters, socket_address
from extproc.control.listener import connection_manager, listener
from extproc.control.overload import overload_manager
from extproc.control.render import render
from extproc.control.routes import route_configuration
from extproc.control.settings import EnvoySettings

FRAGMENTS = ("bootstrap", "filter", "route", "clusters")


def bootstrap(settings: EnvoySettings) -> dict[str, Any]:
    """A complete configuration for `envoy -c`, as plain values in protobuf's JSON form."""
    admin = Admin(address=socket_address(settings.admin)) if settings.admin else None
    resources = BootstrapStaticResources(listeners=[listener(settings)], clusters=clusters(settings))
    return render(Bootstrap(admin=admin, static_resources=resources, overload_manager=overload_manager(settings)))


def fragment(name: str, settings: EnvoySettings) -> Any:
    """One of FRAGMENTS as plain values.

    `filter`: the fields of an HttpConnectionManager, its route apart. The filters alone would not be safe: clients'
    routing headers are taken away before them. `route`: a RouteConfiguration. `clusters`: a list of Cluster.
    """
    match name:
        case "filter":
            manager = render(connection_manager(settings))
            return {key: value for key, value in manager.items() if key not in ("stat_prefix", "route_config")}
        case "route":
            return render(route_configuration(settings))
        case "clusters":
            return [render(each) for each in clusters(settings)]
    return bootstrap(settings)

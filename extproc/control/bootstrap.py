"""Puts the parts together: a complete bootstrap, or the fragments for an Envoy that has one already."""

from __future__ import annotations

from typing import Any

from envoy_data_plane.envoy.config.bootstrap.v3 import (
    Admin,
    Bootstrap,
    BootstrapDynamicResources,
    BootstrapStaticResources,
)
from envoy_data_plane.envoy.config.core.v3 import Node

from extproc.control.clusters import clusters
from extproc.control.config_source import config_source, file_source, stream, transport_of
from extproc.control.envoy_addresses import socket_address
from extproc.control.listener import connection_manager, listener
from extproc.control.overload import overload_manager
from extproc.control.render import render
from extproc.control.routes import route_configuration
from extproc.control.service_tls import CA, IDENTITY, secret_file
from extproc.control.settings import EnvoySettings, XdsSource
from extproc.control.xds.files import clusters_source
from extproc.errors import ConfigError

FRAGMENTS = ("bootstrap", "filter", "route", "clusters", "xds", "sds-ca", "sds-identity")
_SECRETS = {"sds-ca": CA, "sds-identity": IDENTITY}


def bootstrap(settings: EnvoySettings) -> dict[str, Any]:
    """A complete configuration for `envoy -c`, as plain values in protobuf's JSON form."""
    admin = Admin(address=socket_address(settings.admin)) if settings.admin else None
    resources = BootstrapStaticResources(listeners=[listener(settings)], clusters=clusters(settings))
    whole = Bootstrap(admin=admin, static_resources=resources, overload_manager=overload_manager(settings))
    if settings.tls is not None and settings.tls.sds_directory:
        whole.node = Node(id="envoy", cluster="extproc")  # without a name Envoy takes no secrets
    if settings.xds is not None:
        whole.node = Node(id=settings.xds.node_id, cluster=settings.xds.node_cluster)
        whole.dynamic_resources = dynamic_resources(settings.xds)
    return render(whole)


def dynamic_resources(xds: XdsSource) -> BootstrapDynamicResources:
    """Clusters come from the control plane, or its files; they say themselves where their endpoints come from."""
    if xds.directory:
        return BootstrapDynamicResources(cds_config=file_source(clusters_source(xds.directory)))
    dynamic = BootstrapDynamicResources(cds_config=config_source(transport_of(xds)))
    if xds.aggregated:
        dynamic.ads_config = stream(delta=xds.delta)
    return dynamic


def fragment(name: str, settings: EnvoySettings) -> Any:
    """One of FRAGMENTS as plain values.

    `filter`: the fields of an HttpConnectionManager, its route apart. The filters alone would not be safe: clients'
    routing headers are taken away before them. `route`: a RouteConfiguration. `clusters`: a list of Cluster.
    `xds`: the node and dynamic_resources of a Bootstrap; without `settings.xds` there is nothing in it. `sds-ca`,
    `sds-identity`: a file of the directory that `settings.tls` names. Raises ConfigError if it names none.
    """
    if name in _SECRETS:
        tls = settings.tls
        if tls is None or not tls.sds_directory:
            raise ConfigError(f"the fragment {name} needs --extproc-tls-ca and --extproc-tls-sds")
        if name == "sds-identity" and not tls.certificate:
            raise ConfigError("the fragment sds-identity needs --extproc-tls-cert and --extproc-tls-key")
        return render(secret_file(_SECRETS[name], tls))
    match name:
        case "filter":
            manager = render(connection_manager(settings))
            return {key: value for key, value in manager.items() if key not in ("stat_prefix", "route_config")}
        case "route":
            return render(route_configuration(settings))
        case "clusters":
            return [render(each) for each in clusters(settings)]
        case "xds":
            whole = bootstrap(settings)
            return {key: whole[key] for key in ("node", "dynamic_resources") if key in whole}
    return bootstrap(settings)

"""Pieces of the bootstrap's messages that more than one mesh takes: connection manager, routes, pools, times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from envoy_data_plane.envoy.config.cluster.v3 import Cluster
from envoy_data_plane.envoy.config.route.v3 import HeaderMatcher, Route, RouteAction
from envoy_data_plane.envoy.type.matcher.v3 import StringMatcher

from extproc.control.engine_clusters import pool_cluster
from extproc.control.listener import connection_manager
from extproc.control.meshes.place import MeshPlace, check_label
from extproc.control.render import render
from extproc.control.routes import routes
from extproc.control.settings import EXTPROC_CLUSTER, EnvoySettings, Shape, is_ip
from extproc.errors import ConfigError

Resource = dict[str, Any]


def check_pools(settings: EnvoySettings, place: MeshPlace) -> None:
    """Raise ConfigError for what a mesh has no room for: another shape or control plane, names that are none there."""
    if settings.xds is not None:
        raise ConfigError("a mesh has a control plane already, which knows its instances: --backend instead of --xds")
    if settings.shape is Shape.INSTANCE:
        raise ConfigError("a mesh keeps its own clusters, one a pool: leave out --shape instance")
    for scope in settings.closed_scopes:
        if not scope.has_host(place.domain):
            raise ConfigError(f"--fail-closed names {scope.domain}, but the mesh's domain is {place.domain}")
    for name, members in settings.pools.items():
        check_label(name)
        if place.services and (len(members) > 1 or is_ip(members[0].address[0])):
            raise ConfigError(f"with --services a pool is one Service by its name: --backend {name}/ID=SERVICE:PORT")


def resource(api: str, kind: str, name: str, namespace: str, spec: Mapping[str, Any]) -> Resource:
    """One object of Kubernetes."""
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": dict(spec),
    }


def manager_fields(settings: EnvoySettings, *names: str) -> dict[str, Any]:
    """Fields of the HttpConnectionManager by name, as plain values; those that are not set are left out."""
    manager = render(connection_manager(settings))
    return {name: manager[name] for name in names if name in manager}


def pool(name: str, settings: EnvoySettings) -> Cluster:
    """A pool as the bootstrap has it."""
    return pool_cluster(name, [upstream.address for upstream in settings.pools[name]], settings)


def without_decision(settings: EnvoySettings, domain: str) -> RouteAction:
    """What the bootstrap does with a request that has no decision: the last of its routes."""
    action = _routes(settings, domain)[-1].route
    assert action is not None
    return action


def _routes(settings: EnvoySettings, domain: str) -> list[Route]:
    """The bootstrap's routes for one domain."""
    return routes(settings, [scope for scope in settings.closed_scopes if scope.has_host(domain)])


def mesh_routes(settings: EnvoySettings, clusters: Mapping[str, str], domain: str) -> list[Route]:
    """The bootstrap's other routes, for a mesh whose `clusters` of the pools have other names.

    A decision names a pool, so there is one route a pool in the place of `cluster_header`: the mesh's names need not
    be known to the agents, and a decision for a pool that the mesh does not know is none. What has no decision is left
    to the mesh's own route.
    """
    result = []
    for route in _routes(settings, domain)[:-1]:
        action = route.route
        if action is not None and action.cluster_header:
            result += [_of_pool(route, settings.cluster_header, name, cluster) for name, cluster in clusters.items()]
        elif action is not None and action.cluster:
            result.append(replace(route, route=replace(action, cluster=clusters[action.cluster])))
        else:
            result.append(route)
    return result


def _of_pool(route: Route, header: str, name: str, cluster: str) -> Route:
    assert route.route is not None
    assert route.match is not None
    named = HeaderMatcher(name=header, string_match=StringMatcher(exact=name))
    others = [matcher for matcher in route.match.headers if matcher.name != header]
    action = replace(route.route, cluster_header=None, cluster=cluster)
    return replace(route, match=replace(route.match, headers=[named, *others]), route=action)


def calling(cluster: str, value: Any) -> Any:
    """Plain values in which the service's cluster has another name."""
    if isinstance(value, dict):
        if value.get("cluster_name") == EXTPROC_CLUSTER:
            value = value | {"cluster_name": cluster}
        return {key: calling(cluster, each) for key, each in value.items()}
    return [calling(cluster, each) for each in value] if isinstance(value, list) else value


def short_time(time: timedelta | None) -> str:
    """A time as Kubernetes' resources write it: whole seconds, or milliseconds."""
    milliseconds = 0 if time is None else round(time / timedelta(milliseconds=1))
    return f"{milliseconds}ms" if milliseconds % 1000 else f"{milliseconds // 1000}s"

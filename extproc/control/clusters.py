"""All Envoy clusters of a bootstrap: the pools, the instances, the ext_proc service and the control plane."""

from __future__ import annotations

from envoy_data_plane.envoy.config.cluster.v3 import Cluster

from extproc.control.engine_clusters import instance_clusters, pool_cluster
from extproc.control.service_clusters import extproc_cluster, xds_cluster
from extproc.control.settings import EnvoySettings, Shape


def clusters(settings: EnvoySettings) -> list[Cluster]:
    """All clusters of the bootstrap. In the shape `instance` the pools remain, for what comes without a decision."""
    result = [
        pool_cluster(name, [upstream.address for upstream in members], settings)
        for name, members in settings.pools.items()
    ]
    if settings.shape is Shape.INSTANCE:
        for upstream in settings.upstreams:
            result += instance_clusters(upstream.id, upstream.address, upstream.cluster, settings)
    result.append(extproc_cluster(settings.workers, settings.tls, settings.body_mode))
    if settings.xds is not None and settings.xds.servers:
        result.append(xds_cluster(settings.xds.servers, settings.tls))
    return result

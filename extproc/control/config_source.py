"""How Envoy asks the control plane: which streams, which protocol, how soon again when it is gone; or which files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from envoy_data_plane.envoy.config.core.v3 import (
    AggregatedConfigSource,
    ApiConfigSource,
    ApiConfigSourceApiType,
    ApiVersion,
    BackoffStrategy,
    ConfigSource,
    GrpcService,
    GrpcServiceEnvoyGrpc,
    PathConfigSource,
    RetryPolicy,
    WatchedDirectory,
)

from extproc.control.settings import XDS_CLUSTER, XdsSource

_FIRST_ANSWER = timedelta(seconds=15)  # Envoy's default: until then a starting Envoy waits for its clusters


class Transport(StrEnum):
    """The stream on which Envoy learns of endpoints."""

    AGGREGATED = "ads"  # that of everything else, whichever protocol it speaks
    STATE_OF_THE_WORLD = "sotw"  # one of its own
    DELTA = "delta"  # one of its own


def transport_of(xds: XdsSource) -> Transport:
    """The one that an Envoy of these settings uses."""
    if xds.aggregated:
        return Transport.AGGREGATED
    return Transport.DELTA if xds.delta else Transport.STATE_OF_THE_WORLD


def config_source(transport: Transport) -> ConfigSource:
    """Where a cluster's endpoints, or all clusters, come from."""
    source = ConfigSource(resource_api_version=ApiVersion.V3, initial_fetch_timeout=_FIRST_ANSWER)
    if transport is Transport.AGGREGATED:
        source.ads = AggregatedConfigSource()
    else:
        source.api_config_source = stream(delta=transport is Transport.DELTA)
    return source


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file that Envoy reads again whenever something is moved into the directory."""

    path: str
    watched_directory: str


def file_source(source: FileSource) -> ConfigSource:
    """Where resources come from that are written as files. The path must exist when Envoy is told of it."""
    path = PathConfigSource(path=source.path, watched_directory=WatchedDirectory(path=source.watched_directory))
    return ConfigSource(resource_api_version=ApiVersion.V3, path_config_source=path)


def stream(*, delta: bool) -> ApiConfigSource:
    """A stream to the control plane. Envoy's own pause after a loss grows to 30 s."""
    again = BackoffStrategy(base_interval=timedelta(milliseconds=250), max_interval=timedelta(seconds=2))
    service = GrpcServiceEnvoyGrpc(cluster_name=XDS_CLUSTER, retry_policy=RetryPolicy(retry_back_off=again))
    return ApiConfigSource(
        api_type=ApiConfigSourceApiType.DELTA_GRPC if delta else ApiConfigSourceApiType.GRPC,
        transport_api_version=ApiVersion.V3,
        grpc_services=[GrpcService(envoy_grpc=service)],
        set_node_on_first_message_only=True,
    )

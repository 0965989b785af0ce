"""Discovery messages as bytes: requests of both protocols in, responses out.

A response is its resources one behind the other, each encoded once and not once for every Envoy.
"""

from __future__ import annotations

from functools import lru_cache
from weakref import WeakKeyDictionary

from betterproto2 import parse_fields
from envoy_data_plane.envoy.config.core.v3 import Node
from envoy_data_plane.envoy.service.discovery.v3 import (
    DeltaDiscoveryRequest,
    DeltaDiscoveryResponse,
    DiscoveryRequest,
    DiscoveryResponse,
)
from envoy_data_plane.envoy.service.discovery.v3 import Resource as NamedResource
from envoy_data_plane.google.protobuf import Any as AnyMessage

from extproc.control.xds.resources import CLUSTER, ENDPOINT, Resource, field_number
from extproc.control.xds.stream import Request, Response

ADS = "envoy.service.discovery.v3.AggregatedDiscoveryService"
CDS = "envoy.service.cluster.v3.ClusterDiscoveryService"
EDS = "envoy.service.endpoint.v3.EndpointDiscoveryService"

# (service, method, whether it is delta, the one type that it serves; "": each message names its own)
METHODS = (
    (ADS, "StreamAggregatedResources", False, ""),
    (ADS, "DeltaAggregatedResources", True, ""),
    (CDS, "StreamClusters", False, CLUSTER),
    (CDS, "DeltaClusters", True, CLUSTER),
    (EDS, "StreamEndpoints", False, ENDPOINT),
    (EDS, "DeltaEndpoints", True, ENDPOINT),
)


class MessageError(Exception):
    """Bytes that are no discovery request."""


def decode(data: bytes, *, delta: bool, type_url: str = "") -> Request:
    """A request. `type_url` is that of a stream of one type, where a message need not name it.

    Raises MessageError.
    """
    try:
        return _delta(data, type_url) if delta else _whole(data, type_url)
    except Exception as error:  # the library raises whatever it stumbles over
        raise MessageError(f"not a discovery request: {str(error).partition(chr(10))[0]}") from error


def _delta(data: bytes, type_url: str) -> Request:
    node, rest = _node_apart(data, DeltaDiscoveryRequest)
    message = DeltaDiscoveryRequest.parse(rest)
    return Request(
        type_url=message.type_url or type_url,
        nonce=message.response_nonce,
        error=message.error_detail.message if message.error_detail else None,
        subscribe=tuple(message.resource_names_subscribe),
        unsubscribe=tuple(message.resource_names_unsubscribe),
        versions=message.initial_resource_versions,
        node=node,
    )


def _whole(data: bytes, type_url: str) -> Request:
    node, rest = _node_apart(data, DiscoveryRequest)
    message = DiscoveryRequest.parse(rest)
    return Request(
        type_url=message.type_url or type_url,
        nonce=message.response_nonce,
        error=message.error_detail.message if message.error_detail else None,
        subscribe=tuple(message.resource_names),
        version=message.version_info,
        node=node,
    )


def _node_apart(data: bytes, message: type[DeltaDiscoveryRequest] | type[DiscoveryRequest]) -> tuple[str, bytes]:
    """The id of the node, and the message without it: Envoy lists 60 KB of its extensions there, 50 ms of parsing."""
    parts = list(parse_fields(data))
    nodes = [part.value for part in parts if part.number == field_number(message, "node")]
    ids = [part.value for node in nodes for part in parse_fields(node) if part.number == field_number(Node, "id")]
    rest = b"".join(part.raw for part in parts if part.number != field_number(message, "node"))
    return ids[-1].decode() if ids else "", rest


class Encoder:
    """Encodes responses. All Envoys that are sent the same get the same bytes, but for the nonce."""

    def __init__(self) -> None:
        self._of_delta: WeakKeyDictionary[Resource, bytes] = WeakKeyDictionary()
        self._of_whole: WeakKeyDictionary[Resource, bytes] = WeakKeyDictionary()
        # Few differ at a time: one push to Envoys that are up to date, and those that have just come.
        self._shared = lru_cache(maxsize=16)(self._join)

    def encode(self, response: Response, *, delta: bool) -> bytes:
        """The bytes of a response."""
        shared = self._shared(response.type_url, response.version, response.resources, response.removed, delta)
        nonce = DeltaDiscoveryResponse(nonce=response.nonce) if delta else DiscoveryResponse(nonce=response.nonce)
        return shared + bytes(nonce)

    @property
    def counts(self) -> tuple[int, int]:
        """How many responses were put together, and how many more were sent without that."""
        info = self._shared.cache_info()
        return info.misses, info.hits

    def _join(
        self, type_url: str, version: str, resources: tuple[Resource, ...], removed: tuple[str, ...], delta: bool
    ) -> bytes:
        if not delta:
            whole = DiscoveryResponse(type_url=type_url, version_info=version)
            return bytes(whole) + b"".join(map(self._in_whole, resources))
        header = DeltaDiscoveryResponse(type_url=type_url, system_version_info=version, removed_resources=list(removed))
        return bytes(header) + b"".join(map(self._in_delta, resources))

    def _in_whole(self, resource: Resource) -> bytes:
        if resource not in self._of_whole:
            packed = AnyMessage(type_url=resource.type_url, value=resource.body)
            self._of_whole[resource] = bytes(DiscoveryResponse(resources=[packed]))
        return self._of_whole[resource]

    def _in_delta(self, resource: Resource) -> bytes:
        if resource not in self._of_delta:
            packed = AnyMessage(type_url=resource.type_url, value=resource.body)
            named = NamedResource(name=resource.name, version=resource.version, resource=packed)
            self._of_delta[resource] = bytes(DeltaDiscoveryResponse(resources=[named]))
        return self._of_delta[resource]

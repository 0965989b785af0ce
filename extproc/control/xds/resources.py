"""From endpoints to xDS resources: clusters and their endpoints by name, each with a version that tells its content.

Encoding a message takes milliseconds, and a fleet may have a thousand instances: what has not changed is not encoded
again, and what clusters or endpoints have in common is encoded once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Generic, TypeVar

from envoy_data_plane.envoy.config.cluster.v3 import Cluster
from envoy_data_plane.envoy.config.core.v3 import HealthStatus
from envoy_data_plane.envoy.config.endpoint.v3 import ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints

from extproc.addresses import HostPort
from extproc.control.config_source import Transport, config_source
from extproc.control.engine_clusters import failover_cluster, instance_cluster, own_name, pool_cluster
from extproc.control.envoy_addresses import socket_address
from extproc.control.settings import EnvoySettings, Shape
from extproc.control.xds import membership
from extproc.control.xds.membership import Health

CLUSTER = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
ENDPOINT = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"

_HEALTH = {
    Health.HEALTHY: HealthStatus.HEALTHY,
    Health.DRAINING: HealthStatus.DRAINING,
    Health.UNHEALTHY: HealthStatus.UNHEALTHY,
}
_BEST_FIRST = tuple(_HEALTH)

T = TypeVar("T")
_Hosts = tuple[tuple[HostPort, Health | None], ...]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Resource:
    """One message that Envoy may ask for. Equal content has an equal `version`, in any process."""

    type_url: str
    name: str
    body: bytes  # the encoded message
    version: str = field(init=False)

    def __post_init__(self) -> None:
        """Derive the version."""
        object.__setattr__(self, "version", _digest(self.body))


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """All resources at one moment, by type URL and name, and the version of each type."""

    resources: Mapping[str, Mapping[str, Resource]]
    versions: Mapping[str, str]

    @staticmethod
    def of(resources: Iterable[Resource]) -> Snapshot:
        """A snapshot of these, whose names differ within each type."""
        by_type: dict[str, dict[str, Resource]] = {CLUSTER: {}, ENDPOINT: {}}
        for resource in resources:
            by_type.setdefault(resource.type_url, {})[resource.name] = resource
        versions = {}
        for type_url, named in by_type.items():
            content = "\n".join(f"{name} {named[name].version}" for name in sorted(named))
            versions[type_url] = _digest(content.encode())
        return Snapshot(by_type, versions)


class Resources:
    """The resources of one fleet under the operator's choices."""

    def __init__(self, settings: EnvoySettings) -> None:
        self._settings = settings
        self._resources: _Memo[Resource] = _Memo()
        self._endpoints: _Memo[bytes] = _Memo()
        # All of an instance's cluster but its name and its endpoints, which are written behind it.
        common = instance_cluster("", ("0.0.0.0", 0), settings)
        common.load_assignment = None
        self._instance_cluster = bytes(common)

    def snapshots(self, endpoints: Sequence[membership.Endpoint]) -> dict[Transport, Snapshot]:
        """For each transport: clusters say differently where their endpoints come from."""
        self._resources.forget_unused()
        self._endpoints.forget_unused()
        pools = _grouped(endpoints, lambda each: each.pool)
        shared = [self._assignment(pool, members) for pool, members in pools.items()]
        if self._settings.shape is Shape.INSTANCE:
            alone = _grouped(endpoints, lambda each: each.cluster)
            # One that was published under the pool's name is in the pool, where decisions find it as well.
            for name, members in alone.items():
                if name not in pools:
                    shared += self._instance(name, members)
        return {
            transport: Snapshot.of([*(self._pool(pool, transport) for pool in pools), *shared])
            for transport in Transport
        }

    def _pool(self, name: str, transport: Transport) -> Resource:
        def build() -> Resource:
            return Resource(CLUSTER, name, bytes(pool_cluster(name, config_source(transport), self._settings)))

        return self._resources.get((CLUSTER, name, transport), build)

    def _assignment(self, pool: str, members: Sequence[membership.Endpoint]) -> Resource:
        hosts = _hosts(members)
        return self._resources.get((ENDPOINT, pool, hosts), lambda: Resource(ENDPOINT, pool, self._hosts(pool, hosts)))

    def _instance(self, name: str, members: Sequence[membership.Endpoint]) -> list[Resource]:
        """As `engine_clusters.instance_clusters` makes them."""
        if not self._settings.retries:
            return [self._alone(name, members)]
        pool = members[0].pool

        def build() -> Resource:
            return Resource(CLUSTER, name, bytes(failover_cluster(name, pool, self._settings)))

        return [self._alone(own_name(name), members), self._resources.get((CLUSTER, name, pool), build)]

    def _alone(self, name: str, members: Sequence[membership.Endpoint]) -> Resource:
        """The cluster of one instance. Its health is the decision's business, and changes nothing here."""
        hosts = tuple((address, None) for address, _ in _hosts(members))

        def build() -> Resource:
            assignment = encoded_field(Cluster, "load_assignment", self._hosts(name, hosts))
            body = self._instance_cluster + encoded_field(Cluster, "name", name.encode()) + assignment
            return Resource(CLUSTER, name, body)

        return self._resources.get((CLUSTER, name, hosts), build)

    def _hosts(self, name: str, hosts: _Hosts) -> bytes:
        """An encoded ClusterLoadAssignment."""
        encoded = b"".join(self._endpoints.get(host, partial(_host, *host)) for host in hosts)
        return bytes(ClusterLoadAssignment(cluster_name=name)) + encoded_field(
            ClusterLoadAssignment, "endpoints", encoded
        )


class _Memo(Generic[T]):
    """What was built before, for as long as it is asked for."""

    def __init__(self) -> None:
        self._used: dict[Hashable, T] = {}
        self._old: dict[Hashable, T] = {}

    def forget_unused(self) -> None:
        """Keep what was asked for since this was last called."""
        self._old, self._used = self._used, {}

    def get(self, key: Hashable, build: Callable[[], T]) -> T:
        if key not in self._used:
            self._used[key] = self._old[key] if key in self._old else build()
        return self._used[key]


def _grouped(
    endpoints: Iterable[membership.Endpoint], name: Callable[[membership.Endpoint], str]
) -> dict[str, list[membership.Endpoint]]:
    groups: dict[str, list[membership.Endpoint]] = {}
    for endpoint in endpoints:
        groups.setdefault(name(endpoint), []).append(endpoint)
    return groups


def _hosts(members: Iterable[membership.Endpoint]) -> _Hosts:
    """Each address once, in the best health that is told of it: Envoy takes the first of two that are the same."""
    best: dict[HostPort, Health] = {}
    for endpoint in sorted(members, key=lambda each: _BEST_FIRST.index(each.health)):
        best.setdefault(endpoint.address, endpoint.health)
    return tuple(sorted(best.items()))


def _host(address: HostPort, health: Health | None) -> bytes:
    """One endpoint, encoded as a part of LocalityLbEndpoints."""
    host = LbEndpoint(endpoint=Endpoint(address=socket_address(address)))
    if health is not None:
        host.health_status = _HEALTH[health]
    return bytes(LocalityLbEndpoints(lb_endpoints=[host]))


def encoded_field(message: type, name: str, value: bytes) -> bytes:
    """One field, of a text or an encoded message, as it stands in an encoded `message`.

    Fields may be put one behind the other (https://protobuf.dev/programming-guides/encoding/#structure).
    """
    return _varint(field_number(message, name) << 3 | 2) + _varint(len(value)) + value


@lru_cache
def field_number(message: type, name: str) -> int:
    """The number of a field in an encoded `message`."""
    number: int = next(each for each in fields(message) if each.name == name).metadata["betterproto"].number
    return number


def _varint(value: int) -> bytes:
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*result, value])


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()

"""Which instances Envoy shall know, and how well they are: the fleet, with a memory against empty pools.

An instance goes at once when its record is removed or says that it was stopped. One whose heartbeat ended stays,
unhealthy, for a while: perhaps only its agent died. A pool never becomes empty: its last endpoints stay, unhealthy,
until it has others, so that a registry that lost everything takes nothing from an Envoy that balances by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from extproc.addresses import HostPort
from extproc.control.settings import EXTPROC_CLUSTER, OWN_SUFFIX, XDS_CLUSTER, Shape, is_ip
from extproc.core.fleet.fleet import Change, Fleet
from extproc.core.values.instance import Instance, Lifecycle

_OURS = frozenset({EXTPROC_CLUSTER, XDS_CLUSTER})  # clusters of Envoy's bootstrap
FORGET_AFTER_S = 60.0  # beyond the 10 s that a record outlives its last heartbeat


class Health(StrEnum):
    """Whether Envoy's own balancing may use an endpoint. A decision that names one is followed in any case."""

    HEALTHY = "healthy"
    DRAINING = "draining"
    UNHEALTHY = "unhealthy"


# Those that will be Ready are known beforehand, so that the first decision for them finds them.
_HEALTH = {
    Lifecycle.STARTING: Health.UNHEALTHY,
    Lifecycle.LOADING: Health.UNHEALTHY,
    Lifecycle.READY: Health.HEALTHY,
    Lifecycle.DRAINING: Health.DRAINING,
    Lifecycle.UNHEALTHY: Health.UNHEALTHY,
}


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """An instance as Envoy knows it. `cluster` is what decisions name, `pool` where Envoy balances by itself."""

    pool: str
    id: str
    cluster: str
    address: HostPort
    health: Health


class Membership:
    """The endpoints of one fleet. `pool` gathers all instances in the shape `instance`, where clusters hold one each.

    Every `now` is the caller's monotonic clock in seconds.
    """

    def __init__(self, shape: Shape, pool: str, forget_after_s: float = FORGET_AFTER_S) -> None:
        self.endpoints: tuple[Endpoint, ...] = ()
        """Sorted, so that equal fleets look equal whatever the order in which they were heard of."""
        self.unusable: frozenset[str] = frozenset()
        """Ids whose address is none, so that Envoy would refuse all the others of their pool with them, or whose
        cluster has a name that is another's: what is meant for that would go to them."""
        self._pool = pool if shape is Shape.INSTANCE else None
        self._forget_after_s = forget_after_s
        self._missing_since_s: dict[str, float] = {}  # by id
        self._seen: dict[str, Endpoint | None] = {}  # by id, as the registry had them at the last update

    def touched(self, change: Change) -> bool:
        """Whether an event may mean an update; nearly all of them are load reports that do not."""
        return not change.reported or any(
            self._seen.get(member.instance.id) != self._endpoint(member.instance) for member in change.reported
        )

    def update(self, fleet: Fleet, now: float) -> bool:
        """Look at the fleet again; tells whether the endpoints have changed."""
        self._seen = {member.instance.id: self._endpoint(member.instance) for member in fleet.members()}
        self.unusable = frozenset(member.instance.id for member in fleet.members() if not self._fits(member.instance))
        present = [endpoint for endpoint in self._seen.values() if endpoint is not None]
        result = sorted([*present, *self._kept(present, fleet, now)])
        changed = result != list(self.endpoints)
        self.endpoints = tuple(result)
        return changed

    def _endpoint(self, instance: Instance) -> Endpoint | None:
        health, address = _HEALTH.get(instance.lifecycle), _host_port(instance.address)
        if health is None or address is None or not self._fits(instance):
            return None
        pool = self._pool if self._pool is not None else instance.cluster
        return Endpoint(pool, instance.id, instance.cluster, address, health)

    def _fits(self, instance: Instance) -> bool:
        """Whether an Envoy that has everybody else can have the instance as well."""
        taken = instance.cluster in _OURS or (self._pool is not None and instance.cluster.endswith(OWN_SUFFIX))
        return not taken and _host_port(instance.address) is not None

    def _kept(self, present: Iterable[Endpoint], fleet: Fleet, now: float) -> list[Endpoint]:
        """Endpoints that the registry does not have (any more)."""
        here = {(endpoint.pool, endpoint.id) for endpoint in present}
        serving = {endpoint.pool for endpoint in present if endpoint.health is Health.HEALTHY}
        absent = [endpoint for endpoint in self.endpoints if (endpoint.pool, endpoint.id) not in here]
        ran_out = set(fleet.dropped()) | self._missing_since_s.keys()
        missing = [endpoint for endpoint in absent if endpoint.id in ran_out and endpoint.id not in self._seen]
        since_s = {each.id: self._missing_since_s.get(each.id, now) for each in missing}
        # The count begins anew with the first that is back, so that a pool does not shrink to that one.
        since_s.update({endpoint.id: now for endpoint in missing if endpoint.pool not in serving})
        kept = [endpoint for endpoint in missing if now - since_s[endpoint.id] < self._forget_after_s]
        self._missing_since_s = {endpoint.id: since_s[endpoint.id] for endpoint in kept}
        filled = {pool for pool, _ in here} | {endpoint.pool for endpoint in kept}
        kept += [endpoint for endpoint in absent if endpoint.pool not in filled]
        return [replace(endpoint, health=Health.UNHEALTHY) for endpoint in kept]


@lru_cache(maxsize=10_000)
def _host_port(address: str) -> HostPort | None:
    """Of an `ip:port` or `[ip]:port`; None where the digits make no address."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    return (host, int(port)) if is_ip(host) and 0 < int(port) < 65536 else None

"""One simulation from its plain description: which workload, at what load, on what fleet, seen how, by which policy."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import lru_cache

from extproc.sim.capacity import capacity_rps
from extproc.sim.fleet.replay import replay
from extproc.sim.fleet.spec import Conditions, FleetSpec
from extproc.sim.policies.catalog import load as load_policy
from extproc.sim.report.run import Run
from extproc.sim.traffic.arrival import Traffic
from extproc.sim.traffic.scale import at_rate, seeded, take
from extproc.sim.traffic.sources import is_made_up, traffic_at, traffic_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """All that decides a run but its policy; plain values, so that it can be sent to another process."""

    trace: str  # a name to show
    traffic: str  # as `traffic_of` takes it
    fleet: FleetSpec
    conditions: Conditions
    load: float | None = None  # of the fleet's capacity for this workload; None: at its own pace
    rate_rps: float | None = None  # the same in requests a second
    requests: int | None = None  # as many of a recorded workload; None: all

    @property
    def is_made_up(self) -> bool:
        """Whether no file is behind it: then its own text has its seed and number of requests."""
        return is_made_up(self.traffic)


def run(setup: Setup, policy: str) -> Run:
    """Simulate. Raises ConfigError where the setup makes no sense."""
    factory = load_policy(policy)
    return replay(_traffic(_Key(setup)), setup.fleet, setup.conditions, policy, factory)


class _Key:
    """A setup as far as its workload goes: runs that differ in what routers see share one."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._key = (setup.traffic, setup.fleet.name, setup.conditions.seed, setup.load, setup.rate_rps, setup.requests)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._key == other._key


@lru_cache(maxsize=8)
def _recorded(text: str) -> Traffic:
    return traffic_of(text)


@lru_cache(maxsize=4)
def _traffic(key: _Key) -> Traffic:
    setup = key.setup
    traffic = _paced(setup, setup.rate_rps)
    if setup.load is not None:
        traffic = _paced(setup, setup.load * capacity_rps(traffic, setup.fleet))
        if setup.is_made_up:
            # At another pace other turns of its sessions fall into the workload: what can be cached has changed.
            traffic = _paced(setup, setup.load * capacity_rps(traffic, setup.fleet))
    return _aimed(traffic, setup.fleet)


def _paced(setup: Setup, rate_rps: float | None) -> Traffic:
    """The workload at a rate; a made-up one is made for it, a recorded one is stretched."""
    if setup.is_made_up:
        return traffic_of(setup.traffic) if rate_rps is None else traffic_at(setup.traffic, rate_rps)
    traffic = seeded(_recorded(setup.traffic), setup.conditions.seed)
    if setup.requests is not None:
        traffic = take(traffic, setup.requests)
    return traffic if rate_rps is None else at_rate(traffic, rate_rps)


def _aimed(traffic: Traffic, fleet: FleetSpec) -> Traffic:
    """Requests that name no model in particular go to the one that the fleet serves."""
    models = {model for spec in fleet.instances for model in spec.models}
    if all(arrival.model in models for arrival in traffic.arrivals):
        return traffic
    first = sys.intern(fleet.instances[0].models[0])
    arrivals = [arrival if arrival.model in models else replace(arrival, model=first) for arrival in traffic.arrivals]
    return replace(traffic, arrivals=tuple(arrivals))

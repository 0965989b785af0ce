"""One simulation from its plain description: which workload, at what load, on what fleet, seen how, by which policy."""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass, replace
from functools import lru_cache

from extproc.errors import ConfigError, ExtprocError
from extproc.sim.capacity import capacity_rps
from extproc.sim.fleet.replay import replay
from extproc.sim.fleet.spec import Conditions, FleetSpec
from extproc.sim.policies.catalog import CATALOG
from extproc.sim.policies.catalog import load as load_policy
from extproc.sim.report.run import Run, within
from extproc.sim.scaling.scaler import Autoscaling
from extproc.sim.traffic.arrival import Arrival, Traffic
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
    requests: int | None = None  # as many, the first ones of a recording; None: all, or as the text says
    window_s: tuple[float, float] | None = None  # requests that arrive in it are judged alone; None: all of them
    autoscaling: Autoscaling | None = None  # None: the fleet's own events alone start and stop instances


def run(setup: Setup, policy: str) -> Run:
    """Simulate. Raises ConfigError where the setup makes no sense, or where a policy from outside fails."""
    return within(_whole(setup, policy), setup.window_s)


def _whole(setup: Setup, policy: str) -> Run:
    factory = load_policy(policy)
    traffic = workload(setup)
    if policy in CATALOG:
        return replay(traffic, setup.fleet, setup.conditions, policy, factory, setup.autoscaling)
    try:
        return replay(traffic, setup.fleet, setup.conditions, policy, factory, setup.autoscaling)
    except ExtprocError as error:
        raise ConfigError(f"policy {policy!r}: {error}") from error
    except Exception as error:  # whatever the code of a stranger does
        frame = traceback.extract_tb(error.__traceback__)[-1]
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"policy {policy!r} failed with {what} ({frame.filename}, line {frame.lineno})") from error


def workload(setup: Setup) -> Traffic:
    """The requests of a setup, at its pace. Raises ConfigError."""
    return _traffic(_Key(setup))


class _Key:
    """A setup as far as its workload goes: runs that differ in what routers see share one."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._key = (setup.traffic, setup.fleet.name, setup.conditions.seed, setup.load, setup.rate_rps, setup.requests)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._key == other._key and self.setup.fleet == other.setup.fleet


@lru_cache(maxsize=8)
def _at_own_pace(text: str) -> Traffic:
    return traffic_of(text)


@lru_cache(maxsize=4)
def _traffic(key: _Key) -> Traffic:
    setup = key.setup
    traffic = _paced(setup, setup.rate_rps)
    if setup.load is not None:
        traffic = _paced(setup, setup.load * capacity_rps(traffic, setup.fleet))
        if is_made_up(setup.traffic):
            # At another pace other turns of its sessions fall into the workload: what can be cached has changed.
            traffic = _paced(setup, setup.load * capacity_rps(traffic, setup.fleet))
    return traffic


def _paced(setup: Setup, rate_rps: float | None) -> Traffic:
    """The workload at a rate, for the models of the fleet; a made-up one is made for it, a recorded one stretched."""
    if is_made_up(setup.traffic):
        text = _with_options(setup.traffic, requests=setup.requests, seed=setup.conditions.seed)
        return _aimed(_at_own_pace(text) if rate_rps is None else traffic_at(text, rate_rps), setup.fleet)
    traffic = seeded(_at_own_pace(setup.traffic), setup.conditions.seed)
    if setup.requests is not None:
        traffic = take(traffic, setup.requests)
    return _aimed(traffic if rate_rps is None else at_rate(traffic, rate_rps), setup.fleet)


def _with_options(text: str, **options: int | None) -> str:
    """A made-up workload with further options; its own text goes before them."""
    said = {option.partition("=")[0] for option in text.partition("?")[2].split("&")}
    more = [f"{name}={value}" for name, value in options.items() if value is not None and name not in said]
    return text + ("&" if "?" in text else "?") * bool(more) + "&".join(more)


def _aimed(traffic: Traffic, fleet: FleetSpec) -> Traffic:
    """Requests for models that the fleet does not serve go to the one that all of it serves.

    Raises ConfigError if there is none: then nobody can tell which is meant.
    """
    served = {model for spec in fleet.instances for model in spec.models} | {
        *fleet.models.virtual,
        *fleet.models.aliases,
    }
    strange = sorted({arrival.model for arrival in traffic.arrivals} - served)
    if not strange:
        return traffic
    common = [model for model in fleet.instances[0].models if all(model in spec.models for spec in fleet.instances)]
    if not common:
        raise ConfigError(
            f"requests of {traffic.name} ask for {strange[0]!r}; {fleet.name} does not serve it, nor one model on all "
            f"of its instances, but {', '.join(sorted(served))}: name it under models where it shall go"
        )
    only = sys.intern(common[0])

    def aimed(arrival: Arrival) -> Arrival:
        return arrival if arrival.model in served else replace(arrival, model=only)

    return replace(traffic, arrivals=tuple(map(aimed, traffic.arrivals)))

"""The suite `autoscale`: what becomes of requests, and what it costs, while an autoscaler starts and stops instances.

Every autoscaler is run with several targets, as its operator would try them: what it can do is a line of violations
against GPU-hours, not a point. All else is the same for all: the requests, the router, the places in the
fleet, how many instances there are at the start, how long a start takes, and the grace that an instance has to finish
what it runs. Requests are judged that come after the first ten minutes.

The days are compressed: three of two hours each. Engines take no more requests at once than their SLO bears, as who
scales on their queues would set them up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from extproc.core.values.instance import Role
from extproc.errors import ConfigError
from extproc.sim.fleet.builtin import MODELS, STEP_OVERHEAD_S
from extproc.sim.fleet.entries import describe
from extproc.sim.fleet.spec import Conditions, FleetSpec, InstanceSpec
from extproc.sim.scaling.scaler import Autoscaling
from extproc.sim.setup import Setup

JUDGED_FROM_S = 600.0
STARTS_S = (60.0, 180.0, 300.0)
DAY_S, DAYS, DAY_REQUESTS = 7200.0, 3, 5000
ROUTER = "least_request"
ROUTER_THAT_KNOWS = "extproc"  # least request gives a small instance as much as a big one, and makes no pairs
OURS = ("extproc", "extproc?busiest=1", "extproc?busiest=0.8", "extproc?quantile=0.8&busiest=0.7")
_FOR_EVER_S = 1e9
_READ_S = 15.0  # between two readings of an engine for `ROUTER`, which does not look at them
_KNOWN_READ_S = 1.0  # for the other, as of an agent: records that are older than 10 s are gone, and it would know few


class Kind(StrEnum):
    """What a scenario shows."""

    TRACE = "trace"  # held against the target
    STEADY = "steady"  # who is steady when load is
    NIGHTS = "nights"  # scale to zero
    KINDS = "kinds"  # two kinds of hardware with prices
    HALVES = "halves"  # prefill and decode apart


_KNOWING = (Kind.KINDS, Kind.HALVES)  # of `ROUTER_THAT_KNOWS`


@dataclass(frozen=True, slots=True)
class Hardware:
    """A kind of instance that one scenario's requests are for."""

    name: str
    models: tuple[str, ...]
    tensor_parallel: int
    price_per_hour: float
    max_num_seqs: int
    max_num_batched_tokens: int = 2048
    role: Role = Role.BOTH

    @property
    def pool(self) -> str:
        """Name of its instances' pool."""
        return self.name if self.role is Role.BOTH else f"{self.name}-{self.role}"


L40S = Hardware("l40s", MODELS, 1, 1.0, 24)
H100 = Hardware("h100_sxm", MODELS, 1, 3.0, 64, 8192)
H100_HALVES = tuple(Hardware("h100_sxm", MODELS, 1, 3.0, 256, 8192, role) for role in (Role.PREFILL, Role.DECODE))
SHORT_L40S = Hardware("l40s", MODELS, 1, 1.0, 48)  # for short prompts


@dataclass(frozen=True, slots=True)
class Scenario:
    """One workload, one time to start, one autoscaler; `setup.trace` names the workload."""

    kind: Kind
    start_s: float
    setup: Setup

    @property
    def scaler(self) -> str:
        """As it is written: `keda_requests?target=12`."""
        return self.setup.autoscaling.scaler if self.setup.autoscaling else ""

    @property
    def router(self) -> str:
        """The policy of its router."""
        return ROUTER_THAT_KNOWS if self.kind in _KNOWING else ROUTER


_Targets = Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class _Load:
    """A workload, the fleet's places for it, and targets that make sense there."""

    kind: Kind
    name: str
    traffic: str
    hardware: tuple[Hardware, ...]
    most: int
    at_start: int
    targets: _Targets
    period_s: float = DAY_S
    least: int = 1
    starts_s: tuple[float, ...] = STARTS_S


LARGE = 4  # times as many people: chance weighs less, and a cold start is several instances long
_DAY = f"diurnal?requests={DAYS * DAY_REQUESTS}&requests_s={DAY_REQUESTS / DAY_S:.6f}&days={DAYS}"
_LARGE_DAY = f"diurnal?requests={LARGE * DAYS * DAY_REQUESTS}&requests_s={LARGE * DAY_REQUESTS / DAY_S:.6f}&days={DAYS}"


def _targets(in_flight: tuple[float, ...], kv_usage: tuple[float, ...]) -> _Targets:
    """By autoscaler, where so many requests in flight, and so much of its KV room, may be right for an instance."""
    waiting = (0.1, 0.3, 1.0, 3.0)
    return {
        "hpa_gpu": (0.5, 0.7, 0.9),
        "hpa_queue": waiting,
        "hpa_queue_slow": waiting,
        "keda_requests": in_flight,
        "aibrix_apa": kv_usage,
        "aibrix_kpa": in_flight,
    }


_ON_L40S = _targets((5.0, 6.0, 8.0, 10.0, 13.0), (0.1, 0.14, 0.18, 0.25, 0.4))
_ON_SHORT = _targets((8.0, 12.0, 16.0, 22.0, 30.0), (0.04, 0.06, 0.09, 0.13, 0.2))
_ON_H100 = _targets((4.0, 8.0, 12.0, 18.0, 26.0), (0.04, 0.08, 0.12, 0.2, 0.3))
_NEAR = ("keda_requests", "aibrix_apa", "aibrix_kpa")  # of all days' rivals those that are anywhere near the frontier
_NO_PERIOD_S = 86_400.0
_AZURE_TIMES = 3  # as many requests: the recording alone is for two instances


@dataclass(frozen=True, slots=True)
class Chosen:
    """A part of the suite; what is empty is not chosen from."""

    workloads: tuple[str, ...] = ()
    starts_s: tuple[float, ...] = ()
    scalers: tuple[str, ...] = ()  # instead of those that a workload is run with


def autoscale(
    traces: Mapping[str, Path], seed: int, *, quick: bool = False, chosen: Chosen | None = None
) -> Iterator[Scenario]:
    """All scenarios of a seed, or those chosen. `quick`: one day, one time to start, and one target of each.

    Raises ConfigError for a workload that there is not.
    """
    part = chosen or Chosen()
    loads = [load for load in _loads(traces) if not quick or load.name == "days"]
    for name in part.workloads:
        if not any(load.name == name for load in loads):
            raise ConfigError(f"no workload here is named {name!r}: {', '.join(load.name for load in loads)}")
    for load in loads:
        if part.workloads and load.name not in part.workloads:
            continue
        for start_s in part.starts_s or ((180.0,) if quick else load.starts_s):
            for scaler in part.scalers or _scalers(load, quick):
                yield _scenario(load, start_s, scaler, seed, quick)


def _loads(traces: Mapping[str, Path]) -> Iterator[_Load]:
    yield _Load(Kind.TRACE, "days", _DAY, (L40S,), 16, 2, _ON_L40S)
    yield _Load(Kind.TRACE, "days with bursts", f"{_DAY}&bursts=5&burst_factor=2.5", (L40S,), 16, 2, _ON_L40S)
    near = {name: _ON_L40S[name] for name in _NEAR}
    yield _Load(Kind.TRACE, "large days", _LARGE_DAY, (L40S,), 16 * LARGE, 2 * LARGE, near, starts_s=(180.0, 300.0))
    if "azure-conversation" in traces:
        text = f"{traces['azure-conversation']}?times={_AZURE_TIMES}"
        yield _Load(Kind.TRACE, "azure-conversation", text, (SHORT_L40S,), 20, 6, _ON_SHORT, _NO_PERIOD_S)
    if "mooncake-conversation" in traces:
        text = str(traces["mooncake-conversation"])
        yield _Load(Kind.TRACE, "mooncake-conversation", text, (H100,), 16, 3, _ON_H100, _NO_PERIOD_S)
        name = "mooncake-conversation in halves"
        yield _Load(Kind.HALVES, name, text, H100_HALVES, 10, 4, {}, _NO_PERIOD_S, starts_s=(60.0,))
    steady = "diurnal?requests=10000&requests_s=0.694444&days=2&peak_to_trough=1"
    yield _Load(Kind.STEADY, "steady", steady, (L40S,), 16, 4, _ON_L40S, _NO_PERIOD_S, starts_s=(180.0,))
    nights = "diurnal?requests=6000&requests_s=0.277778&days=3&night=0.5"
    of_zero = {"keda_requests": _ON_L40S["keda_requests"]}
    yield _Load(Kind.NIGHTS, "nights", nights, (L40S,), 16, 0, of_zero, least=0, starts_s=(60.0, 180.0))
    kinds: _Targets = {}
    for hardware in ((L40S, H100), (L40S,), (H100,)):
        name = "days on " + " and ".join(each.name for each in hardware)
        # Of two pools that must each have one, neither could ever stand in for the other.
        yield _Load(Kind.KINDS, name, _DAY, hardware, 16, 2, kinds, least=0, starts_s=(180.0,))


def _scalers(load: _Load, quick: bool) -> Iterator[str]:
    yield from OURS[:1] if quick else OURS
    for name, targets in load.targets.items():
        for target in targets[len(targets) // 2 :][:1] if quick else targets:
            yield f"{name}?target={target:g}"


def _scenario(load: _Load, start_s: float, scaler: str, seed: int, quick: bool) -> Scenario:
    traffic = load.traffic
    if quick:
        traffic = traffic.replace(f"requests={DAYS * DAY_REQUESTS}&", f"requests={DAY_REQUESTS}&")
        traffic = traffic.replace(f"days={DAYS}", "days=1")
    if traffic.startswith("diurnal"):
        traffic = f"{traffic}&seed={seed}"
    setup = Setup(
        trace=load.name,
        traffic=traffic,
        fleet=_fleet(load, start_s),
        conditions=Conditions(state_period_s=_KNOWN_READ_S if load.kind in _KNOWING else _READ_S, seed=seed),
        window_s=(JUDGED_FROM_S, _FOR_EVER_S),
        autoscaling=Autoscaling(scaler=scaler, least=load.least, period_s=load.period_s),
    )
    return Scenario(load.kind, start_s, setup)


def _fleet(load: _Load, start_s: float) -> FleetSpec:
    """The first kind of hardware has the instances that there are at the start; of halves both have."""
    there = load.hardware if load.kind is Kind.HALVES else load.hardware[:1]
    places = [
        _place(hardware, number, start_s, at_start=hardware in there and number < load.at_start)
        for hardware in load.hardware
        for number in range(load.most)
    ]
    return FleetSpec(name="-".join(hardware.pool for hardware in load.hardware), instances=tuple(places))


def _place(hardware: Hardware, number: int, start_s: float, *, at_start: bool) -> InstanceSpec:
    return describe(
        id=f"{hardware.pool}-{number + 1}",
        models=hardware.models,
        hardware=hardware.name,
        tensor_parallel=hardware.tensor_parallel,
        price_per_hour=hardware.price_per_hour,
        max_num_seqs=hardware.max_num_seqs,
        max_num_batched_tokens=hardware.max_num_batched_tokens,
        role=hardware.role,
        kv_domain="" if hardware.role is Role.BOTH else "nixl",
        fabric="" if hardware.role is Role.BOTH else "ib",
        step_overhead_s=STEP_OVERHEAD_S,
        start_s=start_s,
        at_start=at_start,
    )

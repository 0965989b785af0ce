"""The record of one simulated run: what became of each request, and samples of each instance's load."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from extproc.sim.fleet.spec import Conditions, FleetSpec
from extproc.sim.traffic.arrival import Arrival


class Fate(StrEnum):
    """What became of a request."""

    SERVED = "served"
    REFUSED = "refused"  # no instance could take it
    FAILED = "failed"  # its instance broke


@dataclass(frozen=True, slots=True)
class Served:
    """One request; times count from its arrival at the router. What it never reached is None."""

    arrival: Arrival
    arrived_s: float
    replica: int
    fate: Fate
    instance_id: str | None
    ttft_s: float | None
    duration_s: float | None
    cached_tokens: int
    preemptions: int
    attempts: int
    held_s: float = 0.0  # in the router, before it was sent or shed

    @property
    def tpot_s(self) -> float | None:
        """Mean time between two tokens of the answer; None for answers of one token."""
        if self.ttft_s is None or self.duration_s is None or self.arrival.output_tokens < 2:
            return None
        return (self.duration_s - self.ttft_s) / (self.arrival.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Sample:
    """Every instance's true load at one moment, in the order of `FleetSpec.instances`."""

    at_s: float
    running: tuple[int, ...]
    waiting: tuple[int, ...]
    kv_usage: tuple[float, ...]
    ready: tuple[bool, ...] = ()  # which take new requests; () where all do


class Change(NamedTuple):
    """Instances from one moment on, until the next change."""

    at_s: float
    wanted: int  # Ready or on their way
    up: int  # paid for: those that drain, too
    ready: int


class Start(NamedTuple):
    """An instance that was started while the run went on, and got Ready."""

    instance_id: str
    ordered_s: float
    ready_s: float


@dataclass(frozen=True, slots=True)
class Scaled:
    """What an autoscaler did to the fleet."""

    changes: tuple[Change, ...]
    starts: tuple[Start, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One policy on one workload, fleet and set of conditions."""

    policy: str
    traffic: str
    fleet: FleetSpec
    conditions: Conditions
    served: tuple[Served, ...]  # in the order of the workload's arrivals
    samples: tuple[Sample, ...]  # every `SAMPLE_S`
    busy_s: dict[str, float] = field(default_factory=dict)  # by instance id: time in which it computed
    up_s: dict[str, float] = field(default_factory=dict)  # time in which it was there, and paid for
    ended_s: float = 0.0  # when the last request was over
    window_s: tuple[float, float] | None = None  # `served` are those alone that arrived from here on until there
    scaled: Scaled | None = None  # None: no autoscaler was at work

    @property
    def lasted_s(self) -> float:
        """Seconds that rates are counted over: those in which the requests that count arrived, else the whole run."""
        return self.ended_s if self.window_s is None else self.window_s[1] - self.window_s[0]


def within(run: Run, window_s: tuple[float, float] | None) -> Run:
    """The same run, judged by the requests that arrive in a window of time alone; None: by all of them."""
    if window_s is None:
        return run
    begins_s, ends_s = window_s
    return replace(
        run, served=tuple(one for one in run.served if begins_s <= one.arrived_s < ends_s), window_s=window_s
    )


SAMPLE_S = 1.0  # between two samples of the fleet's load

"""The operator's rules of scaling: which pools there are, and how many instances each may have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from extproc.core.values.instance import Role

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRules:
    """Instances that can stand in for each other: the same models on the same hardware.

    Pools with the same `models` and role serve the same requests, and which of them grows is a question of cost.
    """

    name: str
    models: tuple[str, ...]  # that its instances serve, adapters aside
    hardware: str = ""  # as agents tell it; "": any
    tensor_parallel: int = 1
    role: Role = Role.BOTH  # which half of requests it is sized for; both: whole ones
    least: int = 0  # instances; 0: it may be scaled to zero
    most: int = 10
    spare: int = 0  # instances that may fail without a loss
    price_per_hour: float | None = None  # of an instance; None: as agents tell it, else all pools cost the same
    start_s: float = 180.0  # what a start takes, all of it, until some were seen
    before_start_s: float = 0.0  # of it, what is over before an agent can tell of it: it measures only the rest
    idle_s: float = 900.0  # without a request, until the last instance goes where `least` is 0
    dwell_s: float = 180.0  # for so long fewer instances must have been enough before one goes
    labels: Mapping[str, str] = field(default_factory=dict)  # handed on to whoever starts instances


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRules:
    """The rules of one fleet."""

    pools: tuple[PoolRules, ...] = ()
    tick_s: float = 5.0  # between two looks
    period_s: float = DAY_S  # after which load is expected to come again
    quantile: float = 0.6  # chance that the load stays below what is planned for
    busiest: float = 0.85  # share of what instances carry within their SLOs that may be in use at that load
    drain_s: float = 600.0  # that an instance may take to finish what it has

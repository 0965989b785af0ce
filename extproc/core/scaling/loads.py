"""What a group's demand fills of each of its pools, by computed capacity and by what of that has proved true."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from extproc.core.pricing.slo import Slo
from extproc.core.scaling.capacity import Edge, edge_of, limits_of
from extproc.core.scaling.correction import Correction
from extproc.core.scaling.demand import Demand, Rate
from extproc.core.scaling.pools import speed_of
from extproc.core.scaling.recommendation import Forecast
from extproc.core.scaling.rules import PoolRules
from extproc.core.speeds.speed import Speed
from extproc.core.values.instance import Instance

_SUDDEN = 4.0  # standard deviations above the usual, beyond which the latest rate counts alone
_HIGH = 2.5  # the same of the usual rate above the level, which counts for less and is seen for longer
_LEAST_RPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """Loads in instances; `computed` by the formula alone, so that what is learned does not rewrite the past."""

    computed: float  # of the group's first pool
    factor: float  # what of its computed capacity is true
    sizes: tuple[float, ...]  # capacity of an instance of each pool, in instances of the first
    capacity_rps: float  # of one of the first, at these sizes of requests
    edges: tuple[Edge, ...] = ()  # of each pool's instances

    @property
    def throughput(self) -> float:
        """What one of the first does with its batch always full, over its capacity."""
        return max(1.0, 1.0 / (self.edges[0].share * self.factor)) if self.edges else 1.0

    @property
    def load(self) -> float:
        """Instances of the first pool that are filled."""
        return self.computed / self.factor


def loads(
    pools: Sequence[PoolRules],
    instances: Sequence[Sequence[Instance]],
    speeds: Mapping[str, Speed],
    demand: Demand,
    slo: Slo,
    correction: Correction,
    last: Loads | None = None,
    *,
    long: Slo | None = None,
) -> Loads:
    """The load of a group, `instances` being those of each pool; found sooner with the `last` one of the same pools.

    `long` is the SLO of long prompts; None: the same.
    """
    near: Sequence[Edge | None] = last.edges if last and len(last.edges) == len(pools) else [None] * len(pools)
    factors = [correction.factor(pool.name) for pool in pools]
    rate = max(demand.requests_s, _LEAST_RPS)
    asked = replace(demand, requests_s=rate)
    edges = [
        edge_of(speed_of(pool, those, speeds), asked, limits_of(those), slo, long=long, near=edge)
        for pool, those, edge in zip(pools, instances, near, strict=True)
    ]
    of_each = [rate / edge.rps for edge in edges]
    true = [each / factor for each, factor in zip(of_each, factors, strict=True)]
    return Loads(
        computed=of_each[0] if demand.requests_s > 0.0 else 0.0,
        factor=factors[0],
        sizes=tuple(true[0] / each for each in true),
        capacity_rps=rate / true[0],
        edges=tuple(edges),
    )


def risen(usual: Demand, latest: Rate) -> Demand:
    """The usual demand, at about the latest rate where that is so much higher that it cannot be chance.

    Square roots of counts vary alike whatever their mean (F. J. Anscombe, 1948). What counts then is a deviation less
    than what was seen: of all looks it is the one that chance has favoured.
    """
    seen = latest.requests_s * latest.covers_s
    if _deviations(seen, usual.requests_s * latest.covers_s, usual.burst) <= _SUDDEN:
        return usual
    return replace(usual, requests_s=max(usual.requests_s, (seen - math.sqrt(usual.burst * seen)) / latest.covers_s))


def calm(filled: Loads, demand: Demand, level: float) -> float:
    """The load to count with: the level that forecasts start from, unless what was counted lately is beyond chance.

    A dwell keeps the most that was needed in it. That must not be the most that chance made of few requests.
    """
    counted = demand.requests_s * demand.covers_s
    expected = level * filled.capacity_rps * demand.covers_s
    return filled.load if _deviations(counted, expected, demand.burst) > _HIGH else level


def _deviations(seen: float, expected: float, burst: float) -> float:
    return 2.0 * (math.sqrt(seen + 0.375) - math.sqrt(expected + 0.375)) / math.sqrt(burst)


def without_chance(forecast: Forecast, filled: Loads, demand: Demand, step_s: float, quantile: float) -> Forecast:
    """What is planned, less what of its deviation is the noise of counting requests for `step_s`.

    Forecasts are judged by what was counted, and that requests come by chance they cannot foresee. Computed capacity
    allows for it already. Variances add up, so that of the counts is taken from that of the forecast.
    """
    base = max(forecast.now, forecast.expected)
    deviations = NormalDist().inv_cdf(quantile)
    counted = deviations * math.sqrt(demand.burst * base / (filled.capacity_rps * step_s))
    beyond = max(0.0, forecast.planned - base)
    return replace(forecast, planned=base + math.sqrt(max(0.0, beyond**2 - counted**2)))

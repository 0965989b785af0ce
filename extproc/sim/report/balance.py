"""How evenly a run spread its load over instances, and how fairly over tenants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import sqrt

from extproc.sim.report.oscillation import MIN_REQUESTS_PER_INSTANCE, ready_instances
from extproc.sim.report.run import Sample


def imbalance(samples: Sequence[Sample], power: Sequence[float]) -> float | None:
    """Time-mean of the coefficient of variation of load, each instance's load divided by its share of power.

    0 where every instance holds as many requests, running and waiting, as its share of the fleet's power; sqrt(n - 1)
    where one of n equal instances holds all. Samples of a nearly empty fleet are left out; None if no other is there.
    """
    total, used = 0.0, 0
    for sample in samples:
        ready = ready_instances(sample)
        counts = [sample.running[i] + sample.waiting[i] for i in ready]
        if not counts or sum(counts) < MIN_REQUESTS_PER_INSTANCE * len(counts):
            continue
        loads = [count / power[i] for i, count in zip(ready, counts, strict=True)]
        mean = sum(loads) / len(loads)
        total += sqrt(sum((load - mean) ** 2 for load in loads) / len(loads)) / mean
        used += 1
    return total / used if used else None


def fairness(paces: Mapping[str, Iterable[float]]) -> float | None:
    """Jain's index over tenants of their mean pace; None with fewer than two tenants, or if none was served.

    The pace of a request is its unloaded time over its real one, at most 1, and 0 if it was not served. The index is
    1 where all tenants are served alike, and 1/n where one of n gets everything.
    R. Jain, D. Chiu, W. Hawe: A Quantitative Measure of Fairness and Discrimination, DEC-TR-301 (1984).
    """
    means = [sum(values) / len(values) for values in map(list, paces.values()) if values]
    squares = sum(mean * mean for mean in means)
    if len(means) < 2 or squares == 0.0:
        return None
    return sum(means) ** 2 / (len(means) * squares)

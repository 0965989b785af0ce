"""Daily load: a quiet night, a busy day, and bursts, as a warp of the time at which requests arrive."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random

from extproc.sim.traffic.arrival import Traffic

_STEPS = 1440  # of one day: its minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class DayShape:
    """How load changes over a day, which begins and ends at its quietest."""

    peak_to_trough: float = 4.0
    bursts: int = 4  # in a day
    burst_share: float = 0.01  # of the day, that one of them lasts
    burst_factor: float = 2.5  # by how much it exceeds the load around it

    def load(self, random: Random) -> list[float]:
        """Load in each minute of one day, in any unit."""
        middle, swing = (self.peak_to_trough + 1) / 2, (self.peak_to_trough - 1) / 2
        load = [middle - swing * math.cos(2 * math.pi * (step + 0.5) / _STEPS) for step in range(_STEPS)]
        length = max(1, round(self.burst_share * _STEPS))
        for _ in range(self.bursts):
            start = random.randrange(_STEPS - length)
            load[start : start + length] = [value * self.burst_factor for value in load[start : start + length]]
        return load


def in_days(traffic: Traffic, seed: int = 0, days: int = 1, shape: DayShape = DayShape()) -> Traffic:
    """The same requests in the same order, gathered where such days are busy: the whole time is cut into `days`.

    A request waits for the answer that it follows and the time to think as before.
    """
    random = Random(seed)
    reached = [0.0, *accumulate(load for _ in range(days) for load in shape.load(random))]
    span_s = traffic.arrivals[-1].at_s if traffic.arrivals else 0.0
    step_s = span_s / (len(reached) - 1)

    def warped(at_s: float) -> float:
        """When as large a share of the days' load has passed as of the time before."""
        passed = reached[-1] * (at_s / span_s if span_s else 0.0)
        step = min(bisect_right(reached, passed) - 1, len(reached) - 2)
        return step_s * (step + (passed - reached[step]) / (reached[step + 1] - reached[step]))

    arrivals = tuple([replace(arrival, at_s=warped(arrival.at_s)) for arrival in traffic.arrivals])
    return replace(traffic, arrivals=arrivals)

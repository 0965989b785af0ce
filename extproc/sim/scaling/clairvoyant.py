"""A bound: who knows every request that is to come has instances Ready just when they are needed, and no longer.

Load is that of `core.scaling.capacity`, as ours has it, of the very requests that come around each moment. What is
needed within a cold start is ordered, and kept: one that is idle for less than a start would cost as much anew. So what
any other loses against it is what cannot be foreseen, or is foreseen badly. It knows nothing of caches that are to
come: what was cached up to now of each prompt is taken to go on.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate

from extproc.core.scaling.capacity import limits_of, load_of, long_context, tightest
from extproc.core.scaling.demand import RATE_S, Demand
from extproc.core.scaling.sight import Sight
from extproc.errors import ConfigError
from extproc.sim.fleet.spec import FleetSpec
from extproc.sim.scaling.scaler import Autoscaling, Bounds, View, Wanted
from extproc.sim.traffic.arrival import Arrival

_SIZES_S = 120.0  # window of mean sizes, around each moment
_GRID_S = 5.0  # of which loads are told
_CACHED_PARTS = 20  # in which the cached share is told, so that a load is worked out once
_Sums = tuple[float, ...]


class Clairvoyant:
    """One pool; `room` times the load is had."""

    def __init__(
        self,
        autoscaling: Autoscaling,
        pools: Mapping[str, Bounds],
        fleet: FleetSpec,
        arrivals: Sequence[Arrival],
        room: float = 1.0,
    ) -> None:
        """Raises ConfigError where there are several pools: which of them grows is no matter of foresight."""
        if len(pools) > 1:
            raise ConfigError("the autoscaler clairvoyant knows one pool only")
        if room <= 0.0:
            raise ConfigError("the autoscaler clairvoyant needs a room above 0")
        self.tick_s, self.window_s = _GRID_S, 0.0
        self._bounds, self._room, self._fleet = pools, room, fleet
        self._starts_s = {spec.pool: spec.start_s for spec in fleet.instances}
        self._came_s = [each.at_s for each in arrivals]
        rows = [(1.0, each.prompt_tokens, each.prompt_tokens**2, each.output_tokens) for each in arrivals]
        squares = [float(each.output_tokens**2) for each in arrivals]
        self._ever = list(accumulate(((*row, more) for row, more in zip(rows, squares, strict=True)), _plus))
        self._loads: dict[tuple[int, int], float] = {}

    def look(self, view: View) -> Wanted:
        """As many as the most that is needed until one that starts now is Ready."""
        sight = view.sight()
        asked = sum(each.prompt_tokens for each in sight.counts.values())
        share = sum(each.cached_tokens for each in sight.counts.values()) / asked if asked else 0.0
        part = round(share * _CACHED_PARTS)
        wanted: dict[str, int] = {}
        for pool, bounds in self._bounds.items():
            first, last = int(view.now_s // _GRID_S), math.ceil((view.now_s + self._starts_s[pool]) / _GRID_S)
            most = max(self._load(pool, place, part, sight) for place in range(first, last + 1))
            wanted[pool] = max(bounds.least, min(bounds.most, math.ceil(self._room * most)))
        return Wanted(counts=wanted)

    def _load(self, pool: str, place: int, part: int, sight: Sight) -> float:
        """Instances that are filled at that moment."""
        if (place, part) not in self._loads:
            demand, here = self._demand(place * _GRID_S, part / _CACHED_PARTS), sight.instances
            classes = self._fleet.classes
            slo, long = tightest(classes), long_context(classes)
            found = load_of(sight.speeds[pool], demand, limits_of(here), slo, long=long)
            self._loads[place, part] = found if demand.requests_s > 0.0 else 0.0
        return self._loads[place, part]

    def _demand(self, at_s: float, cached: float) -> Demand:
        count, *_ = self._between(at_s, RATE_S)
        number, prompts, prompt_squares, outputs, output_squares = self._between(at_s, _SIZES_S)
        number = max(1.0, number)
        prompt, output = prompts / number, outputs / number
        return Demand(
            requests_s=count / RATE_S,
            prompt_tokens=prompt,
            cached_tokens=cached * prompt,
            output_tokens=output,
            computed_cv2=_cv2(prompt_squares / number, prompt),
            output_cv2=_cv2(output_squares / number, output),
        )

    def _between(self, middle_s: float, covers_s: float) -> _Sums:
        """Sums of what comes within so long around a moment."""
        ends = [bisect_left(self._came_s, middle_s + side * covers_s / 2) for side in (-1.0, 1.0)]
        before, after = [self._ever[end - 1] if end else (0.0,) * 5 for end in ends]
        return tuple(new - old for new, old in zip(after, before, strict=True))


def _plus(one: _Sums, other: _Sums) -> _Sums:
    return tuple(map(sum, zip(one, other, strict=True)))


def _cv2(square: float, mean: float) -> float:
    return max(0.0, square / mean**2 - 1.0) if mean else 0.0

"""No autoscaler: as many instances of each pool all the time, which is what any of them must beat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from extproc.sim.scaling.scaler import Autoscaling, Bounds, View, Wanted


@dataclass(frozen=True, slots=True)
class Fixed:
    """So many."""

    counts: Mapping[str, int]
    tick_s: float = 15.0
    window_s: float = 0.0

    def look(self, view: View) -> Wanted:
        """The same whatever is seen."""
        return Wanted(counts=self.counts)


def fixed(autoscaling: Autoscaling, pools: Mapping[str, Bounds], count: float = 1.0) -> Fixed:
    """`count` instances of each pool."""
    return Fixed(dict.fromkeys(pools, round(count)))

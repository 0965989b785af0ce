"""When rates are told of what routers have counted; after a time without counts they begin anew."""

from __future__ import annotations

import math

from extproc.core.scaling.demand import Rates
from extproc.core.scaling.sight import Sight

LOOK_S = 2.5  # that rates are told of at the least: routers tell once a second, and chance decides how often in a tick
_GAP_S = 15.0  # between two looks that tell of counts, and three ticks: what came meanwhile is not known
_GAP_TICKS = 3.0


class Counting:
    """The rates of all models, and up to when they were told of counts."""

    rates: Rates
    counted_at_s: float
    """Of the counts that rates were told last."""

    def __init__(self) -> None:
        self._begin()

    def take(self, sight: Sight, tick_s: float) -> bool:
        """Tell rates what was counted, if that is long enough since the last time; whether it was done.

        After a time without counts they begin anew, once all routers have had the time to tell what they had kept.
        """
        at_s = sight.at_s if sight.counted_at_s is None else sight.counted_at_s
        gap = 0.0 <= self.counted_at_s < at_s - max(_GAP_S, _GAP_TICKS * tick_s)
        if sight.routers == 0 or gap:
            self._begin()
            self._blind_until_s = sight.at_s + tick_s + LOOK_S
        if not sight.counts or sight.at_s < self._blind_until_s or at_s < self.counted_at_s + LOOK_S:
            return False
        self.counted_at_s = at_s
        self.rates.add(at_s, sight.counts)
        return True

    @property
    def began_anew(self) -> bool:
        """Whether there was a time without counts: then a demand that is not known may be any."""
        return self._blind_until_s > -math.inf

    def _begin(self) -> None:
        self.rates = Rates()
        self.counted_at_s = -math.inf
        self._blind_until_s = -math.inf

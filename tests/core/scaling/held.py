"""What became of plans: how many held, how far above what came they were, and how far off the expected load was."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from extproc.core.scaling.forecast import Forecaster
from extproc.core.scaling.history import grid
from tests.core.scaling.loads import Looks


@dataclass(frozen=True)
class Plans:
    """Of each look of which the end is known: what was told, and what came."""

    at_s: np.ndarray
    expected: np.ndarray
    planned: np.ndarray
    came: np.ndarray  # mean of one step, around the horizon

    @property
    def held(self) -> float:
        """Share of plans that what came stayed below."""
        return float((self.came <= self.planned).mean())

    @property
    def overshoot(self) -> float:
        """How far plans were above what came, of the mean of that."""
        return float((self.planned - self.came).mean() / self.came.mean())

    @property
    def error(self) -> float:
        """Mean absolute error of the expected load, of the mean of what came."""
        return float(np.abs(self.expected - self.came).mean() / self.came.mean())

    def where(self, which: np.ndarray) -> Plans:
        """Only some of them."""
        return Plans(self.at_s[which], self.expected[which], self.planned[which], self.came[which])

    def bias(self) -> float:
        """How far the expected load was above what came, of the mean of that."""
        return float((self.expected - self.came).mean() / self.came.mean())


def plans(looks: Looks, horizon_s: float, quantile: float = 0.95, after_s: float = 0.0) -> Plans:
    """Let a forecaster see all looks, ask it at each, and keep what it said from `after_s` on."""
    forecaster, tick_s, count = Forecaster(looks.period_s), looks.tick_s, len(looks.loads)
    at_s = (np.arange(count) + 1) * tick_s
    expected, planned = np.empty(count), np.empty(count)
    for look, load in enumerate(looks.loads.tolist()):
        forecaster.add(float(at_s[look]), load, tick_s)
        told = forecaster.forecast(float(at_s[look]), horizon_s, quantile)
        expected[look], planned[look] = told.expected, told.planned
    width = max(1, round(grid(looks.period_s).step_s / tick_s))
    first = np.arange(count) + 1 + round(horizon_s / tick_s) - width // 2
    passed = np.concatenate([[0.0], np.cumsum(looks.loads)])
    known = (first + width <= count) & (at_s >= after_s) & (first >= 0)
    came = (passed[first[known] + width] - passed[first[known]]) / width
    return Plans(at_s[known], expected[known], planned[known], came)

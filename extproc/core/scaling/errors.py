"""How far forecasts were off, by horizon: which expert to trust, and how wide a plan has to be."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Loads = NDArray[np.float64]

_POWER = 3.0  # weight of an expert: one over its mean squared error to this power
_UNTRIED = 8.0  # steps for which one without a past counts as if it had been as good as the middle one
_OUTLIER = 3.0  # errors beyond so many of the usual size count as this large: one burst decides nothing
_PRIOR_STEPS = 10.0  # forecasts that the prior counts for, and beyond them
_PRIOR_HORIZONS = 1.5  # horizons: what was forecast within one of them is not known apart
_FAR = 5.0  # times the distance from the median to the 80th percentile: over 4 standard deviations of chance
_BURSTS = 0.6
_REACH = 12.0  # spreads; beyond it all the same
_FINE = 0.25
_CELLS = 160
_EDGES = _FINE * np.sinh(np.linspace(-np.arcsinh(_REACH / _FINE), np.arcsinh(_REACH / _FINE), _CELLS + 1))


class Errors:
    """Errors of forecasts for one horizon each in a row, relative to the size that the load lets expect.

    All fade with time constants in steps: those of experts and the spread soon, the distribution of errors in spreads
    after a period.
    """

    def __init__(self, horizons_steps: NDArray[np.int64], experts: int, period_steps: float) -> None:
        rows = len(horizons_steps)
        self._soon = np.exp(-1 / max(12.0, period_steps / 6))
        self._late = np.exp(-1 / max(36.0, period_steps))
        self.squares: Loads = np.zeros((rows, experts))
        self.tried: Loads = np.zeros((rows, experts))
        prior = 0.2 + 0.2 * np.minimum(1.0, horizons_steps / 12)
        self._prior_steps = _PRIOR_STEPS + _PRIOR_HORIZONS * horizons_steps
        self.variance: Loads = self._prior_steps / 2 * prior**2
        self.judged: Loads = self._prior_steps / 2
        middles = (_EDGES[1:] + _EDGES[:-1]) / 2
        normal = np.exp(-(middles**2) / 2) * np.diff(_EDGES)
        self.cells: Loads = normal / normal.sum() * self._prior_steps[:, None]

    def weights(self, known: NDArray[np.bool_]) -> Loads:
        """Shares of the experts [horizon, expert] in a mixture; of those that are not known, 0."""
        tried = self.tried > 0
        usual = np.where(known & tried, self.squares / np.where(tried, self.tried, 1.0), np.nan)
        some = np.isfinite(usual).any(axis=1)
        middle = np.maximum(1e-12, np.nanmedian(np.where(some[:, None], usual, 1.0), axis=1))
        mean = (self.squares + _UNTRIED * middle[:, None]) / (self.tried + _UNTRIED)
        trust = np.where(known, (middle[:, None] / np.maximum(mean, 1e-9 * middle[:, None])) ** _POWER, 0.0)
        shares: Loads = trust / trust.sum(axis=1, keepdims=True)
        return shares

    def judge(self, row: int, experts: Loads, mixture: float, spread: float) -> None:
        """One load has come: errors of what experts (NaN: said nothing) and the mixture had forecast for it."""
        limit = _OUTLIER * self.spread[row]
        said = np.isfinite(experts)
        self.squares[row] *= self._soon
        self.tried[row] *= self._soon
        self.squares[row] += np.where(said, np.minimum(np.abs(np.where(said, experts, 0.0)), 2 * limit) ** 2, 0.0)
        self.tried[row] += said
        self.cells[row] *= self._late
        cell = int(np.searchsorted(_EDGES, mixture / spread)) - 1
        self.cells[row, min(_CELLS - 1, max(0, cell))] += 1
        self.variance[row] = self._soon * self.variance[row] + min(abs(mixture), limit) ** 2
        self.judged[row] = self._soon * self.judged[row] + 1

    @property
    def spread(self) -> Loads:
        """Root of the mean squared error of late, by horizon."""
        return np.sqrt(self.variance / self.judged) + 1e-6

    def quantile(self, share: float) -> Loads:
        """The error, in spreads, that a plan has to stand so that this share of loads stays below it, by horizon.

        Bursts that nothing announces are not planned for as long as they are few: beyond four times the usual
        deviation, errors are left out, up to `_BURSTS` of the share that may be missed. Else the plan would leap by a
        whole burst whenever these are about as frequent as misses may be.
        """
        total = self.cells.sum(axis=1)
        passed = np.cumsum(self.cells, axis=1)
        middle, usual = self._at(passed, 0.5 * total), self._at(passed, 0.8 * total)
        far = _EDGES[None, :-1] > (middle + _FAR * (usual - middle))[:, None]
        bursts = np.minimum(np.where(far, self.cells, 0.0).sum(axis=1), _BURSTS * (1 - share) * total)
        return self._at(passed, share * (total - bursts))

    def _at(self, passed: Loads, wanted: Loads) -> Loads:
        """The error that so much is below."""
        cell = np.minimum((passed < wanted[:, None]).sum(axis=1), _CELLS - 1)
        rows = np.arange(len(passed))
        within = self.cells[rows, cell]
        part = np.where(within > 0, (wanted - passed[rows, cell] + within) / np.where(within > 0, within, 1.0), 0.5)
        return _EDGES[cell] + (_EDGES[cell + 1] - _EDGES[cell]) * np.clip(part, 0.0, 1.0)

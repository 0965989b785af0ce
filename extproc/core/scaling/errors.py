"""How far forecasts were off, by horizon: which expert to trust, and how wide a plan has to be."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from extproc.core.scaling.middle import middle_two

Loads = NDArray[np.float64]

_SOON = 8.0  # errors of so large a part of a period tell which expert is good and how wide a plan should be
_LEAST_SOON_STEPS = 12.0
_LEAST_LATE_STEPS = 36.0
_POWER = 8.0  # weight of an expert: one over its mean squared error to this power
_UNTRIED = 8.0  # steps for which one without a past counts as if it had been as good as the middle one
_OUTLIER = 2.0  # errors beyond so many of the usual size count as this large: one burst decides nothing
_EXPERT_OUTLIER = 6.0  # times the limit of the mixture
_PRIOR_STEPS = 10.0  # forecasts that the prior counts for, and beyond them
_PRIOR_HORIZONS = 1.5  # horizons: what was forecast within one of them is not known apart
_FADING_STEPS = 4.0  # and half the horizon: in so many steps the prior of the spread fades
_PRIOR_ERROR = 0.2  # of the load, one step ahead; twice that 12 steps ahead
_PRIOR_POWER = 0.75
_PRIOR_GROWTH = 3.0  # steps at loads as far from the usual as e is from 1
_REACH = 4.0  # spreads; beyond it all the same
_FINE = 0.25
_CELLS = 160
_EDGES: Loads = _FINE * np.sinh(np.linspace(-np.arcsinh(_REACH / _FINE), np.arcsinh(_REACH / _FINE), _CELLS + 1))


class Errors:
    """Errors of forecasts, for one horizon each in a row, relative to the size that the load lets expect.

    Three things are kept, and all fade: the mean squared errors of experts and of their mixture (the square of the
    spread), soon; and how the mixture's errors, in spreads as of when it was told, are distributed, after a period.
    """

    def __init__(self, horizons_steps: NDArray[np.int64], lines: NDArray[np.bool_], period_steps: float) -> None:
        """`lines`: which of the experts follow a slope."""
        rows, experts = len(horizons_steps), len(lines)
        self._lines = lines
        self._soon = float(np.exp(-1 / max(_LEAST_SOON_STEPS, period_steps / _SOON)))
        self._late = float(np.exp(-1 / max(_LEAST_LATE_STEPS, period_steps)))
        self._squares: Loads = np.zeros((rows, experts))
        self._tried: Loads = np.zeros((rows, experts))
        prior_steps = _PRIOR_STEPS + _PRIOR_HORIZONS * horizons_steps
        error = _PRIOR_ERROR * (1 + np.minimum(1.0, horizons_steps / 12))
        self._prior: Loads = prior_steps / 2  # steps that the prior's error still counts for
        self._prior_squared: Loads = error**2
        self._fading: Loads = 1 - 1 / (_FADING_STEPS + horizons_steps / 2)
        self._own: Loads = np.zeros(rows)  # squared errors of the mixture
        self._judged: Loads = np.zeros(rows)
        normal = np.exp(-(((_EDGES[1:] + _EDGES[:-1]) / 2) ** 2) / 2) * np.diff(_EDGES)
        self._cells: Loads = normal / normal.sum() * prior_steps[:, None]

    def parts(self) -> list[Loads]:
        """All that was learned."""
        return [self._squares, self._tried, self._prior, self._own, self._judged, self._cells]

    def restore(self, parts: list[Loads]) -> None:
        """Take over what `parts` gave, flat. Raises ValueError if it was of another size."""
        self._squares, self._tried, self._prior, self._own, self._judged, self._cells = (
            part.reshape(own.shape) for part, own in zip(parts, self.parts(), strict=True)
        )

    def weights(self, known: NDArray[np.bool_]) -> Loads:
        """Shares of the experts [horizon, expert] in the mixture; of those that do not know (False), 0.

        A slope counts where it was held against what came: of the first requests it is chance, and how their sizes
        become known.
        """
        tried = self._tried > 0
        known = known & (tried | ~self._lines)
        usual = np.where(known & tried, self._squares / np.where(tried, self._tried, 1.0), np.nan)
        some = np.isfinite(usual).any(axis=1)
        low, high = middle_two(np.where(some[:, None], usual, 1.0))
        middle = np.maximum(1e-12, (low + high) / 2)[:, None]
        mean = (self._squares + _UNTRIED * middle) / (self._tried + _UNTRIED)
        trust = np.where(known, (middle / np.maximum(mean, 1e-9 * middle)) ** _POWER, 0.0)
        shares: Loads = trust / trust.sum(axis=1, keepdims=True)
        return shares

    @property
    def whole(self) -> NDArray[np.bool_]:
        """Whether slopes count yet, by horizon: else a mixture's error tells nothing of those to come."""
        if not self._lines.any():
            return np.ones(len(self._tried), dtype=np.bool_)
        counted: NDArray[np.bool_] = np.any(self._tried[:, self._lines] > 0, axis=1)
        return counted

    def judge(self, row: int, experts: Loads, mixture: float | None, spread: float) -> None:
        """One load has come: errors of what experts (NaN: said nothing) and the mixture had forecast for it.

        `spread`: what it was when that was told. `mixture`: None where it was not `whole`.
        """
        limit = _OUTLIER * float(self.spread[row])
        said = np.isfinite(experts)
        off = np.minimum(np.abs(np.where(said, experts, 0.0)), _EXPERT_OUTLIER * limit)
        self._squares[row] = self._soon * self._squares[row] + off**2
        self._tried[row] = self._soon * self._tried[row] + said
        if mixture is None:
            return
        self._prior[row] *= self._fading[row]
        self._own[row] = self._soon * self._own[row] + min(abs(mixture), limit) ** 2
        self._judged[row] = self._soon * self._judged[row] + 1
        self._cells[row] *= self._late
        cell = int(np.searchsorted(_EDGES, mixture / spread)) - 1
        self._cells[row, min(_CELLS - 1, max(0, cell))] += 1

    @property
    def spread(self) -> Loads:
        """Root of the mixture's mean squared error of late, by horizon."""
        prior = self._prior * self._prior_squared
        spread: Loads = np.sqrt((self._own + prior) / (self._judged + self._prior)) + 1e-6
        return spread

    def quantile(self, share: float) -> Loads:
        """The error, in spreads, that this share of the errors was below, by horizon; at most four spreads.

        So rare bursts that nothing announces are planned for in part only, whatever the share.
        """
        passed = np.cumsum(self._cells, axis=1)
        return _below(passed, share * passed[:, -1])


def _below(passed: Loads, wanted: Loads) -> Loads:
    """The error that so many are below, of each row of sums over cells."""
    cell = np.minimum((passed < wanted[:, None]).sum(axis=1), _CELLS - 1)
    rows = np.arange(len(passed))
    before = np.where(cell > 0, passed[rows, cell - 1], 0.0)
    within = passed[rows, cell] - before
    part = np.where(within > 0, (wanted - before) / np.where(within > 0, within, 1.0), 0.5)
    found: Loads = _EDGES[cell] + (_EDGES[cell + 1] - _EDGES[cell]) * np.clip(part, 0.0, 1.0)
    return found


class Growth:
    """How errors grow with load: as which of its powers, by regression of their logarithms.

    Errors by chance grow with the root, and those of what all users do together with the load itself; where load comes
    and goes at will they do not grow, and a plan in parts of the load would be far too high just when that is high.
    """

    def __init__(self, period_steps: float) -> None:
        self._kept = float(np.exp(-1 / max(_LEAST_LATE_STEPS, period_steps)))
        self.sums: Loads = np.array([0.0, 0.0, 0.0, _PRIOR_GROWTH, _PRIOR_GROWTH * _PRIOR_POWER])

    def add(self, loads: Loads, errors: Loads) -> None:
        """Forecasts and how far off they were, both relative to the usual load."""
        across, up = np.log(np.maximum(loads, 0.05)), np.log(np.maximum(np.abs(errors), 0.003))
        self.sums *= self._kept
        self.sums += np.array([1.0, across.mean(), up.mean(), (across**2).mean(), (across * up).mean()])

    @property
    def power(self) -> float:
        """Between 0 and 1."""
        count, across, up, squares, products = self.sums.tolist()
        spread = squares - (across**2 / count if count else 0.0)
        if spread <= 0:
            return _PRIOR_POWER
        return float(min(1.0, max(0.0, (products - (across * up / count if count else 0.0)) / spread)))

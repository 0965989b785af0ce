"""Two unknown numbers with their uncertainty: a Kalman filter's state, and how several of them become one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Pair:
    """Means and covariance of two numbers; `update` is the Kalman filter's, with a bounded innovation.

    Bounding the innovation is Huber's M-estimate in recursive form (P. Huber, Robust Statistics): what is far off moves
    the mean as far as an error at the bound would, and not farther.
    """

    first: float
    second: float
    var_first: float
    var_second: float
    covariance: float = 0.0

    def copy(self) -> Pair:
        """Return another one with the same numbers."""
        return Pair(self.first, self.second, self.var_first, self.var_second, self.covariance)

    def variance(self, h_first: float, h_second: float) -> float:
        """Variance of h_first * first + h_second * second."""
        return (
            h_first * h_first * self.var_first
            + h_second * h_second * self.var_second
            + 2.0 * h_first * h_second * self.covariance
        )

    def update(self, h_first: float, h_second: float, surprise: float, noise: float, deviations: float) -> None:
        """Take in one measurement of h_first * first + h_second * second.

        `surprise` is measured less expected, `noise` its variance beyond the state's, and it counts as so many
        `deviations` of both at the most.
        """
        gain_first = h_first * self.var_first + h_second * self.covariance
        gain_second = h_first * self.covariance + h_second * self.var_second
        total = h_first * gain_first + h_second * gain_second + noise
        limit = deviations * math.sqrt(total)
        step = max(-limit, min(limit, surprise)) / total
        self.first += gain_first * step
        self.second += gain_second * step
        self.var_first -= gain_first * gain_first / total
        self.var_second -= gain_second * gain_second / total
        self.covariance -= gain_first * gain_second / total

    def doubt(self, var_first: float, var_second: float, limit: Pair, correlation: float = 0.0) -> None:
        """Add to the variances, never beyond those of `limit`; a variance cut to its limit scales its row alike."""
        self.var_first += var_first
        self.var_second += var_second
        self.covariance += correlation * math.sqrt(var_first * var_second)
        if self.var_first > limit.var_first:
            self.covariance *= math.sqrt(limit.var_first / self.var_first)
            self.var_first = limit.var_first
        if self.var_second > limit.var_second:
            self.covariance *= math.sqrt(limit.var_second / self.var_second)
            self.var_second = limit.var_second


def fuse(prior: Pair, estimates: Sequence[Pair]) -> Pair:
    """Combine estimates that began from the same prior and saw different measurements, by precision.

    The prior is in each of them and counts once (information filter: precisions add).
    """
    if len(estimates) == 1:
        return estimates[0].copy()
    total = common = _information(prior)
    for estimate in estimates:
        total = _exchanged(total, common, _information(estimate))
    return _pair(total) or prior.copy()  # they knew less than the prior: nothing to gain


def rebased(state: Pair, base: Pair, prior: Pair) -> Pair:
    """What would be believed after the same measurements, had the state begun from `prior` and not from `base`."""
    total = _exchanged(_information(state), _information(base), _information(prior))
    return _pair(total) or prior.copy()


def _exchanged(total: tuple[float, ...], less: tuple[float, ...], more: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(t - q + p for t, q, p in zip(total, less, more, strict=True))


def _pair(information: tuple[float, ...]) -> Pair | None:
    """The state that has this information, None if none has."""
    i_first, i_second, i_cross, v_first, v_second = information
    determinant = i_first * i_second - i_cross * i_cross
    if determinant <= 0.0 or i_first <= 0.0:
        return None
    return Pair(
        (i_second * v_first - i_cross * v_second) / determinant,
        (i_first * v_second - i_cross * v_first) / determinant,
        i_second / determinant,
        i_first / determinant,
        -i_cross / determinant,
    )


def _information(pair: Pair) -> tuple[float, ...]:
    """Inverse covariance (first, second, cross) and its product with the means."""
    determinant = max(pair.var_first * pair.var_second - pair.covariance**2, 1e-9 * pair.var_first * pair.var_second)
    first, second = pair.var_second / determinant, pair.var_first / determinant
    cross = -pair.covariance / determinant
    return (
        first,
        second,
        cross,
        first * pair.first + cross * pair.second,
        cross * pair.first + second * pair.second,
    )

"""What load came at the same time of earlier periods: smooth, with the peaks that came more than once."""

from __future__ import annotations

from math import floor

import numpy as np
from numpy.typing import NDArray

from extproc.core.scaling.history import PERIODS, History
from extproc.core.scaling.middle import middle_two

WEEK = 7  # periods after which days differ in the same way again
_SMOOTH_SHARE = 0.05  # of a period: what is shorter than half of this is a peak, not the season's shape
_OLDER = 0.6  # weight of a period beside the one after it


class Season:
    """The load that earlier periods let expect, relative to each other: only ratios of it should be used.

    In each earlier period the median over 5 % of the period tells the shape; a peak upon it counts as far as it came
    in more than one period. So a burst is expected from its second time on, at its smaller height, and is forgotten
    once most periods went without it.
    """

    def __init__(self, history: History, lags: tuple[int, ...] = tuple(range(1, PERIODS + 1))) -> None:
        self._history = history
        self._lags = np.array(lags)
        self._weights = _OLDER ** np.arange(len(lags))
        reach = max(1, round(_SMOOTH_SHARE * history.grid.buckets / 2))
        self._near = np.arange(-reach, reach + 1)
        self._kept: dict[int, float] = {}  # by bucket
        self._kept_at = -1  # the newest bucket when these were computed

    def at(self, times_s: list[float]) -> list[float]:
        """Expected load at each of these times; NaN where no earlier period is known."""
        bucket_s = self._history.grid.bucket_s
        if self._kept_at != self._history.newest:
            self._kept, self._kept_at = {}, self._history.newest
        places = [time_s / bucket_s - 0.5 for time_s in times_s]
        missing = {bucket for place in places for bucket in (floor(place), floor(place) + 1)} - self._kept.keys()
        if missing:  # and the next ones too, that the same horizons will ask for before the newest bucket is over
            buckets = np.array(sorted(missing | {bucket + 1 for bucket in missing}))
            self._kept.update(zip(buckets.tolist(), self._expected(buckets).tolist(), strict=True))
        between = [(self._kept[floor(place)], self._kept[floor(place) + 1], place - floor(place)) for place in places]
        return [before + (after - before) * share for before, after, share in between]

    def _expected(self, buckets: NDArray[np.int64]) -> NDArray[np.float64]:
        """Shape x peaks of each bucket."""
        same = buckets[:, None] - self._lags * self._history.grid.buckets  # [bucket, period]
        around = self._history.loads(same[:, :, None] + self._near)
        around[self._newer(same)] = np.nan
        there = np.isfinite(around[:, :, len(self._near) // 2])
        low, high = middle_two(around)
        shapes = np.where(there, (low + high) / 2, 0.0)
        weights = there * self._weights
        known = weights.sum(axis=1)
        shape = (shapes * weights).sum(axis=1) / np.where(known > 0, known, np.nan)
        peaks = np.where(
            there & (shapes > 0), around[:, :, len(self._near) // 2] / np.where(shapes > 0, shapes, 1.0), np.nan
        )
        expected: NDArray[np.float64] = shape * self._agreed(peaks)
        return expected

    def _newer(self, same: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the buckets around are not over yet."""
        return same[:, :, None] + self._near >= self._history.newest

    @staticmethod
    def _agreed(peaks: NDArray[np.float64]) -> NDArray[np.float64]:
        """How high the peak at each bucket is: the median of what periods say and of one more that knows of none.

        Of an even number it is the one of the middle two that is nearer to 1.
        """
        low, high = middle_two(np.concatenate([peaks, np.ones((len(peaks), 1))], axis=1))
        return np.where(low > 1, low, np.minimum(high, 1.0))

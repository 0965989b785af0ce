"""What a load was, in steps that open and close one after the other, and in buckets over the last periods."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor

import numpy as np
from numpy.typing import NDArray

PERIODS = 14  # that are remembered: of days, two weeks
_FINEST_S = 1.0
_COARSEST_S = 60.0
_STEPS = 144  # of a period, as long as they are neither finer nor coarser than that
_BUCKETS = 288  # of a period, at the most


@dataclass(frozen=True, slots=True)
class Grid:
    """How time is cut. A step is what load is averaged over before it is judged; a bucket is some whole steps."""

    period_s: float
    buckets: int  # in a period
    steps: int  # in a bucket

    @property
    def bucket_s(self) -> float:
        """Length of a bucket."""
        return self.period_s / self.buckets

    @property
    def step_s(self) -> float:
        """Length of a step."""
        return self.bucket_s / self.steps


def grid(period_s: float) -> Grid:
    """Steps of a second to a minute, and at most 288 buckets in a period. Raises ValueError if there is no period."""
    if not period_s > 0:
        raise ValueError(f"a period lasts longer than {period_s} s")
    steps = max(1, round(period_s / min(_COARSEST_S, max(_FINEST_S, period_s / _STEPS))))
    per_bucket = ceil(steps / _BUCKETS)
    return Grid(period_s, ceil(steps / per_bucket), per_bucket)


@dataclass(frozen=True, slots=True)
class Step:
    """One step that is over: its number since the epoch, and the mean load in it."""

    number: int
    load: float


class History:
    """Mean loads: of the steps that are not closed yet, and of every bucket of the last periods (NaN: unknown)."""

    def __init__(self, cut: Grid) -> None:
        self.grid = cut
        self.newest = -1  # bucket
        self._open: dict[int, list[float]] = {}  # by step: load x seconds, seconds
        size = cut.buckets * (PERIODS + 1)
        self._load_seconds: NDArray[np.float64] = np.zeros(size)
        self._seconds: NDArray[np.float64] = np.zeros(size)

    def add(self, at_s: float, load: float, covers_s: float) -> list[Step]:
        """Spread the load of the last `covers_s` over its time; the steps that are over now, oldest first.

        A step that was covered by less than half is unknown and left out.
        """
        step_s = self.grid.step_s
        begin_s = at_s - min(covers_s, self.grid.period_s)
        for number in range(floor(begin_s / step_s), floor(at_s / step_s) + 1):
            seconds = min(at_s, (number + 1) * step_s) - max(begin_s, number * step_s)
            if seconds > 0:
                self._into_bucket(number // self.grid.steps, load, seconds)
                kept = self._open.setdefault(number, [0.0, 0.0])
                kept[0] += load * seconds
                kept[1] += seconds
        return self._closed(floor(at_s / step_s))

    def _closed(self, current: int) -> list[Step]:
        over = sorted(number for number in self._open if number < current)
        sums = [(number, self._open.pop(number)) for number in over]
        return [Step(number, total / seconds) for number, (total, seconds) in sums if seconds >= 0.5 * self.grid.step_s]

    def _into_bucket(self, bucket: int, load: float, seconds: float) -> None:
        size = len(self._seconds)
        if bucket <= self.newest - size:
            return
        if bucket > self.newest:
            stale = np.arange(max(self.newest + 1, bucket - size + 1), bucket + 1) % size
            self._load_seconds[stale] = self._seconds[stale] = 0.0
            self.newest = bucket
        self._load_seconds[bucket % size] += load * seconds
        self._seconds[bucket % size] += seconds

    def loads(self, buckets: NDArray[np.int64]) -> NDArray[np.float64]:
        """Mean load of these buckets (by their numbers since the epoch); NaN where nothing is known (any more)."""
        size = len(self._seconds)
        known = (buckets <= self.newest) & (buckets > self.newest - size)
        seconds = np.where(known, self._seconds[buckets % size], 0.0)
        some = seconds > 0
        return np.where(some, self._load_seconds[buckets % size] / np.where(some, seconds, 1.0), np.nan)

    def all_loads(self) -> NDArray[np.float64]:
        """Mean load of every bucket that is remembered, up to the newest; NaN where nothing is known."""
        size = len(self._seconds)
        return self.loads(np.arange(self.newest - size + 1, self.newest + 1))

    def restore(self, newest: int, loads: NDArray[np.float64]) -> None:
        """Take over what `all_loads` gave when `newest` was the newest bucket."""
        if len(loads) != len(self._seconds):
            raise ValueError(f"{len(loads)} buckets where {len(self._seconds)} are remembered")
        places = np.arange(newest - len(loads) + 1, newest + 1) % len(loads)
        known = np.isfinite(loads)
        self._seconds[places] = np.where(known, self.grid.bucket_s, 0.0)
        self._load_seconds[places] = np.where(known, loads * self.grid.bucket_s, 0.0)
        self.newest = newest

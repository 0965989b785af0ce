"""What load to expect one cold start ahead, and what to plan for: level, trend and season, mixed by their errors."""

from __future__ import annotations

from collections import deque
from math import floor, inf, isfinite, nan
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from extproc.core.scaling.errors import Errors
from extproc.core.scaling.history import History, grid
from extproc.core.scaling.recommendation import Forecast
from extproc.core.scaling.seasons import WEEK, Season
from extproc.core.scaling.trends import Trend

HORIZONS_STEPS = np.array([0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48])
_JUMP = 5.0  # standard errors
_JUMP_SHARE = 0.25
_LEAST_LOAD = 0.02  # instances: below it, errors are not seen relative to the load


class _Said(NamedTuple):
    """A forecast that waits for what comes."""

    row: int
    experts: NDArray[np.float64]
    mixture: float
    size: float
    spread: float


class Forecaster:
    """Learns from one load, in instances that it fills, and tells what it will be in some minutes."""

    def __init__(self, period_s: float) -> None:
        """`period_s`: after which load is expected to come again. Raises ValueError if it is not above 0."""
        self._history = History(grid(period_s))
        cut = self._history.grid
        slow_s = max(period_s / 24, 2 * cut.step_s)
        memories_s = (cut.step_s, (cut.step_s * slow_s) ** 0.5, slow_s)
        self._trends = [Trend(memory_s=memory_s) for memory_s in memories_s]
        self._ratios = [(Trend(memory_s=memory_s), Trend(memory_s=memory_s)) for memory_s in memories_s[1:]]
        self._season = Season(self._history)
        self._week = Season(self._history, (WEEK, 2 * WEEK))
        experts = 3 + 3 + len(self._ratios) + 1
        self._errors = Errors(HORIZONS_STEPS, experts, cut.steps * cut.buckets)
        self._waiting: dict[int, list[_Said]] = {}
        self._at_s = nan
        self._usual = 0.0
        self._usual_s = 0.0
        self._noise = 0.0
        self._noise_s = 0.0
        self._last = (0.0, 0.0)
        self._looks: deque[tuple[float, float]] = deque(maxlen=6)
        self._shares: dict[bytes, NDArray[np.float64]] = {}
        self._wide: dict[float, NDArray[np.float64]] = {}
        self.jumps = 0

    def add(self, at_s: float, load: float, covers_s: float) -> None:
        """The load (mean) of the last `covers_s` seconds before `at_s`. What is not newer than the last is ignored."""
        passed_s = 0.0 if not isfinite(self._at_s) else at_s - self._at_s
        if covers_s <= 0 or passed_s < 0 or not isfinite(load):
            return
        self._at_s = at_s
        for trend in self._trends:
            trend.move(passed_s)
        jumped = self._jump(load, covers_s)
        self._count_noise(load, covers_s)
        for trend in self._trends:
            trend.add(load, covers_s)
            if jumped is not None:
                trend.begin(*jumped)
        closed = self._history.add(at_s, load, covers_s)
        [season] = self._season.at([at_s - covers_s / 2])
        for ours, theirs in self._ratios:
            ours.move(passed_s)
            theirs.move(passed_s)
            if isfinite(season):
                ours.add(load, covers_s)
                theirs.add(season, covers_s)
                if jumped is not None:
                    ours.begin(*jumped)
                    theirs.begin(season, jumped[1])
        for step in closed:
            for said in self._waiting.pop(step.number, ()):
                self._errors.judge(
                    said.row,
                    (step.load - said.experts) / said.size,
                    (step.load - said.mixture) / said.size,
                    said.spread,
                )
        if closed:
            self._shares.clear()
            self._wide.clear()
            self._promise(at_s)

    def _jump(self, load: float, covers_s: float) -> tuple[float, float] | None:
        """Mean load and length of the latest looks, if by no chance they go on with what was before."""
        self._looks.append((load, covers_s))
        line, grain = self._trends[1], self._grain
        if line.seconds < self._history.grid.step_s or not isfinite(grain):
            return None
        base, seconds, total = line.after(0.0, grain), 0.0, 0.0
        found, most = None, _JUMP
        for one, covers in reversed(self._looks):
            seconds, total = seconds + covers, total + one * covers
            off = total / seconds - base
            chance = grain * (max(base, total / seconds) / seconds + base / line.seconds)
            sigmas = abs(off) / chance**0.5 if chance else 0.0
            if abs(off) > _JUMP_SHARE * max(base, _LEAST_LOAD) and sigmas > most:
                found, most = (total / seconds, seconds), sigmas
        if found:
            self._looks.clear()
            self.jumps += 1
        return found

    def _count_noise(self, load: float, covers_s: float) -> None:
        """Mean load, and the noise upon it: von Neumann's successive differences, which a trend leaves alone."""
        kept = np.exp(-covers_s / self._history.grid.period_s)
        self._usual = kept * self._usual + load * covers_s
        self._usual_s = kept * self._usual_s + covers_s
        before, before_s = self._last
        if before_s:
            kept = np.exp(-covers_s / (self._history.grid.period_s / 12))
            squared = (load - before) ** 2 / (1 / covers_s + 1 / before_s)
            self._noise = kept * self._noise + squared * covers_s
            self._noise_s = kept * self._noise_s + (load + before) / 2 * covers_s
        self._last = (load, covers_s)

    @property
    def _grain(self) -> float:
        """Variance of a mean over one second for each unit of load: what one request is, if they come by chance."""
        return self._noise / self._noise_s if self._noise_s else inf

    def _size(self, loads: NDArray[np.float64]) -> NDArray[np.float64]:
        """By how much a load of this size may be off: between its root (chance) and itself (bursts)."""
        usual = max(_LEAST_LOAD, self._usual / self._usual_s if self._usual_s else 0.0)
        return np.maximum(loads, max(0.05 * usual, _LEAST_LOAD)) ** 0.75 * usual**0.25

    def _promise(self, at_s: float) -> None:
        """Keep what is forecast now for the steps ahead, until they are over."""
        step_s = self._history.grid.step_s
        current = floor(at_s / step_s)
        horizons_s = [max(0.0, (current + ahead + 0.5) * step_s - at_s) for ahead in HORIZONS_STEPS.tolist()]
        experts, mixture = self._mixture(horizons_s, np.arange(len(HORIZONS_STEPS)))
        sizes, spread = self._size(mixture), self._errors.spread
        for row, ahead in enumerate(HORIZONS_STEPS.tolist()):
            said = _Said(row, experts[row], float(mixture[row]), float(sizes[row]), float(spread[row]))
            self._waiting.setdefault(current + ahead, []).append(said)
        for number in [number for number in self._waiting if number < current]:
            del self._waiting[number]

    def _mixture(self, horizons_s: list[float], rows: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        experts = self._experts(horizons_s)
        known = np.isfinite(experts)
        weights = self._weights_by_row(known, rows)
        return experts, (np.where(known, experts, 0.0) * weights).sum(axis=1)

    def _weights_by_row(self, known: NDArray[np.bool_], rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Shares [row, expert]; kept until the next errors are judged."""
        pattern = known.all(axis=0)
        key = pattern.tobytes()
        if key not in self._shares:
            self._shares[key] = self._errors.weights(np.broadcast_to(pattern, (len(HORIZONS_STEPS), len(pattern))))
        return self._shares[key][rows]

    def _experts(self, horizons_s: list[float]) -> NDArray[np.float64]:
        grain = self._grain
        levels = [[trend.level] * len(horizons_s) for trend in self._trends]
        lines = [[trend.after(horizon_s, grain) for horizon_s in horizons_s] for trend in self._trends]
        times_s = [self._at_s + horizon_s for horizon_s in horizons_s]
        season, week = self._season.at(times_s), self._week.at(times_s)
        seasons = []
        for ours, theirs in self._ratios:
            small = 0.02 * self._usual / self._usual_s
            ratio = (ours.level + small) / (theirs.level + small) if theirs.seconds else nan
            seasons.append([ratio * value for value in season])
        seasons.append(week)
        return np.array(levels + lines + seasons).T

    def forecast(self, at_s: float, horizon_s: float, quantile: float) -> Forecast:
        """What to expect `horizon_s` after `at_s`, and what to plan for so that the load stays below with this chance."""
        step_s = self._history.grid.step_s
        if not isfinite(self._at_s):
            return Forecast(now=0.0, horizon_s=horizon_s, expected=0.0, planned=0.0)
        late_s = max(0.0, at_s - self._at_s)
        places = (HORIZONS_STEPS + 0.0) * step_s
        horizons = [0.0, *places[(places > 0) & (places < horizon_s)].tolist(), horizon_s]
        rows = np.array([int(np.abs(places - horizon).argmin()) for horizon in horizons])
        _, mixture = self._mixture([late_s + horizon for horizon in horizons], rows)
        if quantile not in self._wide:
            self._wide[quantile] = self._errors.quantile(quantile) * self._errors.spread
        wide = np.interp(horizons, places, self._wide[quantile])
        planned = np.maximum(0.0, mixture + wide * self._size(mixture))
        return Forecast(
            now=float(mixture[0]), horizon_s=horizon_s, expected=float(mixture[-1]), planned=float(planned.max())
        )

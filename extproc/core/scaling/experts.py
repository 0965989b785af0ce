"""Simple forecasts side by side: levels, slopes and seasons, each with a short and a long memory."""

from __future__ import annotations

from collections import deque
from math import isfinite, nan

import msgspec
import numpy as np
from numpy.typing import NDArray

from extproc.core.scaling.grain import Grain
from extproc.core.scaling.history import History
from extproc.core.scaling.seasons import WEEK, Season
from extproc.core.scaling.trends import Trend

Loads = NDArray[np.float64]

EXPERTS = 9  # three levels, three lines, two seasons beside the level of now, and the week's
LINES: NDArray[np.bool_] = np.array([3 <= row < 6 for row in range(EXPERTS)])
_SLOW_SHARE = 1 / 24  # of a period: the longest memory
_QUICK = 0.5  # of a step: the shortest; what a level lags behind a ramp is as long as its memory
_LOOKS = 6  # in which a jump is looked for
_JUMP = 5.0  # standard errors that are no chance any more
_JUMP_SHARE = 0.25  # of the load before: less than this is no jump, however sure
_SMALL = 0.02  # of the usual load, so that nothing is divided by the night's nothing


class Remembered(msgspec.Struct, kw_only=True):
    """What experts have seen, seasons aside."""

    grain: Grain
    trends: list[Trend]
    ratios: list[tuple[Trend, Trend]]  # load, and what the season had let expect at the same times


def _every_trend(seen: Remembered) -> list[Trend]:
    return [*seen.trends, *(trend for pair in seen.ratios for trend in pair)]


class Experts:
    """Forecasts of one load. Where it leaps beyond chance, what was before is forgotten by all but the seasons."""

    def __init__(self, history: History) -> None:
        cut = history.grid
        slow_s = max(_SLOW_SHARE * cut.period_s, 2 * cut.step_s)
        memories_s = (_QUICK * cut.step_s, (cut.step_s * slow_s) ** 0.5, slow_s)
        self.remembered = Remembered(
            grain=Grain(period_s=cut.period_s),
            trends=[Trend(memory_s=memory_s) for memory_s in memories_s],
            ratios=[(Trend(memory_s=memory_s), Trend(memory_s=memory_s)) for memory_s in memories_s[1:]],
        )
        self._step_s = cut.step_s
        self._season, self._week = Season(history), Season(history, (WEEK, 2 * WEEK))
        self._looks: deque[tuple[float, float]] = deque(maxlen=_LOOKS)

    def take_over(self, told: Remembered) -> None:
        """Go on from what another one remembers. How long that is kept from now on is ours to say.

        Raises ValueError if it is of other experts.
        """
        for ours, theirs in zip(_every_trend(self.remembered), _every_trend(told), strict=True):
            theirs.memory_s = ours.memory_s
        self.remembered = told

    @property
    def usual(self) -> float:
        """Mean load of about the last period."""
        return self.remembered.grain.usual

    def add(self, at_s: float, load: float, covers_s: float, passed_s: float) -> None:
        """The load of the last `covers_s` seconds, `passed_s` after the one before."""
        seen = self.remembered
        [season] = self._season.at([at_s - covers_s / 2])
        for trend in _every_trend(seen):
            trend.move(passed_s)
        jump = self._jump(load, covers_s)
        seen.grain.add(load, covers_s)
        for trend in seen.trends:
            trend.add(load, covers_s)
        if isfinite(season):
            for ours, theirs in seen.ratios:
                ours.add(load, covers_s)
                theirs.add(season, covers_s)
        if jump is not None:
            self._begin(jump, season)

    def _begin(self, jump: tuple[float, float], season: float) -> None:
        """Forget what was before a jump."""
        self._looks.clear()
        for trend in self.remembered.trends:
            trend.begin(*jump)
        if isfinite(season):
            for ours, theirs in self.remembered.ratios:
                ours.begin(*jump)
                theirs.begin(season, jump[1])

    def _jump(self, load: float, covers_s: float) -> tuple[float, float] | None:
        """Mean load and seconds of the latest looks, if by no chance they go on with what was before."""
        self._looks.append((load, covers_s))
        line, grain = self.remembered.trends[1], self.remembered.grain.size
        if line.seconds < self._step_s or not isfinite(grain):
            return None
        before = line.after(0.0, line.slope(grain))
        found, most = None, _JUMP
        seconds = total = 0.0
        for looked, covers in reversed(self._looks):
            seconds, total = seconds + covers, total + looked * covers
            mean = total / seconds
            chance = grain * (max(before, mean) / seconds + before / line.seconds)
            errors = abs(mean - before) / chance**0.5 if chance else 0.0
            if errors > most and abs(mean - before) > _JUMP_SHARE * before:
                found, most = (mean, seconds), errors
        return found

    def after(self, at_s: float, horizons_s: list[float]) -> Loads:
        """Load that each expert expects so long after `at_s` [horizon, expert]; NaN where one cannot tell."""
        seen = self.remembered
        slopes = [trend.slope(seen.grain.size) for trend in seen.trends]
        times_s = [at_s + horizon_s for horizon_s in horizons_s]
        said = np.empty((EXPERTS, len(horizons_s)))
        for row, (trend, slope) in enumerate(zip(seen.trends, slopes, strict=True)):
            said[row] = trend.level
            said[len(slopes) + row] = [trend.after(horizon_s, slope) for horizon_s in horizons_s]
        season = np.array(self._season.at(times_s))
        small = _SMALL * self.usual
        for row, (ours, theirs) in enumerate(seen.ratios, 2 * len(slopes)):
            whole = theirs.seconds > 0 and theirs.level + small > 0
            said[row] = season * ((ours.level + small) / (theirs.level + small)) if whole else nan
        said[-1] = self._week.at(times_s)
        return said.T

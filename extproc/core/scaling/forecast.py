"""What load to expect one cold start ahead, and what to plan for: simple forecasts, mixed by their own errors."""

from __future__ import annotations

from functools import lru_cache
from math import floor, isfinite, nan
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from extproc.core.scaling.errors import Errors, Growth
from extproc.core.scaling.experts import LINES, Experts, Remembered
from extproc.core.scaling.history import History, Step, grid
from extproc.core.scaling.recommendation import Forecast
from extproc.errors import UNREADABLE

Loads = NDArray[np.float64]

HORIZONS_STEPS = np.array([0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48])
_VERSION = 1
_MOST_AHEAD = 16  # forecasts that are kept until the next look
_LEAST_LOAD = 0.02  # instances: below it, errors are not seen relative to the load
_LEAST_SHARE = 0.05  # of the usual load, likewise


class _Said(NamedTuple):
    """A forecast that waits for what comes."""

    row: int  # of the horizon
    experts: Loads
    mixture: float
    spread: float
    whole: bool  # slopes counted in the mixture


class _Dump(msgspec.Struct, kw_only=True):
    """All that is learned. Arrays are bytes of float32."""

    version: int
    period_s: float
    at_s: float
    newest_bucket: int
    loads: bytes
    remembered: Remembered
    errors: list[bytes]
    growth: bytes


class Forecaster:
    """Learns from one load, in instances that it would fill, and tells what it will be in some minutes.

    Time is cut into steps of a period's 144th (a second at least, a minute at most: `history.grid`), and what is
    forecast is the mean load of a step: shorter peaks are the queues' affair. At the end of each step nine simple
    forecasts (`experts`) are written down for twelve horizons and held against what comes; the smaller the errors of
    one at a horizon of late, the more it counts there. How far the mixture was off tells how much more to plan for.
    """

    def __init__(self, period_s: float) -> None:
        """`period_s`: after which load is expected to come again. Raises ValueError if it is not above 0."""
        history = History(grid(period_s))
        self._begin(history, _errors(history), _growth(history))

    def _begin(self, history: History, errors: Errors, growth: Growth) -> None:
        self._history, self._errors, self._growth = history, errors, growth
        self._experts = Experts(history)
        self._waiting: dict[int, list[_Said]] = {}  # by step
        self._at_s = nan  # of the last look
        self._shares: dict[bytes, Loads] = {}  # by which experts know anything; as of the last judgement
        self._wide: dict[float, Loads] = {}  # by quantile; likewise
        self._ahead: dict[tuple[float, float], tuple[Loads, Loads]] = {}  # by time and horizon; since the last look

    @property
    def knows(self) -> bool:
        """Whether any load was seen."""
        return isfinite(self._at_s)

    def add(self, at_s: float, load: float, covers_s: float) -> None:
        """The mean load of the last `covers_s` seconds before `at_s`.

        A look that is older than the last one, covers nothing or has no finite load is left out.
        """
        passed_s = at_s - self._at_s if isfinite(self._at_s) else 0.0
        if covers_s <= 0 or passed_s < 0 or not isfinite(load):
            return
        self._at_s = at_s
        self._ahead.clear()
        self._experts.add(at_s, load, covers_s, passed_s)
        closed = self._history.add(at_s, load, covers_s)
        for step in closed:
            self._judge(step)
        if closed:
            self._shares.clear()
            self._wide.clear()
            self._write_down(at_s)

    def forecast(self, at_s: float, horizon_s: float, quantile: float) -> Forecast:
        """What to expect `horizon_s` after `at_s`, and what to plan for.

        The load `horizon_s` ahead, as the mean of a step, stays below `planned` with a chance of about `quantile`;
        bursts that nothing announces are planned for in part only (`errors.Errors.quantile`).
        Before anything was seen all is 0.
        """
        if not self.knows:
            return Forecast(now=0.0, horizon_s=horizon_s, expected=0.0, planned=0.0)
        step_s = self._history.grid.step_s
        horizons_s, rows = _until(horizon_s, step_s)
        if (at_s, horizon_s) not in self._ahead:
            if len(self._ahead) >= _MOST_AHEAD:
                self._ahead.clear()
            late_s = max(0.0, at_s - self._at_s)
            _, mixture = self._mixture([late_s + ahead_s for ahead_s in horizons_s], rows)
            self._ahead[at_s, horizon_s] = mixture, self._size(mixture)
        mixture, size = self._ahead[at_s, horizon_s]
        if quantile not in self._wide:
            if len(self._wide) >= _MOST_AHEAD:
                self._wide.clear()
            self._wide[quantile] = self._errors.quantile(quantile) * self._errors.spread
        planned = mixture + np.interp(horizons_s, HORIZONS_STEPS * step_s, self._wide[quantile]) * size
        return Forecast(
            now=float(mixture[0]),
            horizon_s=horizon_s,
            expected=float(mixture[-1]),
            planned=max(0.0, float(planned.max())),
        )

    def _mixture(self, horizons_s: list[float], rows: NDArray[np.intp]) -> tuple[Loads, Loads]:
        """Of experts [horizon, expert] and all together [horizon], after the last look; `rows`: whose errors hold."""
        experts = self._experts.after(self._at_s, horizons_s)
        known: NDArray[np.bool_] = np.asarray(np.isfinite(experts).all(axis=0))
        key = known.tobytes()
        if key not in self._shares:
            self._shares[key] = self._errors.weights(known)
        return experts, (np.where(known, experts, 0.0) * self._shares[key][rows]).sum(axis=1)

    def _size(self, loads: Loads) -> Loads:
        """What errors at such loads are relative to."""
        usual, power = max(_LEAST_LOAD, self._experts.usual), self._growth.power
        sizes: Loads = np.maximum(loads, max(_LEAST_SHARE * usual, _LEAST_LOAD)) ** power * usual ** (1 - power)
        return sizes

    def _write_down(self, at_s: float) -> None:
        """Keep what is forecast now for the steps ahead, until they are over."""
        step_s = self._history.grid.step_s
        current = floor(at_s / step_s)
        middles_s = [max(0.0, (current + ahead + 0.5) * step_s - at_s) for ahead in HORIZONS_STEPS.tolist()]
        experts, mixture = self._mixture(middles_s, np.arange(len(HORIZONS_STEPS)))
        spread, whole = self._errors.spread.tolist(), self._errors.whole.tolist()
        for row, ahead in enumerate(HORIZONS_STEPS.tolist()):
            said = _Said(row, experts[row], float(mixture[row]), spread[row], whole[row])
            self._waiting.setdefault(current + ahead, []).append(said)
        for number in [number for number in self._waiting if number < current]:
            del self._waiting[number]

    def _judge(self, step: Step) -> None:
        """Hold what was forecast for this step against what came."""
        told = self._waiting.pop(step.number, [])
        if not told:
            return
        mixtures = np.array([said.mixture for said in told])
        sizes = self._size(mixtures)  # of now: what is usual may not have been known when they were written down
        for said, size in zip(told, sizes.tolist(), strict=True):
            off = (step.load - said.mixture) / size if said.whole else None
            self._errors.judge(said.row, (step.load - said.experts) / size, off, said.spread)
        usual = max(_LEAST_LOAD, self._experts.usual)
        self._growth.add(mixtures / usual, (step.load - mixtures) / usual)

    def dump(self) -> bytes:
        """All that was learned, about 30 kB; forecasts that wait for what comes are left out."""
        return msgspec.msgpack.encode(
            _Dump(
                version=_VERSION,
                period_s=self._history.grid.period_s,
                at_s=self._at_s if isfinite(self._at_s) else -1.0,
                newest_bucket=self._history.newest,
                loads=_packed(self._history.all_loads()),
                remembered=self._experts.remembered,
                errors=[_packed(part) for part in self._errors.parts()],
                growth=_packed(self._growth.sums),
            )
        )

    def load(self, data: bytes, at_s: float) -> bool:
        """Take over what another one has dumped, in place of what is known; whether it was taken.

        Left alone: what is no dump, or one of another version, of another period, or from after `at_s`.
        """
        try:
            dump = msgspec.msgpack.decode(data, type=_Dump)
        except UNREADABLE:
            return False
        period_s = self._history.grid.period_s
        if dump.version != _VERSION or dump.period_s != period_s or not 0 <= dump.at_s <= at_s:
            return False
        history = History(self._history.grid)
        errors, growth, experts = _errors(history), _growth(history), Experts(history)
        try:
            experts.take_over(dump.remembered)
            history.restore(dump.newest_bucket, _unpacked(dump.loads))
            errors.restore([_unpacked(part) for part in dump.errors])
            growth.sums = _unpacked(dump.growth).reshape(growth.sums.shape)
        except ValueError:  # something is missing
            return False
        self._begin(history, errors, growth)
        self._experts = experts
        self._at_s = dump.at_s
        return True


@lru_cache(maxsize=64)
def _until(horizon_s: float, step_s: float) -> tuple[tuple[float, ...], NDArray[np.intp]]:
    """All times ahead that are judged up to the horizon, and itself; and which of the judged is the nearest to each."""
    places_s = HORIZONS_STEPS * step_s
    between_s = places_s[(places_s > 0) & (places_s < horizon_s)].tolist()
    horizons_s = (0.0, *between_s, horizon_s)
    return horizons_s, np.abs(places_s - np.array(horizons_s)[:, None]).argmin(axis=1)


def _errors(history: History) -> Errors:
    return Errors(HORIZONS_STEPS, LINES, history.grid.steps * history.grid.buckets)


def _growth(history: History) -> Growth:
    return Growth(history.grid.steps * history.grid.buckets)


def _packed(values: Loads) -> bytes:
    return values.astype("<f4").tobytes()


def _unpacked(data: bytes) -> Loads:
    return np.frombuffer(data, "<f4").astype(np.float64)

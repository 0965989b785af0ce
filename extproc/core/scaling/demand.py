"""What a group's clients ask for: rates and mean sizes of requests, from counts that only grow."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from statistics import fmean, median

from extproc.core.scaling.sight import Counts

RATE_S = 30.0  # window of rates
SIZES_S = 60.0  # window of mean sizes, longer where it holds too few requests
JUDGED_S = 120.0  # and of shares of answers
KEPT_S = 600.0  # how far that may reach, and the window of burstiness
_ENOUGH = 1000.0  # requests that a mean size is taken of: near the SLO capacity is steep in the sizes
_ENOUGH_JUDGED = 30.0  # answers, for shares
_ASSUMED_PROMPT_TOKENS = 1000.0  # until a request was seen; the traces of `extproc simulate` have 1,150 to 12,000
_ASSUMED_OUTPUT_TOKENS = 200.0  # until an answer was; they have 30 to 350
_BURST_LOOKS = 12  # between which requests must have been counted, until burstiness is told
_TRIM = 0.9  # share of squares that count
_TRIMMED = 0.623  # their mean over that of all: of chi-squared with 1 degree, E[x | x < its 90 % quantile]
_BURST_MOST = 50.0
_CV2_MOST = 20.0
_USUAL_COMPUTED_CV2 = 1.0  # those traces have 0.1 to 4
_USUAL_OUTPUT_CV2 = 0.7  # most of them have 0.5 to 0.9
_LONG = 1.5  # times the usual time between two looks: of a gap, the number of requests tells no burst

_ANEW = 0.5  # of what a counter was: one that is less by less than that has been set back, and not begun anew

_Row = tuple[float, ...]  # the numbers of `Counts`, in their order
_row = attrgetter(*Counts.__slots__)
_NOTHING: _Row = _row(Counts())
_REQUESTS, _ANSWERS = (Counts.__slots__.index(name) for name in ("requests", "answers"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Requests a second of a group, and their mean sizes in tokens. Rates are of the last `covers_s` seconds."""

    requests_s: float  # shed ones included
    prompt_tokens: float
    cached_tokens: float  # of the prompts'
    output_tokens: float
    computed_cv2: float = 1.0  # squared coefficient of variation of what of each prompt is not cached
    output_cv2: float = _USUAL_OUTPUT_CV2  # and of answers' tokens
    judged: float = 0.0  # answers that were held against an SLO of late
    judged_s: float = JUDGED_S  # seconds that these came within
    late: float = 0.0  # of these
    slow: float = 0.0
    burst: float = 1.0  # variance of the number of requests between two looks over its mean; 1: they come at random
    covers_s: float = 0.0

    @property
    def bad_share(self) -> float | None:
        """Share of judged answers that were late or slow at the least (some are both); None without any."""
        return min(1.0, max(self.late, self.slow) / self.judged) if self.judged else None


@dataclass(frozen=True, slots=True)
class Rate:
    """Requests a second of a group, shed ones included, of the last `covers_s` seconds."""

    requests_s: float
    covers_s: float


class Rates:
    """Counts of all models over the latest looks. A counter that is far less than before has begun anew."""

    def __init__(self) -> None:
        self._last: dict[str, _Row] = {}
        self._ever: dict[str, _Row] = {}  # all that was seen to come
        self._looks: deque[_Look] = deque()
        self._until_s: float | None = None

    def add(self, at_s: float, counts: Mapping[str, Counts]) -> None:
        """Take in one look. One without any counts says nothing: nobody could be asked.

        If the clock was set back, windows begin anew.
        """
        if not counts or at_s == self._until_s:
            return
        rows = {model: _row(now) for model, now in counts.items()}
        if self._until_s is not None and at_s > self._until_s:
            new = {model: _since(row, self._last.get(model, _NOTHING)) for model, row in rows.items()}
            self._looks.append(_Look(self._until_s, at_s, new))
            for model, each in new.items():
                self._ever[model] = _sum([self._ever.get(model, _NOTHING), each])
        else:
            self._looks.clear()
        self._until_s = at_s
        self._last |= rows
        while self._looks and self._looks[0].until_s <= at_s - KEPT_S:
            self._looks.popleft()

    def rate(self, models: Iterable[str], over_s: float) -> Rate | None:
        """What came for some models within `over_s`, of the last look at the least; None before the second look."""
        if not self._looks or self._until_s is None:
            return None
        chosen, begins_s = frozenset(models), self._until_s - over_s - 1e-9
        lately = [look for look in self._looks if look.since_s >= begins_s] or [self._looks[-1]]
        covers_s = self._until_s - lately[0].since_s
        return Rate(sum(look.of(chosen)[_REQUESTS] for look in lately) / covers_s, covers_s)

    def demand(self, models: Iterable[str]) -> Demand | None:
        """Return what is asked of some models together; None before the second look that told anything."""
        chosen = frozenset(models)
        rate = self.rate(chosen, RATE_S)
        if rate is None:
            return None
        came = [(look.since_s, look.of(chosen)) for look in self._looks]
        sized, answered = _counts(self._window(came, _REQUESTS)), _counts(self._window(came, _ANSWERS))
        rows = self._window(came, _ANSWERS, _ENOUGH_JUDGED, JUDGED_S)
        judged = _counts(rows)
        ever = _counts([row for model, row in self._ever.items() if model in chosen])
        return Demand(
            requests_s=rate.requests_s,
            prompt_tokens=_mean("prompt_tokens", "requests", sized, ever, _ASSUMED_PROMPT_TOKENS),
            cached_tokens=_mean("cached_tokens", "requests", sized, ever, 0.0),
            output_tokens=_mean("output_tokens", "answers", answered, ever, _ASSUMED_OUTPUT_TOKENS),
            computed_cv2=_cv2(
                sized.requests, sized.prompt_tokens - sized.cached_tokens, sized.computed_squares, _USUAL_COMPUTED_CV2
            ),
            output_cv2=_cv2(answered.answers, answered.output_tokens, answered.output_squares, _USUAL_OUTPUT_CV2),
            judged=judged.judged,
            judged_s=self._looks[-1].until_s - came[-len(rows)][0],
            late=judged.late,
            slow=judged.slow,
            burst=_burst([(look.until_s - look.since_s, look.of(chosen)[_REQUESTS]) for look in self._looks]),
            covers_s=rate.covers_s,
        )

    def _window(
        self, came: list[tuple[float, _Row]], what: int, enough: float = _ENOUGH, over_s: float = SIZES_S
    ) -> list[_Row]:
        """What came in the window of sizes, or in a longer one until there are enough of `what`; the latest first."""
        begins_s, total, found = self._looks[-1].until_s - over_s, 0.0, []
        for since_s, row in reversed(came):
            if since_s < begins_s and total >= enough:
                break
            total += row[what]
            found.append(row)
        return found


@dataclass(slots=True)
class _Look:
    """What came between two looks."""

    since_s: float
    until_s: float
    rows: Mapping[str, _Row]  # by model
    sums: dict[frozenset[str], _Row] = field(default_factory=dict)  # of models that were asked for together

    def of(self, models: frozenset[str]) -> _Row:
        """Of these models together."""
        known = self.sums.get(models)
        if known is None:
            known = self.sums[models] = _sum([row for model, row in self.rows.items() if model in models])
        return known


def _since(now: _Row, before: _Row) -> _Row:
    fewer = [what for what in (_REQUESTS, _ANSWERS) if now[what] < before[what]]
    if fewer:
        # Begun anew it is far less. Else Redis goes on with a copy of a moment ago, and all of it came long since.
        return now if any(now[what] < _ANEW * before[what] for what in fewer) else _NOTHING
    return tuple([max(0.0, new - old) for new, old in zip(now, before, strict=True)])


def _sum(rows: list[_Row]) -> _Row:
    return tuple(map(sum, zip(*rows, strict=True))) if rows else _NOTHING


def _counts(rows: list[_Row]) -> Counts:
    return Counts(**dict(zip(Counts.__slots__, _sum(rows), strict=True)))


def _mean(tokens: str, of: str, lately: Counts, ever: Counts, unknown: float) -> float:
    """Tokens of each, lately or else ever."""
    for counts in (lately, ever):
        if number := getattr(counts, of):
            return float(getattr(counts, tokens) / number)
    return unknown


def _cv2(count: float, total: float, squares: float, unknown: float) -> float:
    """Variance over the square of the mean, of as many that have such sums."""
    if squares <= 0.0 or total <= 0.0:
        return unknown
    return max(0.0, min(_CV2_MOST, count * squares / total**2 - 1.0))


def _burst(looks: list[tuple[float, float]]) -> float:
    """Half the mean squared difference of neighbours over their mean: a slow change of the rate does not count.

    Nor does a sudden one: the largest tenth is left out, and made up for as normal noise would have it. `looks` are
    seconds and requests. Less by its own standard error, and never below that of requests that come at random.
    """
    if len(looks) < _BURST_LOOKS:
        return 1.0
    usual_s = median(seconds for seconds, _ in looks)
    requests = [number * usual_s / seconds for seconds, number in looks if seconds <= _LONG * usual_s]
    mean = fmean(requests)
    if len(requests) < _BURST_LOOKS or mean <= 0.0:
        return 1.0
    squares = sorted((later - sooner) ** 2 for sooner, later in pairwise(requests))
    ratio = fmean(squares[: math.ceil(_TRIM * len(squares))]) / _TRIMMED / 2.0 / mean
    return max(1.0, min(_BURST_MOST, ratio * (1.0 - math.sqrt(3.0 / len(requests)))))

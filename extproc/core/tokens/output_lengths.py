"""How many tokens an answer will have: quantiles learned per kind of request, and how often they proved right."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import NormalDist

import msgspec

from extproc.core.tokens.kept_windows import KeptWindows, Level
from extproc.core.tokens.length_window import Distribution, LengthWindow

WINDOW_SAMPLES = 256
MIN_SAMPLES = 32  # answers that a kind needs to speak for itself
MAX_KINDS = 1024  # windows kept, about 20 kB each
MAX_MODELS = 256  # (model, API) pairs whose calibration is kept
_CALIBRATION_MEMORY = 1000  # outcomes that calibration looks back on
_BUCKETS_TOKENS = (64, 256, 1024, 4096)

# Before any answer: a log-normal with a mean of about 256 tokens, which is what chat traffic looks like at large.
_PRIOR_MEDIAN_TOKENS = 150.0
_PRIOR_SIGMA = 1.04
_PRIOR_POINTS = 16
_MOST_STRETCH = 64.0
_MOST_CUT = 0.97  # of the tokens that caps allow
_STRETCH_STEPS = 16  # halvings of its logarithm: exact to a thousandth


class AnswerKind(msgspec.Struct, frozen=True):
    """What answers are told apart by; `cap_bucket` is the size class of the client's cap, -1 without one."""

    model: str
    api: str
    tenant: str
    stream: bool
    cap_bucket: int

    @classmethod
    def of(cls, model: str, api: str, tenant: str, stream: bool, max_output_tokens: int | None) -> AnswerKind:
        """The kind of a request, with the cap that its client named."""
        bucket = -1 if max_output_tokens is None else bisect_left(_BUCKETS_TOKENS, max_output_tokens)
        return cls(model, api, tenant, stream, bucket)

    def levels(self) -> tuple[Level, ...]:
        """Keys under which its answers are kept, the most special first."""
        return (
            (self.model, self.api, self.tenant, self.stream, self.cap_bucket),
            (self.model, self.api, self.tenant, self.stream),
            (self.model, self.api, self.tenant),
            (self.model, self.api),
        )


class Expected(msgspec.Struct, frozen=True):
    """Tokens that one answer is expected to have; half of the answers stay within p50, nine in ten within p90.

    None of the three exceeds `limit_tokens`, where the answer would be cut; None if nothing is known to cut it.
    """

    mean: float
    p50: int
    p90: int
    limit_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Calibration:
    """Shares of recent answers that stayed within the stated quantiles (ideally 0.5 and 0.9), each with its samples.

    Statements at the limit are left out: no answer could have exceeded them. Samples are counts that fade, so that
    only about the last thousand weigh. A share of nothing is NaN.
    """

    under_p50: float
    p50_samples: float
    under_p90: float
    p90_samples: float


class OutputLengths:
    """Output lengths of every kind of request that was answered; unknown kinds are answered for by wider ones.

    The widest is (model, API), and before it knows enough, a prior, which `stand_in` may replace. At most `max_kinds`
    windows are kept, those that learn most often (`kept_windows`).
    """

    def __init__(self, window_samples: int = WINDOW_SAMPLES, max_kinds: int = MAX_KINDS) -> None:
        self._window_samples = window_samples
        self._prior_lengths = _prior_lengths()
        self._prior = _uniform(self._prior_lengths)
        self._windows = KeptWindows(max_kinds, self._window, MIN_SAMPLES)
        self._kept: OrderedDict[tuple[str, str], tuple[_Share, _Share]] = OrderedDict()
        self._stand_ins: OrderedDict[str, Distribution] = OrderedDict()  # by model, the latest last

    def expect(
        self, kind: AnswerKind, max_output_tokens: int | None = None, context_left_tokens: int | None = None
    ) -> Expected:
        """What one answer will probably need, within the client's cap and what its prompt leaves of the context."""
        limit_tokens = max_output_tokens if context_left_tokens is None else context_left_tokens
        if limit_tokens is not None:
            limit_tokens = max(0, limit_tokens if max_output_tokens is None else min(limit_tokens, max_output_tokens))
        distribution = self._distribution(kind)
        p50, p90 = distribution.quantile(0.5), distribution.quantile(0.9)
        if limit_tokens is not None:
            p50, p90 = min(p50, limit_tokens), min(p90, limit_tokens)
        return Expected(distribution.mean(limit_tokens), p50, p90, limit_tokens)

    def learn(
        self, kind: AnswerKind, tokens: int, limit_tokens: int | None = None, stated: Expected | None = None
    ) -> None:
        """Take in the length of one finished answer (of each choice, where a request asks for several).

        `limit_tokens` is where the answer would have been cut: reaching it makes the length a lower bound. `stated` is
        what `expect` had said of this request; without it calibration learns nothing. Negative lengths are ignored.
        """
        if tokens < 0:
            return
        is_bound = limit_tokens is not None and tokens >= limit_tokens
        self._windows.learn(kind.levels(), tokens, is_bound)
        if stated is not None:
            self._hold_against(kind, tokens, stated)

    def stand_in(self, model: str, mean_tokens: float, caps_tokens: Iterable[int | None]) -> None:
        """The mean of a model's answers, where nobody tells single ones: it speaks in the prior's place.

        The answers had these caps (None: no cap), so their lengths without caps were longer: the prior is stretched
        until its mean under the same caps is theirs.
        """
        caps = Counter(caps_tokens)
        total_tokens = mean_tokens * caps.total()
        if None not in caps:  # where nearly all are cut, how long they would have been cannot be told
            total_tokens = min(total_tokens, _MOST_CUT * sum(cap * times for cap, times in caps.items() if cap))
        low, high = 1.0 / _MOST_STRETCH, _MOST_STRETCH
        for _ in range(_STRETCH_STEPS):
            stretch = math.sqrt(low * high)
            means = (times * self._prior.mean(None if cap is None else cap / stretch) for cap, times in caps.items())
            low, high = (stretch, high) if stretch * sum(means) < total_tokens else (low, stretch)
        self._stand_ins[model] = _uniform(tuple(max(1, round(high * length)) for length in self._prior_lengths))
        self._stand_ins.move_to_end(model)
        if len(self._stand_ins) > MAX_MODELS:
            self._stand_ins.popitem(last=False)

    def calibration(self) -> Mapping[tuple[str, str], Calibration]:
        """How right the stated quantiles were, for each (model, API)."""
        return {
            key: Calibration(p50.value, p50.samples, p90.value, p90.samples) for key, (p50, p90) in self._kept.items()
        }

    def _distribution(self, kind: AnswerKind) -> Distribution:
        stand_in = self._stand_ins.get(kind.model)
        if not len(self._windows):
            return stand_in or self._prior
        levels = kind.levels()
        for level in levels:
            window = self._windows.get(level)
            if window is None:
                continue
            if window.learned >= MIN_SAMPLES or (level == levels[-1] and stand_in is None):
                return window.distribution()
        return stand_in or self._prior

    def _window(self, is_widest: bool) -> LengthWindow:
        return LengthWindow(self._window_samples, self._prior_lengths if is_widest else ())

    def _hold_against(self, kind: AnswerKind, tokens: int, stated: Expected) -> None:
        key = (kind.model, kind.api)
        shares = self._kept.get(key)
        if shares is None:
            shares = self._kept[key] = (_Share(), _Share())
            if len(self._kept) > MAX_MODELS:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        for share, quantile in zip(shares, (stated.p50, stated.p90), strict=True):
            if stated.limit_tokens is None or quantile < stated.limit_tokens:
                share.add(tokens <= quantile)


@dataclass(slots=True)
class _Share:
    """How often something held, over about the last `_CALIBRATION_MEMORY` times."""

    held: float = 0.0
    samples: float = 0.0

    def add(self, holds: bool) -> None:
        keep = 1.0 - 1.0 / _CALIBRATION_MEMORY
        self.held = keep * self.held + holds
        self.samples = keep * self.samples + 1.0

    @property
    def value(self) -> float:
        return self.held / self.samples if self.samples else math.nan


def _prior_lengths() -> tuple[int, ...]:
    """Lengths of equal probability from the prior, ascending."""
    normal = NormalDist(math.log(_PRIOR_MEDIAN_TOKENS), _PRIOR_SIGMA)
    return tuple(round(math.exp(normal.inv_cdf((i + 0.5) / _PRIOR_POINTS))) for i in range(_PRIOR_POINTS))


def _uniform(lengths_tokens: tuple[int, ...]) -> Distribution:
    return Distribution(lengths_tokens, [1.0 / len(lengths_tokens)] * len(lengths_tokens))

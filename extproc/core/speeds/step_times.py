"""Step times of one kind (model x hardware x parallelism x precision) and factors of its instances, as filters.

    seconds = factor of the instance * (overhead of the kind + scale of the kind * what its profile says)

for prefill and for decode each. The kind's two numbers are an extended Kalman filter over relative errors, the state
being (overhead, log scale); so are the logarithms of an instance's two factors. Each takes the other's uncertainty as
noise (`core.speeds.kind`).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from statistics import median

import msgspec

from extproc.core.speeds.change import Cusum
from extproc.core.speeds.gaussian import Pair
from extproc.core.speeds.profile import Profile

LIMIT = 20.0  # neither a kind's scale nor an instance's factor is believed to be beyond this, or below its inverse
FACTOR_MEMORY_S = 900.0  # an instance that is not asked is believed to be like its kind again after about so long

LOG_LIMIT = math.log(LIMIT)
_OVERHEAD_LIMIT_S = 0.5
_DEVIATIONS = 2.0  # an error counts as this many standard deviations at the most
_GROSS_DEVIATIONS = 3.0  # an error beyond tells of one instance or of a mishap
_SETTLED = 30  # samples of a kind after which that is so
_KIND_MEMORY = 300  # samples
_FACTOR_MEMORY = 60
_FACTOR_DEVIATION = 0.1  # of instances of one kind, while nothing is wrong with them
_FADED = 0.01  # difference, of a logarithm and relative to a variance, that is none
_CHANGE_DEVIATION = 0.7  # what a change may be: e**0.7 is 2
_ALIKE = 0.8  # correlation of an instance's two factors: what slows one phase mostly slows both
_PRIOR_NOISE = 0.12
_NOISE_LIMITS = (0.02, 1.0)
_NOISE_MEMORY = 50
_RECENT = 5  # samples whose median counts after a change
_ENOUGH = 8  # samples of a kind that would have shown a change
_HEARD_DEVIATION = 0.05  # what others tell of a kind after its change is taken to be as sure as that at the most


class Phase(IntEnum):
    """The two kinds of work; the value is the place in an instance's pair of factors."""

    PREFILL = 0
    DECODE = 1


# Standard deviation of the overhead: engines add 3 to 10 ms a step, requests the network's time to their first token.
_OVERHEAD_DEVIATION_S = {Phase.PREFILL: 0.010, Phase.DECODE: 0.005}


class Sample(msgspec.Struct, frozen=True):
    """One measured time of a phase: seconds of a prefill, or of a decode step in the mean.

    `table_s` is what the profile says of it, `noise` the standard deviation of what else may be in it, relative to it.
    """

    phase: Phase
    measured_s: float
    table_s: float
    noise: float = 0.0


def limited(log: float) -> float:
    """Scale or factor of a logarithm, within what is believed."""
    return math.exp(max(-LOG_LIMIT, min(LOG_LIMIT, log)))


def factor_prior() -> Pair:
    """What is believed of the log factors of an instance nobody has asked."""
    variance = _FACTOR_DEVIATION**2
    return Pair(0.0, 0.0, variance, variance, _ALIKE * variance)


def step_prior(phase: Phase, deviation: float) -> Pair:
    """What is believed of a kind's overhead and log scale before anything was learned."""
    return Pair(0.0, 0.0, _OVERHEAD_DEVIATION_S[phase] ** 2, math.log1p(deviation) ** 2)


def widened(prior: Pair) -> Pair:
    """What is believed of a kind that has changed: its table says little of it any more."""
    return Pair(0.0, 0.0, prior.var_first, max(prior.var_second, _CHANGE_DEVIATION**2))


def typical_s(profile: Profile) -> tuple[float, float]:
    """Seconds of a prefill and of a decode step as they are common, for stating one uncertainty."""
    return profile.prefill_s(1024, 0), profile.decode_step_s(16, 16 * 1024)


@dataclass(slots=True)
class StepTime:
    """Overhead and log scale of one phase of a kind, and the noise of its samples."""

    prior: Pair
    state: Pair
    noise: float = _PRIOR_NOISE  # relative standard deviation of a sample that nothing disturbs
    samples: int = 0  # that the state has from this router, since it began anew; and `restored` ones
    restored: int = 0  # that others had before this start
    base: Pair = field(init=False)  # what was believed before the first of its own
    changes: Cusum = field(default_factory=Cusum)
    learned_at_s: deque[float] = field(default_factory=lambda: deque(maxlen=_ENOUGH))  # the latest samples
    changed_at_s: float = -math.inf  # when the kind was seen to have become another, by whomever

    def __post_init__(self) -> None:
        """Begin from the prior."""
        self.base = self.prior

    @property
    def watched_since_s(self) -> float:
        """A change before this time is in the state: so many samples have come since; -inf if too few ever came."""
        return self.learned_at_s[0] if len(self.learned_at_s) == _ENOUGH else -math.inf

    def expected_s(self, table_s: float) -> float:
        """Seconds on an instance that is like its kind."""
        return self.state.first + math.exp(self.state.second) * table_s

    def gradient(self, table_s: float) -> tuple[float, float]:
        """Derivatives of the logarithm of `expected_s` by overhead and log scale."""
        expected_s = self.expected_s(table_s)
        return 1.0 / expected_s, (expected_s - self.state.first) / expected_s

    def variance(self, table_s: float) -> float:
        """Relative variance of `expected_s`."""
        return self.state.variance(*self.gradient(table_s))

    def learn(
        self, table_s: float, surprise: float, variance: float, now: float, *, clear: bool, trusted: bool
    ) -> bool:
        """Take in a sample's log error, of which `variance` is not the kind's; True if the kind has changed.

        `clear`: the error witnesses to the kind, and not to an instance that stands out. Gross errors count only as
        such witnesses, unless the sample's instance is `trusted` because the kind has no other.
        """
        gradient = self.gradient(table_s)
        spread = math.sqrt(self.state.variance(*gradient) + variance)
        changed = clear and self.changes.add(surprise / spread)
        if changed:
            self.become_another(_CHANGE_DEVIATION, now)
        elif not trusted and self.samples > _SETTLED and abs(surprise) > _GROSS_DEVIATIONS * spread:
            return False
        forgotten = self.noise**2 / _KIND_MEMORY**2
        self.state.doubt(forgotten * self.prior.var_first, forgotten * self.prior.var_second, widened(self.prior))
        self.state.update(*gradient, surprise, variance, _DEVIATIONS)
        self.bound()
        self.samples += 1
        self.learned_at_s.append(now)
        self._note_noise(abs(surprise), spread)
        return changed

    def bound(self) -> None:
        """Keep the state within what can be."""
        self.state.first = max(0.0, min(_OVERHEAD_LIMIT_S, self.state.first))
        self.state.second = max(-LOG_LIMIT, min(LOG_LIMIT, self.state.second))

    def become_another(self, deviation: float, now: float) -> None:
        """Note a change: the log scale is less sure by this, and the table says little of it any more."""
        self.base = widened(self.prior)
        self.state.doubt(0.0, deviation**2, self.base)
        self.changed_at_s = now

    def begin_anew(self, told: Pair, changed_at_s: float) -> None:
        """Give up what was learned before a change that others have seen, for what they tell of it."""
        self.state = told.copy()
        self.state.doubt(0.0, _HEARD_DEVIATION**2, widened(self.prior))
        self.bound()
        self.base = self.state.copy()
        self.samples = self.restored = 0
        self.learned_at_s.clear()
        self.changed_at_s = changed_at_s
        self.changes.reset()

    def _note_noise(self, error: float, spread: float) -> None:
        """Follow the mean absolute error, cut as all errors are; 1.25 of it is a normal error's deviation."""
        seen = 1.25 * min(error, _DEVIATIONS * spread)
        self.noise += (seen - self.noise) / _NOISE_MEMORY
        self.noise = max(_NOISE_LIMITS[0], min(_NOISE_LIMITS[1], self.noise))


@dataclass(slots=True)
class Factors:
    """Log factors of one instance, prefill and decode."""

    state: Pair = field(default_factory=factor_prior)
    changes: tuple[Cusum, Cusum] = field(default_factory=lambda: (Cusum(), Cusum()))
    samples: list[int] = field(default_factory=lambda: [0, 0])  # and `restored` ones
    restored: tuple[int, int] = (0, 0)  # that others had before this start
    base: Pair | None = None  # what was believed before the first of its own; None: the prior
    recent: tuple[deque[float], deque[float]] = field(
        default_factory=lambda: (deque(maxlen=_RECENT), deque(maxlen=_RECENT))
    )  # log factors that the latest samples of each phase would have
    learned_at_s: float = 0.0  # on the router's clock
    changed_at_s: float = -math.inf  # when it was seen to have become another

    def log(self, phase: Phase) -> float:
        """Log factor of one phase."""
        return self.state.second if phase else self.state.first

    def variance(self, phase: Phase) -> float:
        """Its variance."""
        return self.state.var_second if phase else self.state.var_first

    def shift(self, phase: Phase, by: float) -> None:
        """Add to the log factor of one phase, and to what its latest samples were."""
        recent = self.recent[phase]
        recent.extend([log + by for log in recent])  # which fills it up anew
        for pair in filter(None, (self.state, self.base)):
            if phase:
                pair.second += by
            else:
                pair.first += by

    def learn(self, phase: Phase, surprise: float, variance: float, changed: bool) -> None:
        """Take in a log error beyond kind and factor, of which `variance` is not the instance's own.

        After a change the median of the latest samples counts instead, so that it need not wait for more.
        """
        recent = self.recent[phase]
        recent.append(surprise + self.log(phase))
        if changed:
            each = _CHANGE_DEVIATION**2
            self.state.doubt(each, each, Pair(0.0, 0.0, each, each), _ALIKE)
            self.base = None  # what was known says nothing of it any more
            surprise, variance = median(recent) - self.log(phase), variance / 2  # a median of 5 is as good as 3 means
        forgotten = variance / _FACTOR_MEMORY**2
        self.state.doubt(forgotten, forgotten, self._widest(), _ALIKE)
        self.state.update(1.0 - phase, float(phase), surprise, variance, LOG_LIMIT if changed else _DEVIATIONS)
        self.state.first = max(-LOG_LIMIT, min(LOG_LIMIT, self.state.first))
        self.state.second = max(-LOG_LIMIT, min(LOG_LIMIT, self.state.second))
        self.samples[phase] += 1

    def fade(self, past_s: float) -> None:
        """Let time pass without a sample: the factor goes back to 1 and becomes as uncertain as it was."""
        keep = math.exp(-past_s / FACTOR_MEMORY_S)
        for pair in filter(None, (self.state, self.base)):
            _fade(pair, keep)

    @property
    def faded(self) -> bool:
        """Whether they say no more than is believed of an instance that nobody has asked."""
        state, prior = self.state, factor_prior()
        known = min(state.var_first / prior.var_first, state.var_second / prior.var_second)
        return max(abs(state.first), abs(state.second)) < _FADED and known > 1.0 - _FADED

    def _widest(self) -> Pair:
        return Pair(0.0, 0.0, max(self.state.var_first, _FACTOR_DEVIATION**2), max(self.state.var_second, 0.01))


def _fade(pair: Pair, keep: float) -> None:
    prior = factor_prior()
    pair.first *= keep
    pair.second *= keep
    keep *= keep
    pair.var_first = keep * pair.var_first + (1.0 - keep) * prior.var_first
    pair.var_second = keep * pair.var_second + (1.0 - keep) * prior.var_second
    pair.covariance = keep * pair.covariance + (1.0 - keep) * prior.covariance

"""Learns step times of one kind (model x hardware x parallelism x precision), and how its instances differ.

    seconds = factor of the instance * (overhead of the kind + scale of the kind * what its profile says)

for prefill and for decode each. The kind's two numbers are an extended Kalman filter over relative errors, the state
being (overhead, log scale); so are the logarithms of an instance's two factors. Each takes the other's uncertainty as
noise: where the kind is uncertain it learns most, later the instance. What is common to most instances is moved from
their factors to the kind by a weighted median, so that a slow node cannot colour its kind.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from statistics import median

from extproc.core.change import Cusum
from extproc.core.gaussian import Pair, fuse
from extproc.core.profile import Profile
from extproc.core.speed import Speed

LIMIT = 20.0  # neither a kind's scale nor an instance's factor is believed to be beyond this, or below its inverse
OPTIMISM_REQUESTS = 8  # finished requests during which an unknown kind is believed to be faster than its prior …
OPTIMISM_LIMIT = 0.5  # … by its uncertainty, but never below this share of its prior
FACTOR_MEMORY_S = 900.0  # an instance that is not asked is believed to be like its kind again after about so long

_LOG_LIMIT = math.log(LIMIT)
_OVERHEAD_LIMIT_S = 0.5
_OPTIMISM_FROM = 0.3  # a prior of a smaller deviation is known well enough
_DEVIATIONS = 2.0  # an error counts as this many standard deviations at the most
_GROSS_DEVIATIONS = 3.0  # an error beyond tells of one instance or of a mishap
_KIND_MEMORY = 300  # samples
_FACTOR_MEMORY = 60
_FACTOR_DEVIATION = 0.1  # of instances of one kind, while nothing is wrong with them
_CHANGE_DEVIATION = 0.7  # what a change may be: e**0.7 is 2
_ALIKE = 0.8  # correlation of an instance's two factors: what slows one phase mostly slows both
_PRIOR_NOISE = 0.12
_NOISE_LIMITS = (0.02, 1.0)
_NOISE_MEMORY = 50
_RECENT = 5  # samples whose median counts after a change
_SETTLE_EVERY = 32  # samples of a kind between two looks at its instances' medians


class Phase(IntEnum):
    """The two kinds of work; the value is the place in an instance's pair of factors."""

    PREFILL = 0
    DECODE = 1


# Standard deviation of the overhead: engines add 3 to 10 ms a step, requests the network's time to their first token.
_OVERHEAD_DEVIATION_S = {Phase.PREFILL: 0.010, Phase.DECODE: 0.005}


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured time of a phase: seconds of a prefill, or of a decode step in the mean.

    `table_s` is what the profile says of it, `noise` the standard deviation of what else may be in it, relative to it.
    """

    phase: Phase
    measured_s: float
    table_s: float
    noise: float = 0.0


def factor_prior() -> Pair:
    """What is believed of the log factors of an instance nobody has asked."""
    variance = _FACTOR_DEVIATION**2
    return Pair(0.0, 0.0, variance, variance, _ALIKE * variance)


def step_prior(phase: Phase, deviation: float) -> Pair:
    """What is believed of a kind's overhead and log scale before anything was learned."""
    return Pair(0.0, 0.0, _OVERHEAD_DEVIATION_S[phase] ** 2, math.log1p(deviation) ** 2)


@dataclass(slots=True)
class StepTime:
    """Overhead and log scale of one phase of a kind, and the noise of its samples."""

    prior: Pair
    state: Pair
    noise: float = _PRIOR_NOISE  # relative standard deviation of a sample that nothing disturbs
    samples: int = 0
    changes: Cusum = field(default_factory=Cusum)

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

    def learn(self, table_s: float, surprise: float, variance: float, clear: bool, trusted: bool) -> bool:
        """Take in a sample's log error, of which `variance` is not the kind's; True if the kind has changed.

        `clear`: the error witnesses to the kind, and not to an instance that stands out. Gross errors count only as
        such witnesses, unless the sample's instance is `trusted` because the kind has no other.
        """
        gradient = self.gradient(table_s)
        spread = math.sqrt(self.state.variance(*gradient) + variance)
        changed = clear and self.changes.add(surprise / spread)
        if changed:
            self.state.doubt(0.0, _CHANGE_DEVIATION**2, self._widest())
        elif not trusted and abs(surprise) > _GROSS_DEVIATIONS * spread:
            return False
        forgotten = self.noise**2 / _KIND_MEMORY**2
        self.state.doubt(forgotten * self.prior.var_first, forgotten * self.prior.var_second, self._widest())
        self.state.update(*gradient, surprise, variance, _DEVIATIONS)
        self.bound()
        self.samples += 1
        self._note_noise(abs(surprise), spread)
        return changed

    def bound(self) -> None:
        """Keep the state within what can be."""
        self.state.first = max(0.0, min(_OVERHEAD_LIMIT_S, self.state.first))
        self.state.second = max(-_LOG_LIMIT, min(_LOG_LIMIT, self.state.second))

    def _widest(self) -> Pair:
        return Pair(0.0, 0.0, self.prior.var_first, max(self.prior.var_second, _CHANGE_DEVIATION**2))

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
    samples: list[int] = field(default_factory=lambda: [0, 0])
    recent: tuple[deque[float], deque[float]] = field(
        default_factory=lambda: (deque(maxlen=_RECENT), deque(maxlen=_RECENT))
    )  # log factors that the latest samples of each phase would have
    learned_at_s: float = 0.0  # on the router's clock

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
        if phase:
            self.state.second += by
        else:
            self.state.first += by

    def learn(self, phase: Phase, surprise: float, variance: float, changed: bool) -> None:
        """Take in a log error beyond kind and factor, of which `variance` is not the instance's own.

        After a change the median of the latest samples counts instead, so that it need not wait for more.
        """
        recent = self.recent[phase]
        recent.append(surprise + self.log(phase))
        if changed:
            each = _CHANGE_DEVIATION**2
            self.state.doubt(each, each, Pair(0.0, 0.0, each, each), _ALIKE)
            surprise, variance = median(recent) - self.log(phase), variance / 2  # a median of 5 is as good as 3 means
        forgotten = variance / _FACTOR_MEMORY**2
        self.state.doubt(forgotten, forgotten, self._widest(), _ALIKE)
        self.state.update(1.0 - phase, float(phase), surprise, variance, _LOG_LIMIT if changed else _DEVIATIONS)
        self.state.first = max(-_LOG_LIMIT, min(_LOG_LIMIT, self.state.first))
        self.state.second = max(-_LOG_LIMIT, min(_LOG_LIMIT, self.state.second))
        self.samples[phase] += 1

    def fade(self, past_s: float) -> None:
        """Let time pass without a sample: the factor goes back to 1 and becomes as uncertain as it was."""
        keep = math.exp(-past_s / FACTOR_MEMORY_S)
        state, prior = self.state, factor_prior()
        state.first *= keep
        state.second *= keep
        keep *= keep
        state.var_first = keep * state.var_first + (1.0 - keep) * prior.var_first
        state.var_second = keep * state.var_second + (1.0 - keep) * prior.var_second
        state.covariance = keep * state.covariance + (1.0 - keep) * prior.covariance

    def _widest(self) -> Pair:
        return Pair(0.0, 0.0, max(self.state.var_first, _FACTOR_DEVIATION**2), max(self.state.var_second, 0.01))


@dataclass(slots=True)
class Kind:
    """All that one router has learned of a kind and its instances, by `Instance.key`."""

    profile: Profile
    steps: tuple[StepTime, StepTime]
    factors: dict[str, Factors] = field(default_factory=dict)
    finished: int = 0  # requests, whether they could teach anything or not
    last: list[str] = field(default_factory=lambda: ["", ""])  # instance of the latest sample of each phase

    @classmethod
    def unknown(cls, profile: Profile) -> Kind:
        """Return a kind of which nothing is known but its profile."""
        priors = [step_prior(phase, profile.deviation) for phase in Phase]
        prefill, decode = (StepTime(prior, prior.copy()) for prior in priors)
        return cls(profile, (prefill, decode))

    def learn(self, key: str, sample: Sample, now: float) -> None:
        """Take in one sample of one instance."""
        phase, step = sample.phase, self.steps[sample.phase]
        factors = self.factors.get(key)
        if factors is None:
            factors = self.factors[key] = Factors()
        noise = step.noise**2 + sample.noise**2
        kind_variance, factor_variance = step.variance(sample.table_s), factors.variance(phase)
        error = math.log(max(sample.measured_s, 1e-6) / step.expected_s(sample.table_s)) - factors.log(phase)
        changed = factors.changes[phase].add(error / math.sqrt(noise + kind_variance + factor_variance))
        suspicious = changed or factors.changes[phase].suspicious
        only = len(self.factors) == 1
        if not suspicious or only:
            # Two errors in a row of one instance are one witness.
            clear = not suspicious and self.last[phase] != key
            if step.learn(sample.table_s, error, noise + factor_variance, clear, only):
                self._all_anew(phase)
        factors.learn(phase, error, noise + kind_variance, changed)
        factors.learned_at_s = now
        self.last[phase] = key
        if step.samples % _SETTLE_EVERY == 0 or changed:
            self._settle(phase)

    def _all_anew(self, phase: Phase) -> None:
        """Hold nothing against single instances that was the whole kind's change."""
        for factors in self.factors.values():
            factors.changes[phase].reset()

    def _settle(self, phase: Phase) -> None:
        """Move the weighted median of the factors into the kind; predictions for its instances stay as they are.

        The kind itself has a voice for 1, the more the better it was known: one instance alone, or half of them,
        cannot move a kind that was.
        """
        step = self.steps[phase]
        voices = [(f.log(phase), f.samples[phase] / (f.samples[phase] + 8.0)) for f in self.factors.values()]
        known = math.sqrt(step.prior.var_second) < _OPTIMISM_FROM
        common = _weighted_median([*voices, (0.0, 1.5 if known else 0.5)])
        if common == 0.0:
            return
        for factors in self.factors.values():
            factors.shift(phase, -common)
        step.state.first *= math.exp(common)
        step.state.second += common
        step.bound()

    def optimism(self) -> float:
        """Share of the expected seconds that an untried kind of unknown speed is believed to take."""
        deviation = math.sqrt(max(step.prior.var_second for step in self.steps))
        if self.finished >= OPTIMISM_REQUESTS or deviation < _OPTIMISM_FROM:
            return 1.0
        uncertainty = math.sqrt(max(step.state.var_second for step in self.steps))
        return max(OPTIMISM_LIMIT, math.exp(-uncertainty))


def speed_of(kind: Kind, key: str, peers: list[tuple[tuple[Pair, Pair], Pair | None]]) -> Speed:
    """Speed of an instance by what this router has learned and its peers tell: (prefill, decode), factors of each."""
    states = [
        fuse(step.prior, [step.state, *(steps[phase] for steps, _ in peers)])
        for phase, step in zip(Phase, kind.steps, strict=True)
    ]
    variances = [StepTime(state, state).variance(_typical_s(kind.profile)[phase]) for phase, state in enumerate(states)]
    own = kind.factors.get(key)
    told = [factors for _, factors in peers if factors is not None]
    both = fuse(factor_prior(), [own.state if own else factor_prior(), *told])
    optimism = kind.optimism()
    factors = [_limited(both.first), _limited(both.second)]
    return Speed(
        kind.profile,
        optimism * factors[0] * _limited(states[0].second),
        optimism * factors[1] * _limited(states[1].second),
        optimism * factors[0] * max(0.0, states[0].first),
        optimism * factors[1] * max(0.0, states[1].first),
        math.sqrt(max(variances[0] + both.var_first, variances[1] + both.var_second)),
    )


def _typical_s(profile: Profile) -> tuple[float, float]:
    """Seconds of a prefill and of a decode step as they are common, for stating one uncertainty."""
    return profile.prefill_s(1024, 0), profile.decode_step_s(16, 16 * 1024)


def _limited(log: float) -> float:
    return math.exp(max(-_LOG_LIMIT, min(_LOG_LIMIT, log)))


def _weighted_median(voices: list[tuple[float, float]]) -> float:
    """The value at which half of the weight is reached."""
    voices.sort()
    half = sum(weight for _, weight in voices) / 2
    reached = 0.0
    for value, weight in voices:
        reached += weight
        if reached >= half:
            return value
    return 0.0

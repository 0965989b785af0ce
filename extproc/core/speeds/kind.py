"""What one router has learned of a kind: its step times, its instances' factors, and how a sample is shared among them.

Where the kind is uncertain it learns most from a sample, later the instance. What is common to most instances is moved
from their factors to the kind by a weighted median, so that a slow node cannot colour its kind.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from extproc.core.speeds.gaussian import Pair, fuse
from extproc.core.speeds.profile import Profile
from extproc.core.speeds.speed import Speed
from extproc.core.speeds.step_times import (
    Factors,
    Phase,
    Sample,
    StepTime,
    factor_prior,
    limited,
    step_prior,
    typical_s,
)

OPTIMISM_REQUESTS = 8  # finished requests during which an unknown kind is believed to be faster than its prior …
OPTIMISM_LIMIT = 0.5  # … by its uncertainty, but never below this share of its prior

# In deviations of the prior's log scale. Optimism is for hardware that nobody has measured: that a model is unknown
# is alike for all instances that serve it, and kinds that are tried by turns would draw the load to the slowest.
_OPTIMISM_FROM = 0.5
_KNOWN_TO = 0.3
_VOICE_SAMPLES = 8.0  # that give half a voice
_SETTLE_EVERY = 32  # samples of a kind between two looks at its instances' medians
_CHANGED = math.log(1.3)  # what most instances have come to have in common, that makes theirs another kind …
_CHANGED_DOUBT = 0.1  # … whose log scale is then known that well


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
            if step.learn(sample.table_s, error, noise + factor_variance, now, clear=clear, trusted=only):
                self._all_anew(phase)
        factors.learn(phase, error, noise + kind_variance, changed)
        factors.learned_at_s = now
        if changed:
            factors.changed_at_s = now
        self.last[phase] = key
        # What is seen to change in one phase moves the factor of the other with it.
        for settled in Phase if changed else (phase,) if step.samples % _SETTLE_EVERY == 0 else ():
            self._settle(settled, now)

    def begin_anew(self, phase: Phase, told: Pair, changed_at_s: float) -> None:
        """Take what others tell of a phase in place of what was learned before it changed."""
        self.steps[phase].begin_anew(told, changed_at_s)
        self._all_anew(phase)

    def lean_on(self, siblings: Iterable[Kind]) -> None:
        """Believe of phases without a sample what was learned of other kinds of the same model.

        What engines add to the table, and how far a model is from it, is much alike on all hardware; a kind that was
        left at the table while others had proven slower would draw all load to itself.
        """
        for phase, step in zip(Phase, self.steps, strict=True):
            if step.samples or step.changed_at_s > -math.inf:
                continue
            others = [sibling.steps[phase] for sibling in siblings if sibling.steps[phase].samples]
            weights = [other.samples / (other.samples + _VOICE_SAMPLES) for other in others]
            total = max(1.0, sum(weights))
            step.state.first = sum(w * other.state.first for w, other in zip(weights, others, strict=True)) / total
            step.state.second = sum(w * other.state.second for w, other in zip(weights, others, strict=True)) / total

    def _all_anew(self, phase: Phase) -> None:
        """Hold nothing against single instances that was the whole kind's change."""
        for factors in self.factors.values():
            factors.changes[phase].reset()

    def _settle(self, phase: Phase, now: float) -> None:
        """Move the weighted median of the factors into the kind; predictions for its instances stay as they are.

        The kind as it was has half a voice, and so has the table, or a whole one if it was made for this very kind: an
        instance alone cannot say whether it stands out, and of two the one that is as the table says is believed.
        """
        step = self.steps[phase]
        voices = [(f.log(phase), f.samples[phase] / (f.samples[phase] + _VOICE_SAMPLES)) for f in self.factors.values()]
        typical = typical_s(self.profile)[phase]
        known = math.sqrt(step.prior.var_second) < _KNOWN_TO
        as_table = math.log(typical / step.expected_s(typical))
        common = _weighted_median([*voices, (0.0, 0.5), (as_table, 1.0 if known else 0.5)])
        if common == 0.0:
            return
        for factors in self.factors.values():
            factors.shift(phase, -common)
        for pair in (step.state, step.base) if step.restored else (step.state,):
            pair.first *= math.exp(common)
            pair.second += common
        step.bound()
        if abs(common) > _CHANGED:
            step.become_another(_CHANGED_DOUBT, now)

    def optimism(self) -> float:
        """Share of the expected seconds that an untried kind of unknown speed is believed to take."""
        deviation = math.sqrt(max(step.prior.var_second for step in self.steps))
        if self.finished >= OPTIMISM_REQUESTS or deviation < _OPTIMISM_FROM:
            return 1.0
        uncertainty = math.sqrt(max(step.state.var_second for step in self.steps))
        return max(OPTIMISM_LIMIT, math.exp(-uncertainty))


def common_speed(kind: Kind, states: Sequence[Pair]) -> Speed:
    """Speed of an instance that is like its kind; `states` of prefill and of decode, peers' word being in them."""
    variances = [StepTime(state, state).variance(typical_s(kind.profile)[phase]) for phase, state in enumerate(states)]
    optimism = kind.optimism()
    return Speed(
        kind.profile,
        optimism * limited(states[Phase.PREFILL].second),
        optimism * limited(states[Phase.DECODE].second),
        optimism * max(0.0, states[Phase.PREFILL].first),
        optimism * max(0.0, states[Phase.DECODE].first),
        math.sqrt(max(variances)),
    )


def own_speed(common: Speed, own: Factors | None, told: Sequence[Pair]) -> Speed:
    """Speed of one instance by its factors: what this router knows of them, if anything, and what peers tell."""
    both = own.state if own else factor_prior()
    if told:
        both = fuse(factor_prior(), [both, *told])
    prefill, decode = limited(both.first), limited(both.second)
    return Speed(
        common.prior,
        prefill * common.prefill_scale,
        decode * common.decode_scale,
        prefill * common.prefill_overhead_s,
        decode * common.decode_overhead_s,
        math.sqrt(common.uncertainty**2 + max(both.var_first, both.var_second)),
    )


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

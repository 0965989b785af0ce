"""What is learned from outcomes: prompt tokens, output lengths, and how fast each profile really is."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.core.model import Features, Instance, Outcome
from extproc.core.output_lengths import AnswerKind, Expected, OutputLengths
from extproc.core.profile import Profile, profile_for
from extproc.core.tokens import TokenEstimator

_MEMORY = 30  # a ratio forgets what is older than about this many outcomes
_SCALE_LIMIT = 20.0  # a profile is never believed to be off by more than this factor


@dataclass(slots=True)
class Ratio:
    """Actual over predicted seconds, both summed with forgetting, so that long works count more than short ones."""

    actual_s: float = 0.0
    predicted_s: float = 0.0

    @property
    def value(self) -> float:
        """The ratio within sane limits; 1 before anything was seen."""
        if not self.predicted_s:
            return 1.0
        return max(1.0 / _SCALE_LIMIT, min(_SCALE_LIMIT, self.actual_s / self.predicted_s))

    def add(self, actual_s: float, predicted_s: float) -> None:
        """Take in one work. The first one counts half: the other half is the prior."""
        if not self.predicted_s:
            self.actual_s = self.predicted_s = predicted_s
        keep = 1.0 - 1.0 / _MEMORY
        self.actual_s = self.actual_s * keep + max(0.0, actual_s)
        self.predicted_s = self.predicted_s * keep + predicted_s


@dataclass(frozen=True, slots=True)
class Speed:
    """A prior profile and how much slower (above 1) or faster the instances of this kind have proven to be."""

    prior: Profile
    prefill_scale: float = 1.0
    decode_scale: float = 1.0

    def prefill_s(self, new_tokens: float, cached_tokens: float) -> float:
        """Seconds to compute `new_tokens` of a prompt after `cached_tokens`, alone on the instance."""
        return self.prefill_scale * self.prior.prefill_s(new_tokens, cached_tokens)

    def decode_step_s(self, sequences: float, context_tokens: float) -> float:
        """Seconds of one decode step of a batch (the TPOT of each of its sequences)."""
        return self.decode_scale * self.prior.decode_step_s(sequences, context_tokens)


class Beliefs:
    """Learned quantities with their priors. Reads never fail: what is unknown is answered by the prior."""

    def __init__(self) -> None:
        self.tokens = TokenEstimator()
        self.outputs = OutputLengths()
        self._scales: dict[str, tuple[Ratio, Ratio]] = {}  # profile name -> prefill, decode
        self._speeds: dict[tuple[str, str, int], Speed] = {}

    def speed(self, model: str, instance: Instance) -> Speed:
        """How fast a model is on an instance's hardware, as far as is known."""
        kind = (model, instance.hardware, instance.tensor_parallel)
        speed = self._speeds.get(kind)
        if speed is None:
            prior = profile_for(*kind)
            scales = self._scales.get(prior.name)
            speed = Speed(prior, *(scale.value for scale in scales)) if scales else Speed(prior)
            self._speeds[kind] = speed
        return speed

    def learn(self, outcome: Outcome) -> None:
        """Take in one finished request. Failed and unmeasured ones teach nothing."""
        features = outcome.features
        if features is None or not 200 <= outcome.status < 300:
            return
        if outcome.prompt_tokens and features.token_counts:
            text_tokens = outcome.prompt_tokens - features.media_tokens
            self.tokens.learn(features.model, features.token_counts, text_tokens)
        if outcome.completion_tokens:
            self._learn_output(features, outcome.completion_tokens)
        self._learn_speed(features, outcome)

    def _learn_output(self, features: Features, completion_tokens: int) -> None:
        """Engines report the tokens of all answers together; each is taken to have its share."""
        limit_tokens = None if features.cap_tokens < 0 else features.cap_tokens
        kind = AnswerKind.of(features.model, features.api, features.tenant, features.stream, limit_tokens)
        stated = Expected(
            features.output_tokens / features.choices,
            features.output_p50_tokens,
            features.output_p90_tokens,
            limit_tokens,
        )
        self.outputs.learn(kind, round(completion_tokens / features.choices), limit_tokens, stated)

    def _learn_speed(self, features: Features, outcome: Outcome) -> None:
        """Compare predicted with actual times where streaming shows both, and the engine reports its tokens."""
        output_tokens = outcome.completion_tokens or 0
        if not features.stream or outcome.ttft_s is None or output_tokens < 2 or outcome.attempts > 1:
            return  # of a retried request another instance was timed than the one that was predicted
        prefill, decode = self._scales.setdefault(features.profile, (Ratio(), Ratio()))
        prefill_s = features.ttft_s - features.queue_s
        ttft_s = outcome.ttft_s - (outcome.routing_s or 0.0)
        if features.queue_s < prefill_s:  # else it tells more of the queue than of the profile
            prefill.add(ttft_s - features.queue_s, prefill_s / features.prefill_scale)
        decode_s = outcome.duration_s - outcome.ttft_s
        decode.add(decode_s, (output_tokens - 1) * features.tpot_s / features.decode_scale)
        self._speeds.clear()  # rebuilt on the next read

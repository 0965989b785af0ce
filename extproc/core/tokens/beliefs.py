"""What is learned from outcomes: prompt tokens, output lengths, and how fast each instance really is."""

from __future__ import annotations

from collections.abc import Iterable

from extproc.core.flight.load_meter import MetLoad
from extproc.core.speeds.speed import Speed
from extproc.core.speeds.speed_records import KindRecord
from extproc.core.speeds.speeds import Speeds
from extproc.core.tokens.engine_totals import EngineTotals
from extproc.core.tokens.lessons import Lessons
from extproc.core.tokens.output_lengths import AnswerKind, Expected, OutputLengths
from extproc.core.tokens.tokens import TokenEstimator
from extproc.core.values.instance import Instance
from extproc.core.values.outcome import Features, Outcome

__all__ = ["Beliefs", "Speed"]


class Beliefs:
    """Learned quantities with their priors. Reads never fail: what is unknown is answered by the prior."""

    def __init__(self, priors: Iterable[KindRecord] = ()) -> None:
        self.tokens = TokenEstimator()
        self.outputs = OutputLengths()
        self.totals = EngineTotals(self.tokens, self.outputs)
        self.speeds = Speeds(priors)
        self._lessons = Lessons()

    def speed(self, model: str, instance: Instance) -> Speed:
        """How fast a model is on an instance, as far as is known."""
        return self.speeds.speed(model, instance)

    def learn(self, outcome: Outcome, served: Instance | None, met: MetLoad | None, now: float) -> None:
        """Take in one finished request. Failed and unmeasured ones teach nothing.

        Of a model that is asked very often, tokens and lengths are learned from as many as `Lessons` has it.
        `served` is the instance that answered, None if it is not known any more; `met` the load that it met there.
        """
        features = outcome.features
        if features is None or not 200 <= outcome.status < 300:
            return
        if self._lessons.take(features.model, now):
            if outcome.prompt_tokens and features.token_counts:
                text_tokens = outcome.prompt_tokens - features.media_tokens
                self.tokens.learn(features.model, features.token_counts, text_tokens)
            if outcome.completion_tokens:
                self._learn_output(features, outcome.completion_tokens)
        if served is not None:
            self.speeds.learn(outcome, served, met, now)
            if outcome.prompt_tokens is None and outcome.completion_tokens is None:
                self.totals.unmeasured(served.key, features)

    def forget(self, key: str) -> None:
        """Drop what is known of an incarnation that has ended."""
        self.speeds.forget(key)
        self.totals.forget(key)

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

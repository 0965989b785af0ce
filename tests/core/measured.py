"""Outcomes of instances whose true speed is known: table times factor plus overhead, with noise."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from extproc.core.flight.load_meter import MetLoad
from extproc.core.speeds.profile import profile_for
from extproc.core.speeds.speeds import Speeds
from extproc.core.values.instance import Instance
from extproc.core.values.outcome import Outcome
from tests.core.builders import MODEL, features

Noise = Callable[[random.Random], float]


def ten_percent(chance: random.Random) -> float:
    return max(0.2, chance.gauss(1.0, 0.1))


def heavy_tailed(chance: random.Random) -> float:
    """10 % noise, and one time in 12 anything between a third and thirty times."""
    if chance.random() < 1 / 12:
        return chance.uniform(0.3, 30.0)
    return ten_percent(chance)


@dataclass
class Truth:
    """How fast the instances of one fleet really are, and a clock on which they are asked one after the other."""

    seed: int = 0
    scale: float = 1.0
    prefill_overhead_s: float = 0.0
    decode_overhead_s: float = 0.0
    factors: dict[str, float] = field(default_factory=dict)  # by instance id
    noise: Noise = ten_percent
    model: str = MODEL
    now: float = 0.0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def prefill_s(self, each: Instance, tokens: int, cached_tokens: int = 0) -> float:
        table_s = profile_for(self.model, each.hardware, each.tensor_parallel).prefill_s(tokens, cached_tokens)
        return self.factors.get(each.id, 1.0) * (self.prefill_overhead_s + self.scale * table_s)

    def decode_step_s(self, each: Instance, sequences: float, context_tokens: float) -> float:
        table_s = profile_for(self.model, each.hardware, each.tensor_parallel).decode_step_s(sequences, context_tokens)
        return self.factors.get(each.id, 1.0) * (self.decode_overhead_s + self.scale * table_s)

    def finish(self, speeds: Speeds, each: Instance, queued_s: float = 0.0, apart_s: float = 10.0) -> None:
        """One request is sent `apart_s` after the one before, waits `queued_s` nobody predicted, and is learned."""
        chance = self.chance
        prompt_tokens, steps = int(chance.lognormvariate(7.0, 1.0)) + 20, chance.randint(20, 400)
        sequences = chance.randint(1, 100)
        context_tokens = sequences * chance.uniform(300.0, 3000.0)
        ttft_s = queued_s + self.prefill_s(each, prompt_tokens) * self.noise(chance)
        decode_s = steps * self.decode_step_s(each, sequences, context_tokens) * self.noise(chance)
        self.now += apart_s
        outcome = Outcome(
            features=features(model=self.model, instance_key=each.key, prompt_tokens=prompt_tokens),
            address=each.address,
            status=200,
            flags=(),
            attempts=1,
            duration_s=ttft_s + decode_s,
            ttft_s=ttft_s,
            routing_s=0.0,
            prompt_tokens=prompt_tokens,
            completion_tokens=steps + 1,
            cached_tokens=0,
            started_s=self.now,
        )
        speeds.learn(outcome, each, MetLoad(sequences, context_tokens, 0.0, 0.0), self.now)

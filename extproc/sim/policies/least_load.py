"""SMG's least load: time to drain what is queued, and a barrier against a full KV cache.

Source: lightseekorg/smg `model_gateway/src/policies/least_load.rs`:
score = (queued uncached tokens + tokens sent since the last poll) / throughput + 0.15 s x k / (1 - k), k the KV usage
up to 0.999; the first of the lowest in the list; each poll (10 s) resets the tokens sent. Prompt tokens are counted
whole, as the source does. vLLM reports no generation rate: the source's default of 2,000 tokens/s stands for all.
It reports waiting requests, not their tokens; they are taken to have the mean prompt of those sent so far (the
source's mean of 1,024 before there are any). Without any report, the fewest requests in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from extproc.sim.policies.desk import Desk, Seen, Trip
from extproc.sim.policies.picking import first_least
from extproc.sim.policies.policy import Ask, Policy, Setting
from extproc.sim.policies.textbook import in_flight

PERIOD_S = 10.0
KV_PRESSURE_S = 0.15
THROUGHPUT_TOKENS_S = 2000.0
MEAN_PREFILL_TOKENS = 1024.0
_FULL = 0.999


class LeastLoad:
    """Tokens sent since each instance's last poll, and the rule on them."""

    def __init__(self) -> None:
        self._sent: dict[int, tuple[float, int]] = {}  # by number: the poll, and tokens sent since then
        self._requests = 0
        self._tokens = 0

    def __call__(self, ask: Ask, candidates: Sequence[Seen], random: Random, now: float) -> Seen:
        """The least time to drain."""
        if all(seen.load.waiting is None and seen.load.kv_usage is None for seen in candidates):
            return first_least(candidates, in_flight)
        return first_least(candidates, self.score_s)

    def score_s(self, seen: Seen) -> float:
        """Expected wait at an instance."""
        mean = self._tokens / self._requests if self._requests else MEAN_PREFILL_TOKENS
        queued = (seen.load.waiting or 0) * mean
        k = min(seen.load.kv_usage or 0.0, _FULL)
        return (queued + self._sent_tokens(seen)) / THROUGHPUT_TOKENS_S + KV_PRESSURE_S * k / (1 - k)

    def sent(self, trip: Trip, now: float) -> None:
        """Credit a request to its instance until the next poll."""
        tokens = trip.ask.arrival.prompt_tokens
        self._sent[trip.seen.number] = (trip.seen.polled_at_s, self._sent_tokens(trip.seen) + tokens)
        self._requests += 1
        self._tokens += tokens

    def _sent_tokens(self, seen: Seen) -> int:
        polled_at_s, tokens = self._sent.get(seen.number, (0.0, 0))
        return tokens if polled_at_s == seen.polled_at_s else 0


def least_load(setting: Setting) -> Policy:
    """SMG's least load."""
    rule = LeastLoad()
    return Desk(setting, rule, poll_s=PERIOD_S, on_sent=rule.sent)

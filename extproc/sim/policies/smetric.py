"""SMetric: a session stays where its prefix is while that instance can still meet the time to first token.

Source: vllm-project/router `src/policies/smetric.rs`: work of n missing of L tokens = n + n (L - n/2) / L_eq; queued
work is booked at dispatch and released at the first token; an instance meets the target if (queued + own work) / rate
<= slack x (1 s + 0.0625 s per 1,000 tokens), rate being the 0.9 quantile of its last 64 of work / time to first
token (met while it has fewer than 8); a follow-up stays with the longest match if that exceeds half of what the last
turn sent and it meets the target (or nobody does); else the lowest (queued + own work) x requests in flight, equals by
turns. L_eq: 30,518 tokens, the source's active parameters / (2 x layers x heads x head size) for an 8B Llama. The
source tells a follow-up by its assistant messages; a trace has none, so it is one if its session was seen before, and
without sessions if anybody holds more than half of the whole prompt.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from random import Random

from extproc.sim.policies.cache_aware import TREE_TOKENS
from extproc.sim.policies.desk import Desk, Seen, Trip, blocks_for
from extproc.sim.policies.holdings import LruHoldings
from extproc.sim.policies.policy import Ask, Ending, Policy, Setting

HIT_RATIO = 0.5
SLACK = 1.0
TARGET_S = 1.0
TARGET_S_PER_TOKEN = 0.0625 / 1000
CROSSOVER_TOKENS = 30_518.0
WINDOW, FEWEST, QUANTILE = 64, 8, 0.9


class SMetric:
    """Queued work, learned rates and sessions, and the rule on them."""

    def __init__(self) -> None:
        self._queued: Counter[int] = Counter()  # requests before their first token, by number
        self._work: dict[int, float] = {}
        self._samples: dict[int, deque[float]] = {}
        self._rates: dict[int, float] = {}
        self._history: dict[str, int] = {}  # prompt tokens of each session's last turn
        self._turn = 0

    def __call__(self, ask: Ask, candidates: Sequence[Seen], random: Random, now: float) -> Seen:
        """Stay, or go where work times requests is the lowest."""
        prompt_tokens = ask.arrival.prompt_tokens
        loads = {
            seen.number: self._work.get(seen.number, 0.0) + work(prompt_tokens, seen.hit_tokens) for seen in candidates
        }
        target_s = SLACK * (TARGET_S + TARGET_S_PER_TOKEN * prompt_tokens)

        def meets(seen: Seen) -> bool:
            rate = self._rates.get(seen.number)
            return rate is None or loads[seen.number] / rate <= target_s

        holder = max(candidates, key=lambda seen: (seen.hit_tokens, -loads[seen.number]))
        if holder.hit_tokens > HIT_RATIO * self._history_tokens(ask) and (
            meets(holder) or not any(meets(seen) for seen in candidates)
        ):
            return holder
        scores = [loads[seen.number] * seen.in_flight for seen in candidates]
        lowest = min(scores)
        tied = [seen for seen, score in zip(candidates, scores, strict=True) if score == lowest]
        self._turn += 1
        return tied[self._turn % len(tied)]

    def sent(self, trip: Trip, now: float) -> None:
        """Queue a request's work."""
        arrival = trip.ask.arrival
        number = trip.seen.number
        self._queued[number] += 1
        self._work[number] = self._work.get(number, 0.0) + work(arrival.prompt_tokens, trip.hit_tokens)
        if arrival.session:
            self._history[arrival.session] = arrival.prompt_tokens

    def first_token(self, trip: Trip, now: float) -> None:
        """Learn the rate from a time to first token."""
        done = self._dequeue(trip)
        ttft_s = now - trip.sent_at_s
        if done > 0 and ttft_s > 0:
            samples = self._samples.setdefault(trip.seen.number, deque(maxlen=WINDOW))
            samples.append(done / ttft_s)
            if len(samples) >= FEWEST:
                self._rates[trip.seen.number] = sorted(samples)[round(QUANTILE * (len(samples) - 1))]

    def over(self, trip: Trip, ending: Ending | None, now: float) -> None:
        """Release a request that never got a token."""
        if not trip.answering:
            self._dequeue(trip)

    def _dequeue(self, trip: Trip) -> float:
        number = trip.seen.number
        done = work(trip.ask.arrival.prompt_tokens, trip.hit_tokens)
        self._queued[number] -= 1
        self._work[number] = max(0.0, self._work[number] - done) if self._queued[number] else 0.0
        return done

    def _history_tokens(self, ask: Ask) -> float:
        """What the last turn sent; all of the prompt at most, infinite for a session's first request."""
        arrival = ask.arrival
        if arrival.session:
            return self._history.get(arrival.session, float("inf"))
        return arrival.prompt_tokens


def work(prompt_tokens: int, hit_tokens: int) -> float:
    """Prefill work in tokens' worth of linear layers."""
    missing = prompt_tokens - hit_tokens
    return missing + missing * (prompt_tokens - missing / 2) / CROSSOVER_TOKENS


def smetric(setting: Setting) -> Policy:
    """Session affinity within a target for the first token."""
    rule = SMetric()
    return Desk(
        setting,
        rule,
        holdings=LruHoldings(blocks_for(setting, TREE_TOKENS)),
        on_sent=rule.sent,
        on_first_token=rule.first_token,
        on_over=rule.over,
    )

"""Dynamo's rules for pairs: its KV router picks who computes a prompt, and by load alone who answers.

Source: ai-dynamo/dynamo `lib/llm/src/kv_router/prefill_router/mod.rs` (a prefill router over the prefill workers; the
decode router with overlap credit 0, `assume_kv_reuse` off: each request's blocks count by themselves, and
`track_prefill_tokens` off), `conditional_bypass.rs` and `lib/kv-router/src/conditional_disagg.rs` (a switch that is off
by default: where the decode worker that would be picked, hits counted, lacks fewer than 2,048 tokens and less than 0.7
of the prompt, it computes them itself). Costs are those of `dynamo_kv`.
The worker that answers is picked at once, as Dynamo does where its workers need not wait for each other (bootstrap and
push modes); with vLLM's pull it is picked when the prompt is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from extproc.core.values.instance import Instance
from extproc.sim.policies.desk import Desk, Seen, Trip
from extproc.sim.policies.dynamo_kv import ENGINE_BLOCK_TOKENS, SCALE, DynamoKv
from extproc.sim.policies.holdings import Holdings
from extproc.sim.policies.pair_desk import always, pair_policy
from extproc.sim.policies.picking import least
from extproc.sim.policies.policy import Ask, Ending, Policy, Setting

MOST_TOKENS = 2048
MOST_SHARE = 0.7


class DecodeLoad:
    """Blocks of the requests that a router has at each instance, and the fewest of them; hits count by `credit`."""

    def __init__(self, credit: float) -> None:
        self._credit = credit
        self._tokens: dict[int, int] = {}  # by number at the desk

    def __call__(self, ask: Ask, candidates: Sequence[Seen], random: Random, now: float) -> Seen:
        """The lowest cost in blocks; prompts are computed elsewhere, so that only a hit is worth something."""

        def cost(seen: Seen) -> float:
            lacking = max(0.0, ask.arrival.prompt_tokens - self._credit * seen.hit_tokens)
            blocks = self._tokens.get(seen.number, 0) + ask.arrival.prompt_tokens
            return (SCALE * lacking + blocks) / (seen.instance.block_size_tokens or ENGINE_BLOCK_TOKENS)

        return least(candidates, cost, random)

    def sent(self, trip: Trip, now: float) -> None:
        """Count a request."""
        number = trip.seen.number
        self._tokens[number] = self._tokens.get(number, 0) + trip.ask.arrival.prompt_tokens

    def over(self, trip: Trip, ending: Ending | None, now: float) -> None:
        """Count it no more."""
        self._tokens[trip.seen.number] -= trip.ask.arrival.prompt_tokens


def lacks_much(ask: Ask, seen: Seen) -> bool:
    """Whether the prompt goes to a prefill worker all the same."""
    lacking = max(0, ask.arrival.prompt_tokens - seen.hit_tokens)
    return lacking >= MOST_TOKENS or lacking >= MOST_SHARE * ask.arrival.prompt_tokens


def dynamo_pd(setting: Setting) -> Policy:
    """Dynamo's disaggregation with its defaults."""
    return pair_policy(setting, _answers(0.0), _prefills, always)


def dynamo_pd_conditional(setting: Setting) -> Policy:
    """The same with conditional disaggregation switched on, its defaults else."""
    return pair_policy(setting, _answers(1.0), _prefills, lacks_much)


def _answers(credit: float) -> Callable[[Setting, Callable[[Instance], bool]], Desk]:
    def desk(setting: Setting, takes: Callable[[Instance], bool]) -> Desk:
        rule = DecodeLoad(credit)
        return Desk(setting, rule, holdings=Holdings(), shares=True, takes=takes, on_sent=rule.sent, on_over=rule.over)

    return desk


def _prefills(setting: Setting, takes: Callable[[Instance], bool]) -> Desk:
    rule = DynamoKv(SCALE, setting.block_size_tokens)
    return Desk(setting, rule, holdings=Holdings(), shares=True, takes=takes, on_sent=rule.sent, on_over=rule.over)

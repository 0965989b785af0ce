"""llm-d's rules for pairs: who answers is picked first, and its cache decides whether another computes the prompt.

Source: llm-d/llm-d-router `pkg/epp/framework/plugins/scheduling/profilehandler/disagg/disagg_profile_handler.go`
(decode profile, then decider, then prefill profile), `prefix_based_pd_decider.go` (split where the tokens that the
picked decode instance does not hold are at least `nonCachedTokens`), `always_disagg_pd_decider.go`. Two published
configurations:

`llm_d_pd`: llm-d/llm-d `guides/pd-disaggregation/router/pd-disaggregation.values.yaml`: always split; answers by fewest
requests in flight (`active-request-scorer`); prompts by the affinity filter with 33,821 tokens/s, then the token load.
`llm_d_pd_threshold`: `deploy/config/pd-epp-config.yaml`: both halves by 2 x matched share of the prompt + queue, split
from 512 uncached tokens (the README of the deciders; that file has 16, which is nearly always).
A decode instance that cannot compute prompts always gets a partner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from extproc.core.values.instance import Instance
from extproc.sim.policies.desk import Desk, Seen
from extproc.sim.policies.llm_d_affinity import token_load
from extproc.sim.policies.llm_d_default import PERIOD_S, holdings, matched_share
from extproc.sim.policies.pair_desk import always, pair_policy
from extproc.sim.policies.picking import least, most
from extproc.sim.policies.policy import Ask, Policy, Setting

PEAK_TOKENS_S = 33_821.0
PREFIX_WEIGHT, QUEUE_WEIGHT = 2.0, 1.0
THRESHOLD_TOKENS = 512


def active_requests(ask: Ask, candidates: Sequence[Seen], random: Random, now: float) -> Seen:
    """The fewest requests in flight."""
    return least(candidates, lambda seen: seen.in_flight, random)


def prefix_and_queue(ask: Ask, candidates: Sequence[Seen], random: Random, now: float) -> Seen:
    """The highest sum of the scores of prefix and queue."""
    queues = [seen.load.waiting or 0 for seen in candidates]
    longest, shortest = max(queues), min(queues)

    def score(seen: Seen) -> float:
        queue = 1.0 if longest == shortest else (longest - (seen.load.waiting or 0)) / (longest - shortest)
        return PREFIX_WEIGHT * matched_share(ask, seen) + QUEUE_WEIGHT * queue

    return most(candidates, score, random)


def over_threshold(ask: Ask, seen: Seen) -> bool:
    """Whether enough of the prompt is not held by who answers."""
    return ask.arrival.prompt_tokens - seen.hit_tokens >= THRESHOLD_TOKENS


def llm_d_pd(setting: Setting) -> Policy:
    """llm-d's guide for P/D disaggregation."""

    def answers(setting: Setting, takes: Callable[[Instance], bool]) -> Desk:
        return Desk(setting, active_requests, takes=takes)

    def prefills(setting: Setting, takes: Callable[[Instance], bool]) -> Desk:
        return Desk(setting, token_load(PEAK_TOKENS_S), holdings=holdings(setting), takes=takes)

    return pair_policy(setting, answers, prefills, always)


def llm_d_pd_threshold(setting: Setting) -> Policy:
    """llm-d's sample configuration with the prefix-based decider."""

    def desk(setting: Setting, takes: Callable[[Instance], bool]) -> Desk:
        return Desk(setting, prefix_and_queue, holdings=holdings(setting), poll_s=PERIOD_S, takes=takes)

    return pair_policy(setting, desk, desk, over_threshold)

"""SGLang's gateway and vLLM's router: cache-aware routing that falls back to the shortest queue when out of balance.

Source: sgl-project/sglang `sgl-model-gateway/src/policies/cache_aware.rs` and vllm-project/router
`src/policies/cache_aware.rs`: imbalanced if max - min > abs and max > rel x min of the router's own requests in
flight: the least loaded, the first of them in the list; else the instance with the longest match if the match rate is
above the threshold, any of several; else the least loaded. The tree is of what the router sent itself, 2^26
characters an instance (vLLM router's default), taken as 4 characters a token, the oldest dropped first.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from extproc.sim.policies.desk import Desk, Seen, blocks_for
from extproc.sim.policies.holdings import LruHoldings
from extproc.sim.policies.picking import first_least, most
from extproc.sim.policies.policy import Ask, Policy, Setting
from extproc.sim.policies.textbook import in_flight

CACHE_THRESHOLD = 0.3
BALANCE_ABS = 64
BALANCE_REL = 1.5
TREE_TOKENS = 2**26 // 4  # of each instance


def rule(ask: Ask, candidates: Sequence[Seen], random: Random, now: float) -> Seen:
    """The match, unless load or a short match speaks against it."""
    counts = [seen.in_flight for seen in candidates]
    highest, lowest = max(counts), min(counts)
    if not (highest - lowest > BALANCE_ABS and highest > BALANCE_REL * lowest):
        best = most(candidates, lambda seen: seen.hit_tokens, random)
        if best.hit_tokens > CACHE_THRESHOLD * ask.arrival.prompt_tokens:
            return best
    return first_least(candidates, in_flight)


def cache_aware(setting: Setting) -> Policy:
    """Cache-aware with the shortest queue as fallback."""
    return Desk(setting, rule, holdings=LruHoldings(blocks_for(setting, TREE_TOKENS)))

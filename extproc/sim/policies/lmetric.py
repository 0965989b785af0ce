"""LMetric: the product of a request's uncached tokens and the batch it would join.

Source: sgl-project/sglang `sgl-model-gateway/src/policies/lmetric.rs`: the lowest uncached x (in flight + 1), then
the fewest in flight, then the fewest uncached, then the first in the list; the batch is the router's own requests
in flight, and the tree is of what it sent itself (2^26 characters an instance, taken as 4 a token).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from extproc.sim.policies.cache_aware import TREE_TOKENS
from extproc.sim.policies.desk import Desk, Seen, blocks_for
from extproc.sim.policies.holdings import LruHoldings
from extproc.sim.policies.picking import first_least
from extproc.sim.policies.policy import Ask, Policy, Setting


def rule(ask: Ask, candidates: Sequence[Seen], random: Random, now: float) -> Seen:
    """The lowest product."""

    def cost(seen: Seen) -> tuple[int, int, int]:
        uncached = ask.arrival.prompt_tokens - seen.hit_tokens
        return uncached * (seen.in_flight + 1), seen.in_flight, uncached

    return first_least(candidates, cost)


def lmetric(setting: Setting) -> Policy:
    """The product of load and miss."""
    return Desk(setting, rule, holdings=LruHoldings(blocks_for(setting, TREE_TOKENS)))

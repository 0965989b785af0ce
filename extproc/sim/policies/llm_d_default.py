"""llm-d's default profile: a weighted sum of queue, KV usage and prefix scores; the highest wins, ties random.

Source: llm-d/llm-d-inference-scheduler (llm-d-router) `pkg/epp/framework/plugins/scheduling/scorer`:
`queuedepth/queue.go` ((max - queue) / (max - min), 1 if all are equal), `kvcacheutilization` (1 - usage),
`prefix/plugin.go` (matched / total blocks of the prompt), weights 2, 2, 3; `requestcontrol/dataproducer/
approximateprefix` (64-token blocks as deployed, LRU of 31,250 blocks an instance, the router's own choices);
metrics polled every 50 ms. A metric that is missing reads 0 there (Go's zero value), so it does here.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from extproc.sim.policies.desk import Desk, Seen, blocks_for
from extproc.sim.policies.holdings import LruHoldings
from extproc.sim.policies.picking import most
from extproc.sim.policies.policy import Ask, Policy, Setting

PERIOD_S = 0.05
QUEUE_WEIGHT, KV_WEIGHT, PREFIX_WEIGHT = 2.0, 2.0, 3.0
BLOCK_TOKENS = 64
LRU_BLOCKS = 31_250  # of each instance


def rule(ask: Ask, candidates: Sequence[Seen], random: Random, now: float) -> Seen:
    """The highest weighted sum of scores."""
    queues = [seen.load.waiting or 0 for seen in candidates]
    longest, shortest = max(queues), min(queues)

    def score(seen: Seen) -> float:
        waiting = seen.load.waiting or 0
        queue = 1.0 if longest == shortest else (longest - waiting) / (longest - shortest)
        free = 1.0 - (seen.load.kv_usage or 0.0)
        return QUEUE_WEIGHT * queue + KV_WEIGHT * free + PREFIX_WEIGHT * matched_share(ask, seen)

    return most(candidates, score, random)


def matched_share(ask: Ask, seen: Seen) -> float:
    """Matched share of a prompt's full 64-token blocks; 0 for a prompt that has none."""
    total = ask.arrival.prompt_tokens // BLOCK_TOKENS
    return min(1.0, seen.hit_tokens // BLOCK_TOKENS / total) if total else 0.0


def holdings(setting: Setting) -> LruHoldings:
    """The approximate prefix index of llm-d's router."""
    return LruHoldings(blocks_for(setting, LRU_BLOCKS * BLOCK_TOKENS))


def llm_d_default(setting: Setting) -> Policy:
    """llm-d's default scorers and weights."""
    return Desk(setting, rule, holdings=holdings(setting), poll_s=PERIOD_S)

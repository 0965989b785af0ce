"""AIBrix's prefix-cache rule: the longest match that is not overloaded, behind a guard on in-flight counts.

Source: vllm-project/aibrix `pkg/plugins/gateway/algorithms/prefix_cache.go`: where max - min > 8 of the gateway's
own in-flight counts, only the instances of the lowest count are matched; matches are sorted by the percent of the
prompt's blocks (a whole number), then by requests, then at random, and the first whose count is within the mean plus
one standard deviation of all instances wins; no match: the fewest requests, ties random. Index
(`pkg/utils/prefixcacheindexer/hash.go`): one table of 200,000 blocks over all instances, kept 20 minutes. Blocks are of
16 tokens, the default of its index by KV events (`pkg/utils/syncprefixcacheindexer`); this index has 4 in its code and
128 in its guide.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from statistics import fmean, pstdev

from extproc.sim.policies.desk import Desk, Seen, blocks_for
from extproc.sim.policies.holdings import LruHoldings
from extproc.sim.policies.picking import least
from extproc.sim.policies.policy import Ask, Policy, Setting
from extproc.sim.policies.textbook import in_flight

IMBALANCE = 8
DEVIATIONS = 1
BLOCK_TOKENS = 16
TABLE_BLOCKS = 200_000  # over all instances
KEEP_S = 20 * 60.0


def rule(ask: Ask, candidates: Sequence[Seen], random: Random, now: float) -> Seen:
    """The best match that is not overloaded, else the fewest requests."""
    counts = [seen.in_flight for seen in candidates]
    fewest = min(counts)
    pool: Sequence[Seen] = candidates
    if max(counts) - fewest > IMBALANCE:
        pool = [seen for seen in candidates if seen.in_flight == fewest]
    bound = fmean(counts) + DEVIATIONS * pstdev(counts)
    matches = [seen for seen in pool if _percent(ask, seen) > 0 and seen.in_flight <= bound]
    if matches:
        return least(matches, lambda seen: (-_percent(ask, seen), seen.in_flight), random)
    return least(candidates, in_flight, random)


def _percent(ask: Ask, seen: Seen) -> int:
    """Matched share of the prompt's blocks in percent."""
    total = ask.arrival.prompt_tokens // BLOCK_TOKENS
    return min(100, seen.hit_tokens // BLOCK_TOKENS * 100 // total) if total else 0


def aibrix_prefix(setting: Setting) -> Policy:
    """AIBrix's prefix-cache rule."""
    capacity = blocks_for(setting, TABLE_BLOCKS * BLOCK_TOKENS)
    return Desk(setting, rule, holdings=LruHoldings(capacity, common=True, keep_s=KEEP_S))

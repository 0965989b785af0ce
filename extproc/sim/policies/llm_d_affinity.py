"""llm-d's affinity profile: keep the instances that hold the prompt unless they are far behind; then the token load.

Source: llm-d/llm-d-router `pkg/epp/framework/plugins/scheduling/filter/prefixcacheaffinity/plugin.go` (hit >= 0.80 is
sticky; broken where the best sticky instance's in-flight tokens / 15,928 tokens/s exceed the best other's by more
than 18 s; exploration 0), `scorer/tokenload/token_load.go` (1 - tokens / 4,194,304, capped, with the request's own
uncached tokens) and `requestcontrol/dataproducer/inflightload` (uncached tokens only, released at the first token).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from extproc.sim.policies.desk import Desk, Rule, Seen
from extproc.sim.policies.llm_d_default import holdings, matched_share
from extproc.sim.policies.picking import most
from extproc.sim.policies.policy import Ask, Policy, Setting

AFFINITY = 0.80
PREFILL_TOKENS_S = 15_928.0
LONGEST_PENALTY_S = 18.0
FULL_TOKENS = 4_194_304


def token_load(tokens_s: float) -> Rule:
    """The lowest token load of those that the affinity filter keeps, which computes so many tokens a second."""

    def rule(ask: Ask, candidates: Sequence[Seen], random: Random, now: float) -> Seen:
        prompt_tokens = ask.arrival.prompt_tokens

        def score(seen: Seen) -> float:
            return 1.0 - min(1.0, (seen.prefill_tokens + prompt_tokens - seen.hit_tokens) / FULL_TOKENS)

        return most(_kept(ask, candidates, tokens_s), score, random)

    return rule


def _kept(ask: Ask, candidates: Sequence[Seen], tokens_s: float) -> Sequence[Seen]:
    """The sticky instances; all of them where there is none, or where sticking would cost too much."""
    sticky = [seen for seen in candidates if matched_share(ask, seen) >= AFFINITY]
    others = [seen for seen in candidates if matched_share(ask, seen) < AFFINITY]
    if not sticky:
        return candidates
    if others and _best_ttft_s(sticky, tokens_s) - _best_ttft_s(others, tokens_s) > LONGEST_PENALTY_S:
        return candidates
    return sticky


def _best_ttft_s(group: Sequence[Seen], tokens_s: float) -> float:
    return min(seen.prefill_tokens for seen in group) / tokens_s


def llm_d_affinity(setting: Setting) -> Policy:
    """llm-d's prefix-cache affinity filter with its token-load scorer."""
    return Desk(setting, token_load(PREFILL_TOKENS_S), holdings=holdings(setting))

"""The best pair of instances for a request: constraints checked, halves priced, the cheapest two chosen."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from extproc.core.cached import Belief, Cached
from extproc.core.classes import weights_for
from extproc.core.constraints import check, cramped, doubtful
from extproc.core.cost import Pricing
from extproc.core.disaggregation import Half, Pair, Transfer, choose_pair, takes_decode, takes_prefill
from extproc.core.fleet import Member
from extproc.core.hand_over import can_pair
from extproc.core.kv_index import Hit
from extproc.core.model import Candidate, Cost, Request
from extproc.core.snapshot import Snapshot


def best_pair(request: Request, snapshot: Snapshot, now: float, full: Set[str] = frozenset()) -> Pair | None:
    """The cheapest pair, None if the operator has no way to hand over or no two instances can."""
    if not request.expected_output_tokens or not any(member.instance.kv_domain for member in snapshot.members):
        return None
    fitting = [
        member
        for member in snapshot.members
        if member.instance.kv_domain
        and member.instance.key not in full
        and can_pair(snapshot.policy.hand_over, member.instance, member.instance)
        and check(request, member, snapshot, whole=False) is None
        and cramped(request, member.instance) is None
        and doubtful(member, snapshot, now) is None
    ]
    cached = Cached(request, snapshot, now)
    halves = _Halves(request, snapshot, now)
    transfer = Transfer(
        model=request.model,
        prompt_tokens=request.prompt_tokens,
        zones=snapshot.policy.zones,
        weight=weights_for(request, snapshot.policy.classes).ttft,
    )
    prefills = [halves.prefill(each, cached.at(each.instance)) for each in fitting if takes_prefill(each.instance)]
    decodes = [halves.decode(each, cached.at(each.instance)) for each in fitting if takes_decode(each.instance)]
    return choose_pair(prefills, decodes, transfer)


def as_candidate(pair: Pair) -> Candidate:
    """The pair as one candidate: the instance that answers, at the cost of both. The transfer counts as prefill."""
    moved = Cost(queue_s=0.0, prefill_s=pair.transfer_s, decode_s=0.0, total_s=0.0)
    cost = replace(pair.prefill.cost.plus(pair.decode.cost).plus(moved), total_s=pair.worth_s)
    return replace(pair.decode, cost=cost, cached_tokens=pair.prefill.cached_tokens, claims=pair.prefill.claims)


class _Halves:
    """Prices halves as requests of their own."""

    def __init__(self, request: Request, snapshot: Snapshot, now: float) -> None:
        self._whole_tokens = request.prompt_tokens
        self._prompts = Pricing(replace(request, expected_output_tokens=1), snapshot, now)
        self._answers = Pricing(request, snapshot, now)

    def prefill(self, member: Member, belief: Belief) -> Half:
        """The prompt, and one token: what a stack asks of the instance that computes it."""
        half = self._prompts.at(member, belief)
        return Half(replace(half, cost=replace(half.cost, decode_s=0.0)))

    def decode(self, member: Member, belief: Belief) -> Half:
        """The answer, after a prompt that has arrived; its last token is computed here."""
        arrived = Belief(Hit(max(0, self._whole_tokens - 1)), belief.claims)
        return Half(self._answers.at(member, arrived), belief.hit.tokens)

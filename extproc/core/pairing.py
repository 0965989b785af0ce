"""The best pair of instances for a request: constraints checked, halves priced, the cheapest two chosen."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace

from extproc.core.cached import Belief, Cached
from extproc.core.constraints import check, cramped, doubtful
from extproc.core.cost import price
from extproc.core.disaggregation import Half, Pair, Transfer, choose_pair, takes_decode, takes_prefill, total_s
from extproc.core.hand_over import can_pair
from extproc.core.kv_index import Hit
from extproc.core.model import Candidate, Cost, Instance, Request
from extproc.core.snapshot import Snapshot


def best_pair(
    request: Request,
    snapshot: Snapshot,
    now: float,
    full: Set[str] = frozenset(),
    worth_s: Callable[[Candidate], float] = total_s,
) -> Pair | None:
    """The cheapest pair, None if the operator has no way to hand over or no two instances can.

    `worth_s` is what single candidates are compared by, so that the pair's own `worth_s` can be held against theirs.
    """
    if not request.expected_output_tokens or not any(member.instance.kv_domain for member in snapshot.members):
        return None
    fitting = [
        member.instance
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
    transfer = Transfer(model=request.model, prompt_tokens=request.prompt_tokens, zones=snapshot.policy.zones)
    prefills = [halves.prefill(each, cached.at(each)) for each in fitting if takes_prefill(each)]
    decodes = [halves.decode(each, cached.at(each)) for each in fitting if takes_decode(each)]
    return choose_pair(prefills, decodes, transfer, worth_s)


def as_candidate(pair: Pair) -> Candidate:
    """The pair as one candidate: the instance that answers, at the cost of both. The transfer counts as prefill."""
    first, then = pair.prefill.cost, pair.decode.cost
    cost = Cost(
        queue_s=first.queue_s + then.queue_s,
        prefill_s=first.prefill_s + pair.transfer_s + then.prefill_s,
        decode_s=then.decode_s,
        pressure_s=first.pressure_s + then.pressure_s,
        harm_s=first.harm_s + then.harm_s,
    )
    return replace(pair.decode, cost=cost, cached_tokens=pair.prefill.cached_tokens, claims=pair.prefill.claims)


class _Halves:
    """Prices halves as requests of their own."""

    def __init__(self, request: Request, snapshot: Snapshot, now: float) -> None:
        self._whole = request
        self._prompt_only = replace(request, expected_output_tokens=1)
        self._snapshot = snapshot
        self._now = now

    def prefill(self, instance: Instance, belief: Belief) -> Half:
        """The prompt, and one token: what a stack asks of the instance that computes it."""
        half = self._price(self._prompt_only, instance, belief)
        return Half(replace(half, cost=replace(half.cost, decode_s=0.0)))

    def decode(self, instance: Instance, belief: Belief) -> Half:
        """The answer, after a prompt that has arrived; its last token is computed here."""
        arrived = Belief(Hit(max(0, self._whole.prompt_tokens - 1)), belief.claims)
        return Half(self._price(self._whole, instance, arrived), belief.hit.tokens)

    def _price(self, request: Request, instance: Instance, belief: Belief) -> Candidate:
        speed = self._snapshot.beliefs.speed(request.model, instance)
        return price(request, instance, self._snapshot.ledger.work(instance.key), speed, belief, self._now)

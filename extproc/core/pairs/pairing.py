"""The pairs of instances that can serve a request: constraints checked, halves priced, the cheapest first."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass

import msgspec
import numpy as np

from extproc.core.eligibility.constraints import DOUBTS, Doubt, cramped, demand_of, doubtful, misfit, unable
from extproc.core.eligibility.kv_room import shortage
from extproc.core.fleet.fleet import Member
from extproc.core.pairs.disaggregation import Half, Pair, Transfer, rank_pairs, takes_decode, takes_prefill
from extproc.core.pairs.hand_over import can_pair
from extproc.core.pairs.lacking import Lacking
from extproc.core.prefixes.cached import Cached, Hits
from extproc.core.pricing.classes import weights_for
from extproc.core.pricing.cost import Pricing
from extproc.core.snapshot import Snapshot
from extproc.core.speeds.shapes import kv_bytes_per_token
from extproc.core.values.decision import Candidate, Cost, Rejection
from extproc.core.values.instance import Instance
from extproc.core.values.request import Request

_SOUND = int(Doubt.NONE)  # how well an instance stands; `last_resorts` has the same order
_TIGHT = len(Doubt)  # and beyond: short of room for the answer


@dataclass(frozen=True, slots=True)
class _Offer:
    """A member that may take one half, and what speaks against it."""

    member: Member
    grade: int
    against: Rejection | None = None


class Pairing:
    """One look at the fleet for pairs that serve one request.

    `missed` are the constraints that halves fail, by instance id: those that rule one out, and those that are waived
    where no better one is left.
    """

    def __init__(self, request: Request, snapshot: Snapshot, now: float, full: Set[str] = frozenset()) -> None:
        self._request, self._snapshot, self._now = request, snapshot, now
        self.missed: dict[str, Rejection] = {}
        snapshot.columns.refresh(snapshot, now)
        self._held_tokens = Cached(request, snapshot, now).hits().tokens() if snapshot.columns.any_kv_limit else None
        # Without an answer to produce there is nothing to hand over to.
        able = [each for each in snapshot.members if self._is_able(each)] if request.expected_output_tokens else []
        self._able = {each.instance.id: each.instance for each in able}
        fitting = [each for each in able if self._fits(each, full)]
        self._prefills = self._offers(fitting, takes_prefill, answers=False)
        self._decodes = self._offers(fitting, takes_decode, answers=True)

    def sound(self) -> list[Pair]:
        """Pairs that nothing speaks against, the cheapest first."""
        return self._ranked(_sound(self._prefills), _sound(self._decodes))

    def doubted(self) -> list[Pair]:
        """Pairs for when there is no sound one: of those that failed or fell silent, or are short of room.

        If all did, a prompt or an agent is more likely to be ill than all engines at once (as in `decide`).
        """
        return self._ranked(_best_of_each_domain(self._prefills), _best_of_each_domain(self._decodes))

    def lacking(self) -> Lacking:
        """What keeps halves from pairs."""
        return Lacking(self._request, self._snapshot, self.missed)

    def can_be_in(self, name: str, domains: Set[str]) -> bool:
        """Whether an instance of this id can take a half of a pair that was found in one of these domains."""
        instance = self._able.get(name)
        if instance is None or instance.kv_domain not in domains:
            return False
        # Where nobody knows how much is to be moved, nobody can tell when it is there.
        return not takes_decode(instance) or kv_bytes_per_token(instance, self._request.model) is not None

    def _is_able(self, member: Member) -> bool:
        instance = member.instance
        return bool(instance.kv_domain) and can_pair(self._snapshot.policy.hand_over, instance, instance)

    def _fits(self, member: Member, full: Set[str]) -> bool:
        instance = member.instance
        demand = demand_of(self._request, whole=False)
        rejection = misfit(demand, instance) or unable(self._request, instance, self._snapshot, full)
        if rejection is not None:
            self.missed[instance.id] = rejection
        return rejection is None

    def _offers(self, fitting: list[Member], takes: Callable[[Instance], bool], *, answers: bool) -> list[_Offer]:
        taking = [each for each in fitting if takes(each.instance) and self._has_room(each, answers)]
        offers = [self._offer(each, answers) for each in taking]
        for offer in offers:
            if offer.against is not None:
                self.missed[offer.against.instance_id] = offer.against
        return offers

    def _has_room(self, member: Member, answers: bool) -> bool:
        """Whether it has the KV room that the operator's limit asks for. Either half holds the whole prompt."""
        if self._held_tokens is None:
            return True
        half = self._request if answers else msgspec.structs.replace(self._request, expected_output_tokens=0)
        held_tokens = self._held_tokens.item(self._snapshot.columns.row_of[member.instance.key])
        rejection = shortage(half, member.instance, self._snapshot, held_tokens)
        if rejection is not None:
            self.missed[member.instance.id] = rejection
        return rejection is None

    def _offer(self, member: Member, answers: bool) -> _Offer:
        # Only the one that answers needs room for the answer.
        tight = cramped(self._request, member.instance) if answers else None
        doubt = doubtful(member, self._snapshot, self._now)
        grade = (0 if tight is None else _TIGHT) + (_SOUND if doubt is None else DOUBTS[doubt.reason])
        return _Offer(member, grade, tight or doubt)

    def _ranked(self, prefills: list[Member], decodes: list[Member]) -> list[Pair]:
        if not prefills or not decodes:
            return []
        request, snapshot = self._request, self._snapshot
        transfer = Transfer(
            model=request.model,
            prompt_tokens=request.prompt_tokens,
            zones=snapshot.policy.zones,
            weights=weights_for(request, snapshot.policy.classes),
            tail_from_s=snapshot.tail.begins_s,
            tail_weight=snapshot.tail.weight,
        )
        row_of = snapshot.columns.row_of
        prompts, answers = ([row_of[each.instance.key] for each in offers] for offers in (prefills, decodes))
        halves = _Halves(request, snapshot, self._now, {*prompts, *answers})
        return rank_pairs(map(halves.prefill, prompts), [halves.decode(row) for row in answers], transfer)


def as_candidate(pair: Pair) -> Candidate:
    """The pair as one candidate: the instance that answers, at the cost of both. The transfer is communication."""
    moved = Cost(
        queue_s=0.0,
        prefill_s=0.0,
        decode_s=0.0,
        communication_s=pair.transfer_s,
        money_s=pair.money_s,
        tail_s=pair.tail_s,
        total_s=0.0,
    )
    cost = msgspec.structs.replace(pair.prefill.cost.plus(pair.decode.cost).plus(moved), total_s=pair.worth_s)
    return msgspec.structs.replace(
        pair.decode, cost=cost, cached_tokens=pair.prefill.cached_tokens, claims=pair.prefill.claims
    )


def _sound(offers: list[_Offer]) -> list[Member]:
    return [offer.member for offer in offers if offer.grade == _SOUND]


def _best_of_each_domain(offers: list[_Offer]) -> list[Member]:
    """Those of the best grade that there is where each could hand over, or take over."""
    best: dict[str, int] = {}
    for offer in offers:
        domain = offer.member.instance.kv_domain
        best[domain] = min(best.get(domain, offer.grade), offer.grade)
    return [offer.member for offer in offers if offer.grade == best[offer.member.instance.kv_domain]]


class _Halves:
    """Prices halves as requests of their own."""

    def __init__(self, request: Request, snapshot: Snapshot, now: float, rows: Set[int]) -> None:
        self._cached = Cached(request, snapshot, now)
        hits = self._cached.hits()
        self._held_tokens = hits.tokens()
        whole_tokens = max(0, request.prompt_tokens - 1)  # its last token is computed where it is answered
        arrived = Hits(
            np.full(len(snapshot.columns), float(whole_tokens)),
            handed_tokens=np.maximum(whole_tokens - self._held_tokens, 0.0),
        )
        eligible = np.zeros(len(snapshot.columns), np.bool_)
        eligible[list(rows)] = True
        # The token that a prefill yields comes with the prompt's last step; the answer is priced at the other.
        self._prompts = Pricing(msgspec.structs.replace(request, expected_output_tokens=0), snapshot, now).prices(
            eligible, hits
        )
        self._answers = Pricing(request, snapshot, now).prices(eligible, arrived)

    def prefill(self, row: int) -> Half:
        """The prompt, and no answer."""
        return Half(self._prompts.candidate(row, self._cached.claims(row)))

    def decode(self, row: int) -> Half:
        """The answer, after a prompt that has arrived."""
        return Half(self._answers.candidate(row, self._cached.claims(row)), int(self._held_tokens.item(row)))

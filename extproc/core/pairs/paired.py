"""Holds the best pair of instances against the best instance alone: the second half of a decision."""

from __future__ import annotations

from collections.abc import Collection, Set

import msgspec
import numpy as np

from extproc.core.admission.bounds import Bounds
from extproc.core.pairs.disaggregation import Pair
from extproc.core.pairs.hand_over import HandOver, names_who_answers
from extproc.core.pairs.pairing import Pairing, as_candidate
from extproc.core.pricing.near_tie import draw_near_tie
from extproc.core.snapshot import Policy, Snapshot
from extproc.core.values.decision import Decision, Reason, Rejection, Way
from extproc.core.values.request import Request


def paired(
    decision: Decision,
    request: Request,
    snapshot: Snapshot,
    now: float,
    draw: float,
    full: Set[str] = frozenset(),
    bounds: Bounds | None = None,
) -> Decision:
    """The decision, or the pair that costs less than its choice, or that stands where no instance alone can.

    `decision` is what `decide` found for the same arguments. Alternatives of a pair can take the prompt over from the
    same partner, since a retry carries the same headers; the best of what else was weighed is among its `others`.
    With `bounds` only pairs count that keep them.
    """
    if snapshot.policy.hand_over is HandOver.NONE:
        return decision
    pairing = Pairing(request, snapshot, now, full)
    alone = decision.chosen
    found = pairing.sound()
    pairs = found if bounds is None else [each for each in found if bounds.keeps(each.ttft_s, each.decode.tpot_s)]
    if alone is not None:
        limit_s = alone.cost.total_s if decision.waived is None else float("inf")
        return _with_pair(decision, pairs, pairing, snapshot.policy, draw) if _below(pairs, limit_s) else decision
    pairs = pairs or ([] if found else pairing.doubted())
    if pairs:
        return _with_pair(decision, pairs, pairing, snapshot.policy, draw)
    told = {each.instance_id: _told(each, pairing) for each in decision.rejected}
    if bounds is not None and found:
        beyond = bounds.broken(found[0].decode.instance.id, found[0].ttft_s, found[0].decode.tpot_s)
        told[beyond.instance_id] = beyond
    return msgspec.structs.replace(decision, rejected=tuple(told.values()))


def _below(pairs: list[Pair], limit_s: float) -> bool:
    return bool(pairs) and pairs[0].worth_s < limit_s


def _with_pair(decision: Decision, pairs: list[Pair], pairing: Pairing, policy: Policy, draw: float) -> Decision:
    pair = pairs[draw_near_tie(np.array([each.worth_s for each in pairs]), policy, draw)]
    number = 0 if names_who_answers(policy.hand_over) else policy.alternatives
    others = [each for each in pairs if each is not pair and each.prefill is pair.prefill][:number]
    involved = {pair.prefill.instance.id, *(each.decode.instance.id for each in (pair, *others))}
    # What a whole request would have failed there is no reason against a half; what the half itself fails is.
    rejected = [each for each in decision.rejected if each.instance_id not in involved]
    rejected += [pairing.missed[each] for each in sorted(involved) if each in pairing.missed]
    ranked = tuple(map(as_candidate, (pair, *others)))
    return Decision(ranked[0], ranked[1:], tuple(rejected), pair.prefill, _others(decision, pairs, (pair, *others)))


def _others(alone: Decision, pairs: list[Pair], named: Collection[Pair]) -> tuple[Way, ...]:
    """The best instance alone, unless it was only asked for want of a better one, and the best pair not yet named."""
    found = [] if alone.chosen is None or alone.waived is not None else [Way(alone.chosen)]
    other = next((each for each in pairs if all(each is not one for one in named)), None)
    if other is not None:
        found.append(Way(as_candidate(other), other.prefill))
    return tuple(found)


def _told(rejection: Rejection, pairing: Pairing) -> Rejection:
    """Why an instance that takes half a request could not take that half either, where that is known."""
    if rejection.reason is not Reason.ROLE_TAKES_HALF:
        return rejection
    return pairing.missed.get(rejection.instance_id, rejection)

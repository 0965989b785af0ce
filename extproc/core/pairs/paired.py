"""Holds the best pair of instances against the best instance alone: the second half of a decision."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set

import msgspec
import numpy as np

from extproc.core.admission.bounds import Bounds
from extproc.core.pairs.disaggregation import Pair
from extproc.core.pairs.hand_over import HandOver, names_who_answers
from extproc.core.pairs.left_out import LeftOut
from extproc.core.pairs.pairing import Pairing, as_candidate
from extproc.core.pricing.near_tie import draw_near_tie
from extproc.core.snapshot import Policy, Snapshot
from extproc.core.values.decision import Candidate, Decision, Way
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
    pairing, alone = Pairing(request, snapshot, now, full), decision.chosen
    found = pairing.sound()
    pairs = found if bounds is None else [each for each in found if bounds.keeps(each.ttft_s, each.decode.tpot_s)]
    if alone is None and not found:
        found = pairs = pairing.doubted()
    if pairs and pairs[0].worth_s < _limit_s(decision):
        decision = _with_pair(decision, pairs, pairing, snapshot.policy, draw)
    elif alone is not None:
        decision = msgspec.structs.replace(decision, others=_others(None, pairs, ()))
    elif bounds is not None and found:
        decision = _beyond(decision, found[0], bounds)
    left_out = LeftOut(pairing, found, pairs, bounds)
    return msgspec.structs.replace(decision, rejected=left_out.told(decision.rejected))


def _limit_s(alone: Decision) -> float:
    """What a pair may cost: any pair goes before an instance in doubt."""
    return float("inf") if alone.chosen is None or alone.waived is not None else alone.chosen.cost.total_s


def _with_pair(decision: Decision, pairs: list[Pair], pairing: Pairing, policy: Policy, draw: float) -> Decision:
    pair = pairs[draw_near_tie(np.array([each.worth_s for each in pairs]), policy, draw)]
    number = 0 if names_who_answers(policy.hand_over) else policy.alternatives
    others = [each for each in pairs if each is not pair and each.prefill is pair.prefill][:number]
    involved = {pair.prefill.instance.id, *(each.decode.instance.id for each in (pair, *others))}
    # What a whole request would have failed there is no reason against a half; what the half itself fails is.
    rejected = [each for each in decision.rejected if each.instance_id not in involved]
    rejected += [pairing.missed[each] for each in sorted(involved) if each in pairing.missed]
    ranked = tuple(map(as_candidate, (pair, *others)))
    alone = None if decision.waived is not None else decision.chosen  # in doubt it was asked for want of a better one
    return Decision(ranked[0], ranked[1:], tuple(rejected), pair.prefill, _others(alone, pairs, (pair, *others)))


def _others(alone: Candidate | None, pairs: Sequence[Pair], named: Collection[Pair]) -> tuple[Way, ...]:
    """The best instance alone, where that was not chosen, and the best pair that is not yet named."""
    found = [] if alone is None else [Way(alone)]
    other = next((each for each in pairs if all(each is not one for one in named)), None)
    if other is not None:
        found.append(Way(as_candidate(other), other.prefill))
    return tuple(found)


def _beyond(decision: Decision, nearest: Pair, bounds: Bounds) -> Decision:
    """With the bound that the cheapest pair breaks held against the one that would have answered."""
    beyond = bounds.broken(nearest.decode.instance.id, nearest.ttft_s, nearest.decode.tpot_s)
    rejected = {each.instance_id: each for each in decision.rejected} | {beyond.instance_id: beyond}
    return msgspec.structs.replace(decision, rejected=tuple(rejected.values()))

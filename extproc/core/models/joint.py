"""One choice of model and instance together: of all options the one whose best instance costs least, extras included.

The instance's cost knows queues and what is cached of the prompt under each model's name, so a model that is better or
cheaper on paper wins only while its instances are not that much busier, and a session stays where its prefix is for as
long as computing it anew would cost more than a change gains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np
import xxhash

from extproc.core.pricing.near_tie import near_ties
from extproc.core.snapshot import Policy
from extproc.core.values.decision import Decision, Reason
from extproc.core.values.option import Choice, Option

_MARK = "\x01"  # no header holds it
_APART = 977.0  # the digits of a draw that instances of one model have not used

_Decided = tuple[Option, Decision]


def choose_option(
    options: Sequence[Option], decide: Callable[[Option], Decision], policy: Policy, draw: float
) -> Choice:
    """Decide for each option and take the cheapest. `options` are at least one; `draw` in [0, 1) settles near-ties.

    One whose instance fails a constraint that was waived stands behind all that fulfil theirs, also those of a higher
    rank that it opens.
    """
    if len(options) == 1:  # of nearly all requests: the rest would find the same, in 4 µs
        return Choice(options[0], decide(options[0]))
    seen: list[_Decided] = []
    doubted: list[_Decided] = []
    for _, group in groupby(sorted(options, key=_rank), key=_rank):
        tried = [option for option in group if not seen or nearest_reason(seen) in option.opens_for]
        decided = [(option, decide(option)) for option in tried]
        seen += decided
        sound = [each for each in decided if each[1].chosen is not None and each[1].waived is None]
        if sound:
            return _choice(_cheapest(sound, policy, draw), seen)
        doubted = doubted or [each for each in decided if each[1].chosen is not None]
    if doubted:
        return _choice(_cheapest(doubted, policy, draw), seen)
    return _choice(max(seen, key=_nearness), seen)


def nearest_reason(decided: Sequence[_Decided]) -> Reason:
    """Of those that cannot serve, or only in doubt, the reason that stands nearest to success."""
    return _reason(max(decided, key=_nearness)[1])


def total_s(option: Option, decision: Decision) -> float:
    """What an option costs that can be served: its instance, and what choosing the model costs beside."""
    assert decision.chosen is not None
    return decision.chosen.cost.total_s + option.extra_s


def _reason(decision: Decision) -> Reason:
    return decision.waived or decision.reason or Reason.NO_INSTANCE


def _nearness(decided: _Decided) -> float:
    return decided[1].nearness


def _rank(option: Option) -> int:
    return option.rank


def _choice(taken: _Decided, seen: Sequence[_Decided]) -> Choice:
    return Choice(*taken, tuple([each for each in seen if each is not taken]))


def _cheapest(decided: Sequence[_Decided], policy: Policy, draw: float) -> _Decided:
    """The cheapest, or one that the prediction cannot tell from it.

    Among those a session is always drawn for the same model: at random its turns would go to and fro.
    """
    if len(decided) == 1:
        return decided[0]
    ranked = sorted(decided, key=lambda each: total_s(*each))
    ties = ranked[: near_ties(np.array([total_s(*each) for each in ranked]), policy)]
    session = ranked[0][0].request.session
    if session:
        return max(ties, key=lambda each: _height(session, each[0].request.model))
    return ties[int(draw * _APART % 1.0 * len(ties))]


def _height(session: str, model: str) -> int:
    return xxhash.xxh3_64_intdigest(f"{session_mark(session)}\0{model}".encode("utf-8", "replace"))


def session_mark(session: str) -> str:
    """What tells a session from others and nothing of what clients call it; "" of none, and of a mark itself."""
    if not session or session.startswith(_MARK):
        return session
    return _MARK + xxhash.xxh3_128_hexdigest(session.encode("utf-8", "replace"))

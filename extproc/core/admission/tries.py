"""What a try says that let nobody in: whether it is worth waiting, what for, and how long; or how it ends.

Times are in seconds.
"""

from __future__ import annotations

from extproc.core.admission.passing import may_pass
from extproc.core.admission.turns import Turn
from extproc.core.admission.waiting_room import Entry
from extproc.core.values.decision import Decision, Reason, Rejection
from extproc.core.values.option import Choice

_SOONEST_S, _LATEST_S = 0.005, 0.1  # until the heads are tried again though nothing is heard to have changed


def turned_down(entry: Entry, why: Rejection, stuck: Decision | None) -> Turn:
    """Shed, for what the router says; what stood against each instance says when it may come again."""
    rejected = (entry.decision if stuck is None else stuck).rejected
    decision = Decision(None, (), (*rejected, why))
    option, *others = entry.options
    return Turn(entry.request_id, Choice(option, decision, tuple([(each, decision) for each in others])))


def may_wait(choice: Choice) -> bool:
    """Whether anything that nobody could take now may be taken later (`passing.may_pass`), by any of its models."""
    return any(may_pass(decision) for _, decision in choice.decided)


def is_elsewhere(choice: Choice) -> bool:
    """Whether there is room, but not where its prefix is."""
    return any(each.reason is Reason.PREFIX_ELSEWHERE for _, decision in choice.decided for each in decision.rejected)


def again_in_s(decision: Decision) -> float:
    """Seconds until it is worth trying again: a first token that is late by so much is in time so much later."""
    late_s = [
        float(each.needs) - float(each.has)
        for each in decision.rejected
        if each.reason is Reason.TTFT_BEYOND_BOUND and isinstance(each.needs, float) and isinstance(each.has, float)
    ]
    return min(_LATEST_S, max(_SOONEST_S, min(late_s, default=_LATEST_S)))

"""Why a pool should have what it should: what each signal would have, which one decided, and what without it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from extproc.core.scaling.drivers import Call, Context
from extproc.core.scaling.group import Plan
from extproc.core.scaling.hardware import Offer, carries, choose
from extproc.core.scaling.recommendation import Driver, Signal

_FREE = 4  # times the upper bound, so far is told what would be desired without it


def explained(place: int, plan: Plan, offers: Sequence[Offer], context: Context) -> tuple[tuple[Driver, ...], int]:
    """(words of all signals about one of a group's pools, the deciding one first; the count without that one).

    Of all signals only the one that needs the most decides. Of two kinds of hardware another one alone may have more of
    this pool, and fewer of the other.
    """
    desired, offer = plan.counts[place], offers[place]
    said = [
        Driver(call.signal, _alone(place, call.need, plan, offers), call.why + _new(call, plan)) for call in plan.made
    ]
    beside = _beside(place, plan, offers)
    every = sorted(said + beside, key=lambda each: -each.instances)
    most, enough = (said[0].instances if said else 0), _called(place, plan.need, plan, offers)
    if context.idle and not desired:
        quiet = f"no request for {context.quiet_s:.0f} s" if math.isfinite(context.quiet_s) else "no request yet"
        return (Driver(Signal.IDLE, 0, f"{quiet}, of {context.idle_s:.0f} s"), *every), 1
    if most > desired:
        why = f"at most {offer.most} by the operator's rules, of {most} that are called for"
        return (Driver(Signal.MOST, desired, why), *every), most
    if desired > enough:
        return (Driver(Signal.DWELL, desired, _held(place, plan, offers, enough)), *every), enough
    if most < desired == offer.least:  # no signal calls for it
        decided, without = [each for each in beside if each.signal is Signal.LEAST], most
    else:
        need = min(plan.need, max((call.need for call in plan.made[1:]), default=0.0))  # as far as it lasts
        decided, without = said[:1], choose(need, offers, plan.counts)[place]
    return (*decided, *(each for each in every if each not in decided)), without


def _called(place: int, need: float, plan: Plan, offers: Sequence[Offer]) -> int:
    """How many of a pool's instances a need calls for by all rules, of those that are had."""
    return min(choose(need, offers, plan.counts)[place], plan.counts[place])


def _alone(place: int, need: float, plan: Plan, offers: Sequence[Offer]) -> int:
    """What one need would have of a pool, the operator's least apart; beyond the most where all is not enough."""
    free = [replace(each, least=0, spare=each.spare if need > 0.0 else 0) for each in offers]
    if carries(plan.counts, plan.need, offers):
        return _called(place, need, plan, free)
    more = [replace(each, most=_FREE * max(1, each.most)) for each in free]
    return max(choose(need, by, plan.counts)[place] for by in (free, more))


def _beside(place: int, plan: Plan, offers: Sequence[Offer]) -> list[Driver]:
    """What stands beside the signals: what may fail, which is in the numbers of all, and the operator's least."""
    said = []
    spare = max(each.spare for each in offers)
    if spare and plan.need > 0.0:
        bare = [replace(each, spare=0) for each in offers]
        beside = max(0, _alone(place, plan.need, plan, offers) - _alone(place, plan.need, plan, bare))
        said.append(Driver(Signal.SPARE, beside, f"{spare} may fail without a loss, whatever else calls for instances"))
    if least := offers[place].least:
        said.append(Driver(Signal.LEAST, least, f"at least {least} by the operator's rules"))
    return said


def _new(call: Call, plan: Plan) -> str:
    """Why fewer are had than a signal's words let expect: it is counted as far as it lasts."""
    return f"; {call.need:.2f} not for long enough yet" if call.need > plan.need else ""


def _held(place: int, plan: Plan, offers: Sequence[Offer], most: int) -> str:
    """Why more are kept than are called for."""
    enough = f"{most} would be enough now"
    if math.isinf(plan.keep):
        return f"{enough}, which has not been seen for {plan.wait_s:.0f} s yet"
    if choose(plan.keep, offers, plan.counts)[place] >= plan.counts[place]:
        return (
            f"{enough}, {plan.keep:.2f} were within {plan.wait_s:.0f} s, or may be until one that leaves could be back"
        )
    return f"{enough}, {plan.keep:.2f} for a while: they leave step by step, as far as those Ready carry what comes"

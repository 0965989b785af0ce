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
    """(words of all signals about one of a group's pools, the deciding one first; the count without that one)."""
    said = _said(place, plan, offers)
    desired, offer = plan.counts[place], offers[place]
    most = said[0].instances if said else 0
    if context.idle and not desired:
        quiet = f"no request for {context.quiet_s:.0f} s" if math.isfinite(context.quiet_s) else "no request yet"
        return (Driver(Signal.IDLE, 0, f"{quiet}, of {context.idle_s:.0f} s"), *said), 1
    if most > desired:
        why = f"at most {offer.most} by the operator's rules, of {most} that are called for"
        return (Driver(Signal.MOST, desired, why), *said), most
    if desired > most:
        return (Driver(Signal.DWELL, desired, _held(place, plan, offers, most)), *said), most
    return tuple(said), max((each.instances for each in said[1:]), default=0)


def _said(place: int, plan: Plan, offers: Sequence[Offer]) -> list[Driver]:
    """What each signal would have of a pool, the operator's least apart; the most first.

    What may fail stands beside whatever is called for, so it is in the numbers of all others, and decides nothing.
    """
    enough = carries(plan.counts, plan.need, offers)
    spared = [replace(each, least=0, most=each.most if enough else _FREE * max(1, each.most)) for each in offers]
    bare = [replace(each, spare=0) for each in spared]

    def count(need: float, by: Sequence[Offer]) -> int:
        counted = choose(need, by, plan.counts)[place]
        return min(counted, plan.counts[place]) if enough else counted

    said = [
        Driver(call.signal, count(call.need, spared if call.need > 0.0 else bare), call.why + _new(call, plan))
        for call in plan.made
    ]
    spare = max(each.spare for each in offers)
    if spare and plan.need > 0.0:
        beside = max(0, count(plan.need, spared) - count(plan.need, bare))
        said.append(Driver(Signal.SPARE, beside, f"{spare} may fail without a loss, whatever else calls for instances"))
    if least := offers[place].least:
        said.append(Driver(Signal.LEAST, least, f"at least {least} by the operator's rules"))
    return sorted(said, key=lambda each: -each.instances)


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

"""Why a pool should have what it should: what each signal would have, which one decided, and what without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from extproc.core.scaling.drivers import Context
from extproc.core.scaling.group import Plan
from extproc.core.scaling.hardware import Counts, Offer, carries, choose
from extproc.core.scaling.recommendation import Driver, Signal

_FREE = 4  # times the upper bound, so far is told what would be desired without it


def explained(place: int, plan: Plan, offers: Sequence[Offer], context: Context) -> tuple[tuple[Driver, ...], int]:
    """(words of all signals about one of a group's pools, the deciding one first; the count without that one)."""
    bare = [replace(offer, least=0, spare=0, most=max(_FREE * offer.most, offer.most + 1)) for offer in offers]
    nothing: Counts = tuple(0 for _ in offers)

    def count(need: float, by: Sequence[Offer]) -> int:
        return choose(need, by, plan.counts if carries(plan.counts, need, by) or len(by) > 1 else nothing)[place]

    desired, offer = plan.counts[place], offers[place]
    said = [Driver(call.signal, count(call.need, bare), call.why) for call in plan.made]
    spared = [replace(each, spare=given.spare) for each, given in zip(bare, offers, strict=True)]
    if any(each.spare for each in offers) and plan.need > 0.0:
        spare = max(each.spare for each in offers)
        said.append(Driver(Signal.SPARE, count(plan.need, spared), f"{spare} may fail without a loss"))
    if offer.least:
        said.append(Driver(Signal.LEAST, offer.least, f"at least {offer.least} by the operator's rules"))
    said.sort(key=lambda each: -each.instances)
    most = said[0].instances if said else 0
    if context.idle and not said:
        quiet = f"no request for {context.quiet_s:.0f} s of {context.idle_s:.0f} s"
        said.insert(0, Driver(Signal.IDLE, 0, quiet))
        return tuple(said), desired if desired else 1
    if most > desired:
        first = Driver(
            Signal.MOST, desired, f"at most {offer.most} by the operator's rules, of {most} that are called for"
        )
        return (first, *said), most
    if desired > most:
        why = (
            f"{most} would be enough now, {plan.keep:.2f} were needed in the last {plan.wait_s:.0f} s,"
            " or may be until one that leaves could be back"
        )
        return (Driver(Signal.DWELL, desired, why), *said), most
    rest = [each.instances for each in said[1:]]
    return tuple(said), max(rest, default=0)

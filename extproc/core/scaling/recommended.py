"""One pool's recommendation, put together: the count that was planned, why, what it rests on, and who is to leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from extproc.core.scaling.demand import Demand
from extproc.core.scaling.drivers import Context
from extproc.core.scaling.explained import explained
from extproc.core.scaling.group import GroupMemory, Plan, Staff
from extproc.core.scaling.hardware import Offer
from extproc.core.scaling.leaving import orders
from extproc.core.scaling.pools import Group
from extproc.core.scaling.recommendation import Measured, Recommendation
from extproc.core.scaling.rules import ScalingRules
from extproc.core.scaling.seen import STUCK_COLD_STARTS, Seen
from extproc.core.scaling.sight import Sight

_GRACE_TICKS = 2.0


def recommended(
    place: int,
    group: Group,
    seen: Seen,
    planned: Plan,
    given: Sequence[Offer],
    context: Context,
    memory: GroupMemory,
    sight: Sight,
    measured: Measured,
    rules: ScalingRules,
) -> Recommendation:
    """What to recommend for the group's pool at `place`; who was told to leave is noted in `memory`."""
    desired, here = planned.counts[place], seen.staffs[place]
    made = orders(
        seen.instances[place],
        desired,
        warm_tokens=sight.warm_tokens,
        ours=memory.told,
        draining_since_s=memory.draining_since_s,
        at_s=sight.at_s,
        drain_s=rules.drain_s,
        grace_s=_GRACE_TICKS * rules.tick_s,
        stuck=here.stuck,
        shaken=len(here.shaken),
        broken_since_s=memory.broken_since_s,
        patience_s=max(rules.drain_s, STUCK_COLD_STARTS * seen.starts_s[place]),
    )
    _tell(memory, here, made.drain, sight.at_s)
    drivers, without = explained(place, planned, given, context)
    forecast = context.forecast
    return Recommendation(
        pool=group.pools[place].name,
        at_s=sight.at_s,
        desired=desired,
        ready=here.counted,
        coming=len(here.coming),
        leaving=len(here.draining),
        broken=here.broken,
        most=group.pools[place].most,
        drivers=drivers,
        without=without,
        forecast=forecast.times(1.0 / given[place].capacity) if forecast else None,
        measured=measured,
        drain=made.drain,
        resume=made.resume,
        stop=made.stop,
    )


def measured_of(demand: Demand | None, context: Context) -> Measured:
    """What was counted and read for all that follows."""
    told = Measured(waiting=context.waiting, kv_usage=context.kv_usage, cold_start_s=context.cold_start_s)
    if demand is None:
        return told
    requests_s = demand.requests_s
    return replace(
        told,
        requests_s=requests_s,
        prompt_tokens_s=requests_s * demand.prompt_tokens,
        uncached_tokens_s=requests_s * (demand.prompt_tokens - demand.cached_tokens),
        output_tokens_s=requests_s * demand.output_tokens,
        judged=demand.judged,
        bad_share=demand.bad_share,
    )


def _tell(memory: GroupMemory, here: Staff, drain: Sequence[str], at_s: float) -> None:
    for each in here.ready:
        if each.id in drain:
            memory.told.setdefault(each.key, at_s)
        else:  # it is kept after all, or was resumed
            memory.told.pop(each.key, None)

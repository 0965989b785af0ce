"""The autoscaler: from one sight of a fleet after another to how many instances each pool should have, and why."""

from __future__ import annotations

import math

import msgspec

from extproc.core.pricing.classes import ClassPolicy
from extproc.core.scaling.behaviour import SURE, held_s
from extproc.core.scaling.capacity import long_context, tightest
from extproc.core.scaling.correction import Correction, Met
from extproc.core.scaling.counting import Counting
from extproc.core.scaling.demand import Demand
from extproc.core.scaling.drivers import Context
from extproc.core.scaling.forecast import Forecaster
from extproc.core.scaling.group import GroupMemory, offers, plan
from extproc.core.scaling.halves import half_of, limits_of_half
from extproc.core.scaling.history import grid
from extproc.core.scaling.loads import Loads, calm, loads, risen, without_chance
from extproc.core.scaling.pools import Group, groups, names, placed
from extproc.core.scaling.recommendation import Forecast, Recommendation
from extproc.core.scaling.recommended import measured_of, recommended
from extproc.core.scaling.rules import ScalingRules
from extproc.core.scaling.seen import Seen, note, see
from extproc.core.scaling.sight import Sight
from extproc.core.scaling.starts import cold_start_s
from extproc.errors import UNREADABLE

_VERSION = 1
_PERIOD_REGRETS = 48.0  # a step down is regretted within this part of a period: half an hour of a day
_SHAKEN_TICKS = 3.0  # looks for which one that is Unhealthy is not missed yet
_LATEST_S = 10.0  # window of the rate in which a burst is seen
_NOBODY = Demand(requests_s=0.0, prompt_tokens=1000.0, cached_tokens=0.0, output_tokens=200.0, covers_s=1.0)


class _Memory(msgspec.Struct, kw_only=True):
    version: int
    groups: dict[str, GroupMemory]
    forecasts: dict[str, bytes]
    correction: bytes


class Scaler:
    """Looks at a fleet every `rules.tick_s` or so. One that takes over goes on from what the last one has dumped.

    One for a `glance` tells what its last look calls for, and does not wait whether that lasts: nothing comes of it.
    """

    def __init__(self, rules: ScalingRules, classes: ClassPolicy, *, glance: bool = False) -> None:
        self._rules, self._glance = rules, glance
        self._step_s = grid(rules.period_s).step_s  # of which forecasts are made
        self._slo, self._long = tightest(classes), long_context(classes)
        self._counting = Counting()
        self._correction = Correction()
        self._memory: dict[str, GroupMemory] = {}
        self._forecasters: dict[str, Forecaster] = {}
        self._filled: dict[str, Loads] = {}  # by the last look: where the next one begins to search

    def use(self, rules: ScalingRules, classes: ClassPolicy) -> None:
        """Go by other rules from the next look on. What was seen stays, but forecasts for another period begin anew."""
        if rules.period_s != self._rules.period_s:
            self._forecasters.clear()
        self._rules, self._slo, self._long = rules, tightest(classes), long_context(classes)
        self._step_s = grid(rules.period_s).step_s
        self._filled.clear()  # of a group whose pools may be others now

    def look(self, sight: Sight) -> tuple[Recommendation, ...]:
        """What to recommend now, one a pool. `sight.at_s` must not go back."""
        counted = self._counting.take(sight, self._rules.tick_s)
        all_groups = groups(self._rules, sight.instances)
        members = placed([pool for group in all_groups for pool in group.pools], sight.instances)
        made: list[Recommendation] = []
        shaken_s = _SHAKEN_TICKS * self._rules.tick_s
        for group, models in zip(all_groups, names(all_groups, sight.instances), strict=True):
            name = group.pools[0].name  # loads are in its instances; others may come and go
            memory = self._memory.setdefault(name, GroupMemory())
            if sight.stepped_s:
                memory.set_forward(sight.stepped_s)
            starts_s = [cold_start_s(sight.starts_s.get(pool.name, ()), pool.start_s) for pool in group.pools]
            seen = see(group, [members[pool.name] for pool in group.pools], starts_s, sight, memory, models, shaken_s)
            made.extend(self._look(group, name, models, seen, sight, memory, counted))
        return tuple(made)

    def dump(self) -> bytes:
        """All that is remembered, for who comes after."""
        forecasts = {name: each.dump() for name, each in self._forecasters.items()}
        memory = _Memory(version=_VERSION, groups=self._memory, forecasts=forecasts, correction=self._correction.dump())
        return msgspec.msgpack.encode(memory)

    def load(self, data: bytes, at_s: float) -> None:
        """Go on from a dump; one of another version, or that cannot be read, is left alone.

        `at_s` is now. Where who has dumped it had a clock that is ahead, times are taken to be as much sooner: what is
        to come would have it seem for so long that nothing has been needed yet.
        """
        correction = Correction()
        try:
            memory = msgspec.msgpack.decode(data, type=_Memory)
            correction.load(memory.correction)
        except UNREADABLE:
            return
        if memory.version != _VERSION:
            return
        correction.not_after(at_s)
        for each in memory.groups.values():
            each.not_after(at_s)
        self._memory, self._correction = memory.groups, correction
        for name, dumped in memory.forecasts.items():
            self._forecasters[name] = Forecaster(self._rules.period_s)
            self._forecasters[name].load(dumped, at_s)

    def _look(
        self,
        group: Group,
        name: str,
        models: frozenset[str],
        seen: Seen,
        sight: Sight,
        memory: GroupMemory,
        counted: bool,
    ) -> list[Recommendation]:
        rates = self._counting.rates
        whole, latest = rates.demand(models), rates.rate(models, _LATEST_S)
        asked = half_of(group.role, whole or _NOBODY)
        slo, long = limits_of_half(group.role, self._slo), limits_of_half(group.role, self._long)
        usual = asked if whole else None
        demand = risen(asked, latest) if whole and latest else asked
        last = self._filled.get(name)
        filled = loads(group.pools, seen.instances, sight.speeds, demand, slo, self._correction, last, long=long)
        self._filled[name] = filled
        note(memory, group, seen, sight, filled.load)
        if sight.routers == 0 and any(seen.instances):  # somebody may have asked: idle is counted from when we see
            memory.asked_at_s = sight.at_s
        ready = sum(size * len(each.ready) for size, each in zip(filled.sizes, seen.staffs, strict=True))
        if usual:
            self._learn(group, seen, sight.at_s, usual, filled, ready)
        if name not in self._forecasters:
            self._forecasters[name] = Forecaster(self._rules.period_s)
        forecaster = self._forecasters[name]
        between = rates.rate(models, 0.0)
        if counted and between and demand.requests_s > 0.0:
            share = between.requests_s / demand.requests_s
            forecaster.add(self._counting.counted_at_s, filled.computed * share, between.covers_s)
        elif counted and between:
            forecaster.add(self._counting.counted_at_s, 0.0, between.covers_s)
        return self._decide(group, forecaster, seen, demand if usual else None, filled, sight, memory)

    def _learn(self, group: Group, seen: Seen, at_s: float, demand: Demand, filled: Loads, ready: float) -> None:
        """How answers did at this load tells what of the computed capacity is true."""
        per_instance = filled.load / ready if ready > 0.0 else math.inf if filled.load > 0.0 else 0.0
        for pool, of_pool in zip(group.pools, seen.staffs, strict=True):
            factor = self._correction.factor(pool.name)
            met = Met(
                used=per_instance * factor,
                instances=len(of_pool.ready),
                judged=demand.judged,
                bad_share=demand.bad_share or 0.0,
                judged_s=demand.judged_s,
            )
            self._correction.learn(pool.name, at_s, met)

    def _decide(
        self,
        group: Group,
        forecaster: Forecaster,
        seen: Seen,
        demand: Demand | None,
        filled: Loads,
        sight: Sight,
        memory: GroupMemory,
    ) -> list[Recommendation]:
        rules, pools = self._rules, group.pools
        dwell_s, start_s = max(pool.dwell_s for pool in pools), max(seen.starts_s)
        back_s = start_s + held_s(dwell_s, start_s)  # until one that leaves now could be back

        def ahead(horizon_s: float, quantile: float) -> Forecast:
            made = forecaster.forecast(sight.at_s, horizon_s, quantile).times(1.0 / filled.factor)
            return without_chance(made, filled, demand, self._step_s, quantile) if demand else made

        soon = ahead(start_s, rules.quantile)
        context = Context(
            load=calm(filled, demand, soon.now) if demand else 0.0,
            busiest=rules.busiest,
            cold_start_s=start_s,
            ready=sum(size * each.counted for size, each in zip(filled.sizes, seen.staffs, strict=True)),
            coming=tuple(sorted((in_s, filled.sizes[place]) for place, in_s in seen.coming)),
            forecast=soon if forecaster.knows else None,  # what is not known is not zero
            waiting=seen.waiting,
            capacity_rps=filled.capacity_rps if demand else None,
            throughput=filled.throughput,
            ttft_s=self._slo.ttft_s if self._slo.ttft_s is not None else rules.tick_s,
            kv_usage=seen.kv_usage,
            judged=demand.judged if demand else 0.0,
            judged_s=demand.judged_s if demand else 0.0,
            bad_share=(demand.bad_share or 0.0) if demand else 0.0,
            settled_s=sight.at_s - memory.unsettled_at_s,
            asked=seen.asked,
            quiet_s=sight.at_s - memory.asked_at_s if memory.asked_at_s is not None else math.inf,
            idle_s=max(pool.idle_s for pool in pools),
        )
        measured = measured_of(demand, context)
        given = offers(pools, filled.sizes, seen.starts_s, memory.prices)
        planned = plan(
            context,
            given,
            tuple(memory.targets[pool.name] for pool in pools),
            tuple(len(each.ready) for each in seen.staffs),
            memory.behaviour,
            at_s=sight.at_s,
            dwell_s=dwell_s,
            regret_s=max(start_s + 2.0 * dwell_s, rules.period_s / _PERIOD_REGRETS),
            blind=demand is None and self._counting.began_anew,
            glance=self._glance,
            later=math.inf if demand is None else ahead(back_s, rules.quantile).planned / rules.busiest,
            surely=math.inf if demand is None else ahead(back_s, max(SURE, rules.quantile)).planned / rules.busiest,
        )
        memory.targets.update({pool.name: count for pool, count in zip(pools, planned.counts, strict=True)})
        return [
            recommended(place, group, seen, planned, given, context, memory, sight, measured, rules)
            for place in range(len(pools))
        ]

"""The autoscaler: from one sight of a fleet after another to how many instances each pool should have, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from extproc.core.pricing.classes import ClassPolicy
from extproc.core.scaling.behaviour import SURE
from extproc.core.scaling.drivers import Context
from extproc.core.scaling.early import Demand, Forecaster, Rates, capacity_rps, cold_start_s, groups, members
from extproc.core.scaling.explained import explained
from extproc.core.scaling.group import GroupMemory, Plan, Staff, forget, offers, plan, staff
from extproc.core.scaling.hardware import Offer
from extproc.core.scaling.leaving import orders
from extproc.core.scaling.recommendation import Forecast, Recommendation
from extproc.core.scaling.rules import PoolRules, ScalingRules
from extproc.core.scaling.sight import Sight
from extproc.core.values.instance import Instance

_VERSION = 1
_PERIOD_REGRETS = 48.0  # a step down is regretted within this part of a period: half an hour of a day
_GRACE_TICKS = 2.0


class _Memory(msgspec.Struct, kw_only=True):
    version: int
    groups: dict[str, GroupMemory]
    forecasts: dict[str, bytes]


class Scaler:
    """Looks at a fleet every `rules.tick_s` or so. One that took over goes on from what the last one has dumped."""

    def __init__(self, rules: ScalingRules, classes: ClassPolicy) -> None:
        self._rules = rules
        self._classes = classes
        self._rates = Rates()
        self._memory: dict[str, GroupMemory] = {}
        self._forecasters: dict[str, Forecaster] = {}
        self._ttft_s = min(
            (each.slo.ttft_s for each in classes.classes.values() if each.slo.ttft_s is not None), default=2.0
        )
        self._looked_at_s: float | None = None

    def look(self, sight: Sight) -> tuple[Recommendation, ...]:
        """What to recommend now, one a pool. `sight.at_s` must not go back."""
        covers_s = sight.at_s - self._looked_at_s if self._looked_at_s is not None else 0.0
        made = [each for pools in groups(self._rules) for each in self._look(pools, sight, covers_s)]
        self._looked_at_s = sight.at_s
        return tuple(made)

    def dump(self) -> bytes:
        """All that is remembered, for who comes after."""
        forecasts = {name: each.dump() for name, each in self._forecasters.items()}
        return msgspec.msgpack.encode(_Memory(version=_VERSION, groups=self._memory, forecasts=forecasts))

    def load(self, data: bytes, at_s: float) -> None:
        """Go on from a dump; one of another version, or that cannot be read, is left alone."""
        try:
            memory = msgspec.msgpack.decode(data, type=_Memory)
        except msgspec.DecodeError:
            return
        if memory.version != _VERSION:
            return
        self._memory = memory.groups
        for name, dumped in memory.forecasts.items():
            self._forecasters[name] = Forecaster(self._rules.period_s)
            self._forecasters[name].load(dumped, at_s)

    def _look(self, pools: Sequence[PoolRules], sight: Sight, covers_s: float) -> list[Recommendation]:
        name = "+".join(pool.name for pool in pools)
        memory = self._memory.setdefault(name, GroupMemory())
        forecaster = self._forecasters.setdefault(name, Forecaster(self._rules.period_s))
        instances = [members(pool, sight.instances) for pool in pools]
        starts_s = [cold_start_s(sight.starts_s.get(pool.name, ()), pool.start_s) for pool in pools]
        forget(memory, [each for of_pool in instances for each in of_pool])
        staffs = [staff(each, memory, start_s, sight.at_s) for each, start_s in zip(instances, starts_s, strict=True)]
        demand = self._rates.demand(pools[0].models, sight)
        rates = [capacity_rps(pool, sight.speeds.get(pool.name), demand, self._classes) for pool in pools]
        sizes = [rate / rates[0] for rate in rates]
        load = demand.requests_s / rates[0]
        if covers_s > 0.0:
            forecaster.add(sight.at_s, load, covers_s)
        _note(memory, pools, instances, sight)
        dwell_s = max(pool.dwell_s for pool in pools)
        start_s = max(starts_s)
        ahead = forecaster.forecast(sight.at_s, start_s, self._rules.quantile)
        later, surely = (
            forecaster.forecast(sight.at_s, start_s + dwell_s, quantile).planned / self._rules.busiest
            for quantile in (self._rules.quantile, max(SURE, self._rules.quantile))
        )
        context = self._context(pools, staffs, sizes, starts_s, demand, sight, memory)
        context = replace(context, load=load, forecast=ahead, capacity_rps=rates[0] if demand.requests_s else None)
        given = offers(pools, sizes, starts_s, memory.prices)
        for pool, each in zip(pools, staffs, strict=True):
            memory.targets.setdefault(pool.name, len(each.ready) + len(each.coming))
        planned = plan(
            context,
            given,
            tuple(memory.targets[pool.name] for pool in pools),
            tuple(len(each.ready) for each in staffs),
            memory.behaviour,
            at_s=sight.at_s,
            dwell_s=dwell_s,
            regret_s=max(start_s + 2.0 * dwell_s, self._rules.period_s / _PERIOD_REGRETS),
            later=later,
            surely=surely,
        )
        memory.targets.update({pool.name: count for pool, count in zip(pools, planned.counts, strict=True)})
        return [
            self._recommend(place, pools, instances[place], staffs[place], planned, given, context, memory, sight)
            for place in range(len(pools))
        ]

    def _context(
        self,
        pools: Sequence[PoolRules],
        staffs: Sequence[Staff],
        sizes: Sequence[float],
        starts_s: Sequence[float],
        demand: Demand,
        sight: Sight,
        memory: GroupMemory,
    ) -> Context:
        models = _models(pools, [each for of_pool in staffs for each in of_pool.ready])
        held = sum(count for model, count in sight.held.items() if model in models)
        ready = [each for of_pool in staffs for each in of_pool.ready]
        usages = [each.load.kv_usage for each in ready if each.load.kv_usage is not None]
        coming = [
            (_ready_in_s(each, memory, start_s, sight.at_s), size)
            for of_pool, size, start_s in zip(staffs, sizes, starts_s, strict=True)
            for each in of_pool.coming
        ]
        quiet_s = sight.at_s - memory.asked_at_s if memory.asked_at_s is not None else math.inf
        wished = bool(models & sight.wanted) or held > 0 or quiet_s <= self._rules.tick_s
        return Context(
            load=0.0,
            busiest=self._rules.busiest,
            cold_start_s=max(starts_s),
            ready=sum(size * len(of_pool.ready) for of_pool, size in zip(staffs, sizes, strict=True)),
            coming=tuple(sorted(coming)),
            waiting=held + sum(each.load.waiting or 0 for each in ready),
            ttft_s=self._ttft_s,
            kv_usage=sum(usages) / len(usages) if usages else None,
            judged=demand.judged,
            late=demand.late,
            asked=wished and not ready,
            quiet_s=quiet_s,
            idle_s=max(pool.idle_s for pool in pools),
        )

    def _recommend(
        self,
        place: int,
        pools: Sequence[PoolRules],
        instances: Sequence[Instance],
        here: Staff,
        planned: Plan,
        given: Sequence[Offer],
        context: Context,
        memory: GroupMemory,
        sight: Sight,
    ) -> Recommendation:
        desired = planned.counts[place]
        made = orders(
            instances,
            desired,
            warm_tokens=sight.warm_tokens,
            ours=memory.told,
            draining_since_s=memory.draining_since_s,
            at_s=sight.at_s,
            drain_s=self._rules.drain_s,
            grace_s=_GRACE_TICKS * self._rules.tick_s,
            stuck=here.stuck,
        )
        keys = {each.id: each.key for each in instances}
        for gone in made.drain:
            memory.told.setdefault(keys[gone], sight.at_s)
        drivers, without = explained(place, planned, given, context)
        return Recommendation(
            pool=pools[place].name,
            at_s=sight.at_s,
            desired=desired,
            ready=len(here.ready),
            coming=len(here.coming),
            leaving=len(here.draining),
            drivers=drivers,
            without=without,
            forecast=_in_own(context.forecast, given[place].capacity),
            drain=made.drain,
            resume=made.resume,
            stop=made.stop,
        )


def _note(
    memory: GroupMemory, pools: Sequence[PoolRules], instances: Sequence[Sequence[Instance]], sight: Sight
) -> None:
    """Remember when somebody asked last, and what instances cost."""
    everyone = [each for of_pool in instances for each in of_pool]
    models = _models(pools, everyone)
    requests = sum(counts.requests for model, counts in sight.counts.items() if model in models)
    held = any(count for model, count in sight.held.items() if model in models)
    busy = any(each.load.running or each.load.waiting for each in everyone)
    if memory.asked_at_s is None or requests > memory.requests or held or busy or models & sight.wanted:
        memory.asked_at_s = sight.at_s
    memory.requests = requests
    for pool, of_pool in zip(pools, instances, strict=True):
        told = [each.price_per_hour for each in of_pool if each.price_per_hour is not None]
        if told:
            memory.prices[pool.name] = sum(told) / len(told)


def _models(pools: Sequence[PoolRules], instances: Sequence[Instance]) -> frozenset[str]:
    """Names that requests for the group may bear: its models, and adapters of them."""
    return frozenset(pools[0].models).union(*(each.loras for each in instances))


def _ready_in_s(each: Instance, memory: GroupMemory, start_s: float, at_s: float) -> float:
    if each.ready_in_s is not None:
        return max(0.0, each.ready_in_s)
    return max(0.0, memory.coming_since_s[each.key] + start_s - at_s)


def _in_own(forecast: Forecast | None, size: float) -> Forecast | None:
    """The same in instances of a pool that has `size` times the capacity of the group's first."""
    if forecast is None or size == 1.0:
        return forecast
    return replace(
        forecast, now=forecast.now / size, expected=forecast.expected / size, planned=forecast.planned / size
    )

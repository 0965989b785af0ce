"""Gathers what the autoscaler sees: the fleet, routers' counts, load intents, learned speeds, starts, warm prefixes.

What changes slowly is read now and then.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from extproc.adapters.intents import Intents
from extproc.adapters.prefix_memory import PrefixMemory
from extproc.adapters.profile_memory import ProfileMemory
from extproc.adapters.registry import Registry
from extproc.adapters.slices import in_slices
from extproc.adapters.some_at_once import for_each
from extproc.adapters.start_memory import StartMemory
from extproc.adapters.traffic_counts import TrafficCounts
from extproc.core.fleet.fleet import Fleet
from extproc.core.prefixes.prefix_chain import BLOCK_BYTES
from extproc.core.scaling.pools import groups, own_models, placed
from extproc.core.scaling.rules import PoolRules, ScalingRules
from extproc.core.scaling.seen import STUCK_COLD_STARTS
from extproc.core.scaling.sight import Sight
from extproc.core.speeds.speed_records import KindRecord
from extproc.core.speeds.speeds_told import by_kind, merge_kind
from extproc.core.values.instance import COMING, Instance, Lifecycle
from extproc.scaling_service.acting import launched
from extproc.scaling_service.journal import Journal, after_look, durations_s, set_forward
from extproc.scaling_service.learned_speeds import speeds_of

_SLOWLY_S = 30.0  # between two reads of what changes slowly
_REMEMBER_S = 30 * 86_400.0  # how long ago a model may have been served last whose starts still tell something
_BLOCK_TOKENS = BLOCK_BYTES // 4  # of English
_STEP_S = 5.0  # by which the time of day is more than what has passed, from which on the clock was set forward
_UNSEEN_TICKS = 3.0  # between two looks that saw anything: what was longer is not known to have been seen
_WARM_BUDGET_S = 2.0  # for what routers know of instances' prefixes, which takes several round trips for each
_SLOWER = 0.9  # pace of our time after the clock was set back, until it has come so far again

log = logging.getLogger("extproc.autoscale")


@dataclass(frozen=True, slots=True)
class Seen:
    """One look, with what is needed to act on it."""

    sight: Sight
    pools: Mapping[str, PoolRules]  # by name
    members: Mapping[str, Sequence[Instance]]  # of each pool: those that agents tell of
    journal: Journal  # with what the fleet shows of it by now
    outside: tuple[str, ...]  # ids of instances that belong to no pool; some that load do not tell yet

    @property
    def ready(self) -> frozenset[str]:
        """Ids of those whose start is over."""
        over = (Lifecycle.READY, Lifecycle.DRAINING)
        return frozenset(each.id for those in self.members.values() for each in those if each.lifecycle in over)


class Sights:
    """Those of one fleet. `clock` is the time of day, `since_start` one that only goes forward."""

    def __init__(
        self,
        rules: ScalingRules,
        registry: Registry,
        fleet: Fleet,
        priors: Sequence[KindRecord] = (),
        *,
        clock: Callable[[], float] = time.time,
        since_start: Callable[[], float] = time.monotonic,
    ) -> None:
        link, base = registry.link, registry.base
        self._rules = rules
        self._fleet = fleet
        self._priors = {record.kind: _common(record) for record in priors}
        self._traffic = TrafficCounts(link, base)
        self._intents = Intents(link, base)
        self._profiles = ProfileMemory(link, base)
        self._starts = StartMemory(link, base)
        self._prefixes = PrefixMemory(link, base)
        self._clock, self._since_start = clock, since_start
        self._at_s, self._looked_at_s = 0.0, 0.0  # of the last look, by the two
        self._slowly_at_s = float("-inf")
        self._kinds: tuple[KindRecord, ...] = ()
        self._model_starts_s: dict[str, tuple[float, ...]] = {}  # by model
        self._warm_tokens: dict[str, float] = {}  # by instance id

    def use(self, rules: ScalingRules) -> None:
        """Go by other rules from the next look on."""
        self._rules = rules

    async def look(self, journal: Journal) -> Seen:
        """Look once. Raises RegistryError."""
        instances = tuple(member.instance for member in self._fleet.members())
        pools = {pool.name: pool for group in groups(self._rules, instances) for pool in group.pools}
        members = placed(tuple(pools.values()), instances)
        traffic = await self._traffic.read()
        read_at_s = self._since_start()
        wanted = await self._intents.models()
        if self._since_start() - self._slowly_at_s >= _SLOWLY_S:
            await self._read_slowly(instances)
        since_read_s = self._since_start() - read_at_s
        at_s, passed_s, stepped_s = self._now_s()
        journal = set_forward(journal, stepped_s) if stepped_s else journal
        unseen_s = passed_s if passed_s > _UNSEEN_TICKS * self._rules.tick_s else 0.0
        starts_s = self._starts_s(journal, pools)
        patience_s = {
            name: STUCK_COLD_STARTS * max((*starts_s.get(name, ()), pool.start_s)) for name, pool in pools.items()
        }
        inside = {each.id for of_pool in members.values() for each in of_pool}
        others = [each for each in instances if each.id not in inside]
        outside = tuple(each.id for each in others if own_models(each) or each.lifecycle not in COMING)
        of_none = {each.id for each in others}
        journal = after_look(journal, members, at_s, lambda pool: patience_s.get(pool, 0.0), of_none, unseen_s)
        asked_for = tuple(each for pool in pools.values() for each in launched(pool, journal))
        sight = Sight(
            at_s=at_s,
            stepped_s=stepped_s,
            instances=instances + asked_for,
            counts=traffic.counts,
            counted_at_s=at_s - since_read_s - traffic.age_s,
            held=traffic.held,
            routers=traffic.routers,
            wanted=frozenset(wanted),
            speeds=speeds_of(self._kinds, pools.values(), members),
            starts_s=self._starts_s(journal, pools),
            warm_tokens=self._warm_tokens,
        )
        return Seen(sight, pools, members, journal, outside)

    def _now_s(self) -> tuple[float, float, float]:
        """(time of day, seconds since the last look, by how many of them the clock was set forward).

        The first never goes back: rates are differences by it. Nor does it stand still meanwhile. The others are 0 at
        the first look.
        """
        looked_at_s, before_s = self._since_start(), self._at_s
        passed_s, self._looked_at_s = looked_at_s - self._looked_at_s, looked_at_s
        if not before_s:
            self._at_s = self._clock()
            return self._at_s, 0.0, 0.0
        self._at_s = max(self._clock(), before_s + _SLOWER * passed_s)
        stepped_s = self._at_s - before_s - passed_s
        return self._at_s, passed_s, stepped_s if stepped_s > _STEP_S else 0.0

    def _starts_s(self, journal: Journal, pools: Mapping[str, PoolRules]) -> dict[str, tuple[float, ...]]:
        """Of each pool, those that were seen in it, else those of its models wherever agents have measured them."""
        own = durations_s(journal, {name: pool.before_start_s for name, pool in pools.items()})
        found = {}
        for name, pool in pools.items():
            elsewhere = (self._model_starts_s.get(model, ()) for model in pool.models)
            measured = next((each for each in elsewhere if each), ())
            durations = own.get(name) or tuple(each + pool.before_start_s for each in measured)
            if durations:
                found[name] = durations
        return found

    async def _read_slowly(self, instances: Sequence[Instance]) -> None:
        told = await self._profiles.read()
        alike = by_kind(record for records in told.values() for record in records)
        merged = [_common(merge_kind(each)) async for each in in_slices(alike)]
        self._kinds = tuple((self._priors | {record.kind: record for record in merged}).values())
        known = await self._starts.read(_REMEMBER_S)
        self._model_starts_s = {model: tuple(took_s for _, took_s in each.starts) for model, each in known.items()}
        await self._read_warm([each for each in instances if each.lifecycle in (Lifecycle.READY, Lifecycle.DRAINING)])
        self._slowly_at_s = self._since_start()

    async def _read_warm(self, instances: Sequence[Instance]) -> None:
        """Read as much as the time allows, what was read the longest ago first: a look must not wait for all of it."""
        before = self._warm_tokens
        found: dict[str, float] = {}

        async def read(instance: Instance) -> None:
            found[instance.id] = float(_BLOCK_TOKENS * await self._prefixes.blocks(instance.key))

        order = {instance_id: place for place, instance_id in enumerate(before, 1)}
        try:
            async with asyncio.timeout(_WARM_BUDGET_S):
                await for_each(sorted(instances, key=lambda each: order.get(each.id, 0)), read)
        except TimeoutError:
            log.debug("what is warm was read of %d instances of %d", len(found), len(instances))
        here = {each.id for each in instances}
        self._warm_tokens = {name: tokens for name, tokens in before.items() if name in here - found.keys()} | found


def _common(record: KindRecord) -> KindRecord:
    """What is known of a kind, without that of its single instances."""
    return msgspec.structs.replace(record, instances={})

"""A group's instances by what they are good for, and what of them is remembered from look to look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from extproc.core.scaling.group import GroupMemory, Staff
from extproc.core.scaling.pools import Group
from extproc.core.scaling.rules import PoolRules
from extproc.core.scaling.sight import Sight
from extproc.core.values.instance import COMING, Instance, Lifecycle

STUCK_COLD_STARTS = 3.0  # after so many cold starts nobody counts on a start any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One look at a group; tuples have a place for each of its pools."""

    instances: tuple[tuple[Instance, ...], ...]
    staffs: tuple[Staff, ...]
    starts_s: tuple[float, ...]  # cold starts
    coming: tuple[tuple[int, float], ...]  # (place of the pool, seconds until Ready) of each that is on its way
    waiting: int  # requests, in engines and routers
    kv_usage: float | None  # mean of those Ready that tell it
    asked: bool  # somebody waits for a model, and nobody serves it
    requests: float  # that were ever counted
    came: bool  # any of them since the last look


def see(
    group: Group,
    instances: Sequence[Sequence[Instance]],
    starts_s: Sequence[float],
    sight: Sight,
    memory: GroupMemory,
    models: frozenset[str],
    shaken_s: float,
) -> Seen:
    """Sort what is there, and note since when instances come, drain, or are broken.

    `models` are the names under which requests reach the group (`core.scaling.pools.names`). One that is Unhealthy
    counts as Ready for `shaken_s`: it may have missed a few probes only.
    """
    _forget(memory, [each for of_pool in instances for each in of_pool])
    staffs = [
        _staff(each, memory, start_s, sight.at_s, shaken_s) for each, start_s in zip(instances, starts_s, strict=True)
    ]
    ready = [each for of_pool in staffs for each in of_pool.ready]
    held = sum(count for model, count in sight.held.items() if model in models)
    usages = [each.load.kv_usage for each in ready if each.load.kv_usage is not None]
    requests = sum(counts.requests for model, counts in sight.counts.items() if model in models)
    came = memory.requests is not None and requests > memory.requests
    wished = bool(models & sight.wanted) or held > 0 or came
    return Seen(
        instances=tuple(tuple(each) for each in instances),
        staffs=tuple(staffs),
        starts_s=tuple(starts_s),
        coming=tuple(
            (place, _ready_in_s(each, memory, _left_s(each, pool, start_s), sight.at_s))
            for place, (pool, of_pool, start_s) in enumerate(zip(group.pools, staffs, starts_s, strict=True))
            for each in of_pool.coming
        ),
        waiting=held + sum(each.load.waiting or 0 for each in ready),
        kv_usage=sum(usages) / len(usages) if usages else None,
        asked=wished and not ready,
        requests=requests,
        came=came,
    )


def note(memory: GroupMemory, group: Group, seen: Seen, sight: Sight, load: float) -> None:
    """Remember when somebody asked last, what instances cost, how many there were, and when that was too few."""
    # Of one that has failed, load is what it was before.
    at_work = [each for of_pool in seen.staffs for each in (*of_pool.ready, *of_pool.draining)]
    busy = any(each.load.running or each.load.waiting for each in at_work)
    if seen.came or seen.waiting or busy or seen.asked or (memory.asked_at_s is None and any(seen.instances)):
        memory.asked_at_s = sight.at_s
    memory.requests = seen.requests
    ready = {pool.name: len(staff.ready) for pool, staff in zip(group.pools, seen.staffs, strict=True)}
    if ready != memory.ready or load >= sum(ready.values()) or seen.waiting > sum(ready.values()):
        memory.ready, memory.unsettled_at_s = ready, sight.at_s
    for pool, of_pool, staff in zip(group.pools, seen.instances, seen.staffs, strict=True):
        told = [each.price_per_hour for each in of_pool if each.price_per_hour is not None]
        if told:
            memory.prices[pool.name] = sum(told) / len(told)
        memory.targets.setdefault(pool.name, len(staff.ready) + len(staff.coming))


def _staff(
    instances: Sequence[Instance], memory: GroupMemory, cold_start_s: float, at_s: float, shaken_s: float
) -> Staff:
    coming = [each for each in instances if each.lifecycle in COMING]
    draining = [each for each in instances if each.lifecycle is Lifecycle.DRAINING]
    for each in coming:
        if each.asleep:  # it is Loading by its agent's word, and begins when somebody wakes it
            memory.coming_since_s[each.key] = at_s
        memory.coming_since_s.setdefault(each.key, at_s)
    for each in draining:
        memory.draining_since_s.setdefault(each.key, at_s)
    stuck = frozenset(
        each.key
        for each in coming
        if each.asleep
        or at_s - memory.coming_since_s[each.key] > max(STUCK_COLD_STARTS * cold_start_s, each.ready_in_s or 0.0)
    )
    unhealthy = [each for each in instances if each.lifecycle is Lifecycle.UNHEALTHY]
    # A start that no agent tells of yet (it has no address) is given up by whoever has asked for it.
    hung = [each for each in coming if each.key in stuck and not each.asleep and each.address]
    for key in {each.key for each in coming} - {each.key for each in hung}:
        memory.broken_since_s.pop(key, None)
    for each in (*unhealthy, *hung):
        memory.broken_since_s.setdefault(each.key, at_s)
    shaken = tuple(
        each for each in unhealthy if each.key not in memory.told and at_s - memory.broken_since_s[each.key] < shaken_s
    )
    return Staff(
        ready=tuple(each for each in instances if each.lifecycle is Lifecycle.READY),
        coming=tuple(each for each in coming if each.key not in stuck),
        draining=tuple(draining),
        stuck=stuck,
        shaken=shaken,
        broken=len(unhealthy) + len(hung) - len(shaken),
    )


def _forget(memory: GroupMemory, instances: Sequence[Instance]) -> None:
    """Drop what is remembered of instances that are gone, or are what they are no more."""
    state = {each.key: each.lifecycle for each in instances}
    memory.coming_since_s = {key: at for key, at in memory.coming_since_s.items() if state.get(key) in COMING}
    memory.draining_since_s = {
        key: at for key, at in memory.draining_since_s.items() if state.get(key) is Lifecycle.DRAINING
    }
    failing = (*COMING, Lifecycle.UNHEALTHY)
    memory.broken_since_s = {key: at for key, at in memory.broken_since_s.items() if state.get(key) in failing}
    memory.told = {key: at for key, at in memory.told.items() if key in state}


def _left_s(each: Instance, pool: PoolRules, start_s: float) -> float:
    """What is left of a start when one is seen first: of one that an agent tells of, what comes before is over."""
    return start_s - pool.before_start_s if each.address else start_s


def _ready_in_s(each: Instance, memory: GroupMemory, start_s: float, at_s: float) -> float:
    if each.ready_in_s is not None:
        return max(0.0, each.ready_in_s)
    return max(0.0, memory.coming_since_s[each.key] + start_s - at_s)

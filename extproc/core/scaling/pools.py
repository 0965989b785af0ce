"""Which instances stand in for each other, and which pools serve the same requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from extproc.core.pairs.disaggregation import takes_decode
from extproc.core.scaling.rules import PoolRules, ScalingRules
from extproc.core.speeds.profile import profile_for
from extproc.core.speeds.speed import Speed
from extproc.core.values.instance import Instance, Role

MADE_MOST = 64  # instances that a pool may have which no operator has described
STEP_OVERHEAD_S = 0.005  # that engines add to kernels' times, until learned: 3 to 10 ms, as the fits' note has it


@dataclass(frozen=True, slots=True)
class Group:
    """Pools that serve the same requests."""

    models: tuple[str, ...]  # in alphabetical order
    pools: tuple[PoolRules, ...]
    role: Role = Role.BOTH  # of all its pools


def groups(rules: ScalingRules, instances: Sequence[Instance] = ()) -> tuple[Group, ...]:
    """Pools by what they serve, in the order of the rules; without any rule, pools are made from what is there."""
    alike: dict[tuple[tuple[str, ...], Role], list[PoolRules]] = {}
    for pool in rules.pools or made_from(instances):
        alike.setdefault((tuple(sorted(set(pool.models))), pool.role), []).append(pool)
    return tuple(Group(models, tuple(pools), role) for (models, role), pools in alike.items())


def made_from(instances: Iterable[Instance]) -> tuple[PoolRules, ...]:
    """One pool for each kind of instance: what nobody has described never goes to zero."""
    there = [each for each in instances if own_models(each)]
    kinds = sorted({(own_models(each), each.hardware, each.tensor_parallel, each.role) for each in there})
    return tuple(
        PoolRules(
            name=f"{models[0]}/{hardware or 'unknown'}/tp{size}" + ("" if of is Role.BOTH else f"/{of}"),
            models=models,
            hardware=hardware,
            tensor_parallel=size,
            role=of,
            least=1,
            most=MADE_MOST,
        )
        for models, hardware, size, of in kinds
    )


def own_models(instance: Instance) -> tuple[str, ...]:
    """What it serves, adapters aside, in alphabetical order; of one that serves nothing yet, what it will."""
    return tuple(sorted(set(instance.models or instance.loadable) - set(instance.loras)))


def belongs(pool: PoolRules, instance: Instance) -> bool:
    """Whether an instance is one of a pool's: it serves all of its models, on its hardware, in its role.

    A pool of no role takes all. Who takes whole requests can answer with prompts that others computed as well.
    """
    return (
        set(pool.models) <= set(own_models(instance))
        and pool.hardware in ("", instance.hardware)
        and pool.tensor_parallel == instance.tensor_parallel
        and (pool.role in (Role.BOTH, instance.role) or (pool.role is Role.DECODE and takes_decode(instance)))
    )


def members(pool: PoolRules, instances: Iterable[Instance]) -> tuple[Instance, ...]:
    """Return the instances that are a pool's, whatever they are doing; see `placed` where pools overlap."""
    return tuple(each for each in instances if belongs(pool, each))


def placed(pools: Sequence[PoolRules], instances: Iterable[Instance]) -> dict[str, tuple[Instance, ...]]:
    """Return each pool's instances by its name, none of them twice.

    Of several pools that an instance would belong to it is in that which says most of it (models, then its role, then
    hardware), the first of equals.
    """
    found: dict[str, list[Instance]] = {pool.name: [] for pool in pools}
    # Large fleets have hundreds of pools: each instance is held against those of its models alone.
    places: dict[str, list[int]] = {}
    for place, pool in enumerate(pools):
        places.setdefault(_first_model(pool.models), []).append(place)
    for each in instances:
        near = sorted(place for model in ("", *own_models(each)) for place in places.get(model, ()))
        fitting = [pools[place] for place in near if belongs(pools[place], each)]
        if fitting:
            found[max(fitting, key=_says).name].append(each)
    return {name: tuple(those) for name, those in found.items()}


def _first_model(models: Sequence[str]) -> str:
    """One that each instance of a pool with these models serves; "" where it need serve none."""
    return min(models, default="")


def _says(pool: PoolRules) -> tuple[int, bool, bool]:
    return len(set(pool.models)), pool.role is not Role.BOTH, pool.hardware != ""


def names(all_groups: Sequence[Group], instances: Iterable[Instance]) -> tuple[frozenset[str], ...]:
    """Return the names under which requests reach each group: its models and its instances' aliases and adapters.

    Of a half, those of the other half's instances too: the same requests reach both.
    """
    serving: dict[str, list[Instance]] = {}
    there = tuple(instances)
    for each in there:
        for model in own_models(each):
            serving.setdefault(model, []).append(each)
    serving[""] = list(there)
    return tuple(_names(group, serving.get(_first_model(group.models), ())) for group in all_groups)


def _names(group: Group, instances: Sequence[Instance]) -> frozenset[str]:
    halved = group.role is not Role.BOTH
    whole = [replace(pool, role=Role.BOTH, hardware="") for pool in group.pools] if halved else group.pools
    said = {name for pool in whole for each in members(pool, instances) for name in (*each.models, *each.loras)}
    return frozenset(said) | frozenset(group.models)


def speed_of(pool: PoolRules, instances: Sequence[Instance], learned: Mapping[str, Speed]) -> Speed:
    """How fast a pool's instances are: as learned, else by the table with an engine's usual overhead."""
    if pool.name in learned:
        return learned[pool.name]
    hardware = pool.hardware or next((each.hardware for each in instances if each.hardware), "")
    precision = next((each.precision for each in instances if each.precision), "")
    first, *others = pool.models or ("",)
    prior = profile_for(first, hardware, pool.tensor_parallel, precision, aliases=others)
    return Speed(
        prior,
        prefill_overhead_s=STEP_OVERHEAD_S,
        decode_overhead_s=STEP_OVERHEAD_S,
        uncertainty=prior.deviation,
    )

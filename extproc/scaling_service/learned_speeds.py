"""What routers have learned of speeds, as one speed for each pool: that of its kind, no single instance's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from extproc.core.scaling.rules import PoolRules
from extproc.core.speeds.speed import Speed
from extproc.core.speeds.speed_records import KindRecord
from extproc.core.speeds.speeds import Speeds
from extproc.core.values.instance import Instance, Lifecycle


def speeds_of(
    kinds: Iterable[KindRecord], pools: Iterable[PoolRules], members: Mapping[str, Sequence[Instance]]
) -> dict[str, Speed]:
    """The speed of each pool whose kind somebody has learned, by the pool's name; `kinds` merged, each once."""
    records = tuple(kinds)
    known = {record.kind for record in records}
    speeds = Speeds(records)
    found = {}
    for pool in pools:
        one = _typical(pool, members.get(pool.name, ()))
        for model in pool.models:
            speed = speeds.speed(model, one)
            if speed.prior.name in known:
                found[pool.name] = speed
                break
    return found


def _typical(pool: PoolRules, instances: Sequence[Instance]) -> Instance:
    """An instance like those of the pool that nothing is known of but its kind."""
    if instances:
        like = max(instances, key=lambda each: each.lifecycle is Lifecycle.READY)
        return msgspec.structs.replace(like, id=pool.name, incarnation="")
    return Instance(
        id=pool.name,
        incarnation="",
        address="",
        cluster="",
        models=pool.models,
        lifecycle=Lifecycle.STARTING,
        hardware=pool.hardware,
        tensor_parallel=pool.tensor_parallel,
    )

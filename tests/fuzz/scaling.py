"""An autoscaler that looks at one pool, to see that it still can after it has taken in something strange."""

from __future__ import annotations

from collections.abc import Mapping

from extproc.core.pricing.classes import ClassPolicy
from extproc.core.scaling.rules import PoolRules, ScalingRules
from extproc.core.scaling.scaler import Scaler
from extproc.core.scaling.sight import Counts, Sight
from extproc.core.speeds.speed_records import KindRecord, record_of
from extproc.core.speeds.speeds import Speeds
from tests.core.builders import MODEL, instance
from tests.core.measured import Truth

RULES = ScalingRules(pools=(PoolRules(name="pool", models=(MODEL, "m"), hardware="h100_sxm"),))
START_S = 1.8e9


def learned() -> KindRecord:
    """What a router has learned of one kind after some requests."""
    speeds = Speeds()
    for _ in range(5):
        Truth().finish(speeds, instance("a"))
    (kind,) = speeds.kinds().values()
    return record_of(kind, 3.0)


def look(
    dump: bytes | None = None,
    counts: Mapping[str, Counts] | None = None,
    held: Mapping[str, int] | None = None,
    rules: ScalingRules = RULES,
    classes: ClassPolicy | None = None,
) -> Scaler:
    """Look several times; what is recommended must stay within the pool's bounds."""
    scaler = Scaler(rules, classes or ClassPolicy())
    if dump is not None:
        scaler.load(dump, START_S)
    for tick in range(4):
        seen = Counts(requests=10.0 * tick, prompt_tokens=9000.0 * tick, answers=9.0 * tick, output_tokens=900.0 * tick)
        sight = Sight(
            at_s=START_S + 5.0 * tick,
            instances=(instance("a"),),
            counts=counts if counts is not None and tick > 1 else {MODEL: seen},
            held=held or {},
            routers=1,
        )
        for each in scaler.look(sight):
            assert type(each.desired) is int
            assert each.desired >= 0
    scaler.dump()
    return scaler


def dump() -> bytes:
    """What such an autoscaler remembers."""
    return look().dump()

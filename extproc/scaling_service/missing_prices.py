"""Which pools lack a price, so that the cheapest of those that serve the same requests cannot be told. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from extproc.core.scaling.pools import groups
from extproc.core.scaling.rules import ScalingRules
from extproc.core.values.instance import Instance


def missing_prices(rules: ScalingRules, members: Mapping[str, Sequence[Instance]]) -> tuple[str, ...]:
    """Names of those pools of the rules that stand beside others and of which neither rules nor agents tell a price."""
    beside = (pool for group in groups(rules) if len(group.pools) > 1 for pool in group.pools)
    return tuple(
        pool.name
        for pool in beside
        if pool.price_per_hour is None and all(each.price_per_hour is None for each in members.get(pool.name, ()))
    )

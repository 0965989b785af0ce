"""Which pools of instances there are, and how many instances each may have, in a configuration file.

autoscale:
  busiest: 0.85
  pools:
    h100: {models: [llama-3.1-8b], hardware: h100_sxm, least: 1, most: 8, spare: 1}
    a100: {models: [llama-3.1-8b], hardware: a100_sxm, least: 0, most: 16, price_per_hour: 1.8}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from math import inf
from typing import Annotated, Any

import msgspec

from extproc.config_file.keys import key
from extproc.core.scaling.rules import PoolRules, ScalingRules
from extproc.core.values.instance import Role

# A pool's name becomes part of ids of instances, of labels and of environment variables' values.
_POOL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_LONGEST_TICK_S = 30.0  # what was recommended 60 s ago is told to nobody any more
_LONGEST_PERIOD_S = 14 * 86_400.0

_USUAL = ScalingRules()
_POOL_USUAL = {each.name: each.default for each in fields(PoolRules) if each.default is not MISSING}


class ListedPool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pool; what is left out is as `core.scaling.rules` has it."""

    models: Annotated[tuple[str, ...], key("that its instances serve, adapters aside")]
    hardware: Annotated[str | None, key("as agents tell it", usual="any")] = None
    tensor_parallel: Annotated[
        int | None, key("GPUs that share a layer", "GPUs", usual=_POOL_USUAL["tensor_parallel"])
    ] = None
    role: Annotated[Role | None, key("which half of requests its instances take", usual=_POOL_USUAL["role"])] = None
    least: Annotated[
        int | None, key("instances; 0 lets it be scaled to zero", "instances", usual=_POOL_USUAL["least"])
    ] = None
    most: Annotated[int | None, key("instances", "instances", usual=_POOL_USUAL["most"])] = None
    spare: Annotated[
        int | None, key("instances that may fail without a loss", "instances", usual=_POOL_USUAL["spare"])
    ] = None
    price_per_hour: Annotated[
        float | None, key("of an instance, in your currency", "per hour", usual="as agents tell")
    ] = None
    start_s: Annotated[
        float | None, key("what a start takes, until some were seen", "s", usual=_POOL_USUAL["start_s"])
    ] = None
    before_start_s: Annotated[
        float | None,
        key("of a start, what is over before an agent can tell of it", "s", usual=_POOL_USUAL["before_start_s"]),
    ] = None
    idle_s: Annotated[
        float | None,
        key("without a request, until the last instance goes where least is 0", "s", usual=_POOL_USUAL["idle_s"]),
    ] = None
    dwell_s: Annotated[
        float | None,
        key("that fewer instances must have been enough before one goes", "s", usual=_POOL_USUAL["dwell_s"]),
    ] = None
    labels: Annotated[Mapping[str, str] | None, key("handed on to whoever starts instances", usual="none")] = None


class ScalingSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section."""

    tick_s: Annotated[float | None, key("between two looks", "s", usual=_USUAL.tick_s)] = None
    period_s: Annotated[float | None, key("after which load is expected to come again", "s", usual=_USUAL.period_s)] = (
        None
    )
    quantile: Annotated[
        float | None, key("chance that the load stays below what is planned for", "share", usual=_USUAL.quantile)
    ] = None
    busiest: Annotated[
        float | None,
        key("of what instances carry within their SLOs, how much may be in use", "share", usual=_USUAL.busiest),
    ] = None
    drain_s: Annotated[
        float | None, key("that an instance may take to finish what it has", "s", usual=_USUAL.drain_s)
    ] = None
    pools: Annotated[dict[str, ListedPool], key("by name: instances that can stand in for each other")] = {}


def scaling_of(section: ScalingSection | None) -> ScalingRules | None:
    """The rules of a section, None without one. Raises ValueError."""
    if section is None:
        return None
    pools = tuple(_pool(name, listed) for name, listed in section.pools.items())
    _check_apart(pools)
    given = {name: value for name, value in msgspec.structs.asdict(section).items() if value is not None}
    rules = ScalingRules(**given | {"pools": pools})
    for name, least, most in (("tick_s", 0.1, _LONGEST_TICK_S), ("period_s", rules.tick_s, _LONGEST_PERIOD_S)):
        if not least <= getattr(rules, name) <= most:
            raise ValueError(f"autoscale: {name} must be from {least:g} to {most:g}")
    if not 0.5 <= rules.quantile < 1:
        raise ValueError("autoscale: quantile must be 0.5 or more, and less than 1")
    if not 0 < rules.busiest <= 1:
        raise ValueError("autoscale: busiest must be more than 0, and 1 at the most")
    if not 0 <= rules.drain_s < inf:
        raise ValueError("autoscale: drain_s must be 0 or more, and finite")
    return rules


def _pool(name: str, listed: ListedPool) -> PoolRules:
    given: dict[str, Any] = {
        field: value for field, value in msgspec.structs.asdict(listed).items() if value is not None
    }
    try:
        if not _POOL.fullmatch(name):
            raise ValueError("its name must be of 1 to 63 letters, digits and ._-")
        if not listed.models or "" in listed.models or len(set(listed.models)) < len(listed.models):
            raise ValueError("models must name at least one, and each once")
        pool = PoolRules(name=name, **given)
        _check(pool)
    except ValueError as error:
        raise ValueError(f"autoscale: pool {name}: {error}") from error
    return pool


def _check(pool: PoolRules) -> None:
    if not 0 <= pool.least <= pool.most or pool.most < 1:
        raise ValueError("least must be 0 or more, and no more than most, which is 1 or more")
    if pool.spare < 0:
        raise ValueError("spare must be 0 or more")
    if pool.tensor_parallel < 1:
        raise ValueError("tensor_parallel must be 1 or more")
    if pool.price_per_hour is not None and not 0 < pool.price_per_hour < inf:
        raise ValueError("price_per_hour must be more than 0, and finite")
    if not 0 < pool.start_s < inf:
        raise ValueError("start_s must be more than 0, and finite")
    if not 0 <= pool.before_start_s < pool.start_s:
        raise ValueError(f"before_start_s must be 0 or more, and less than start_s ({pool.start_s:g}), the whole")
    for field in ("idle_s", "dwell_s"):
        if not 0 <= getattr(pool, field) < inf:
            raise ValueError(f"{field} must be 0 or more, and finite")


def _check_apart(pools: tuple[PoolRules, ...]) -> None:
    """No two pools are the same; a model is in one group of pools, or its requests would count twice.

    Where any of its pools is sized for half a request, all are, and there are both halves.
    """
    seen: dict[tuple[frozenset[str], str, int, Role], str] = {}
    groups: dict[str, frozenset[str]] = {}
    roles: dict[frozenset[str], set[Role]] = {}
    for pool in pools:
        models = frozenset(pool.models)
        other = seen.setdefault((models, pool.hardware, pool.tensor_parallel, pool.role), pool.name)
        if other != pool.name:
            raise ValueError(f"autoscale: pools {other} and {pool.name} have the same models and hardware")
        roles.setdefault(models, set()).add(pool.role)
        for model in pool.models:
            if groups.setdefault(model, models) != models:
                raise ValueError(f"autoscale: {model} is in pools with different models; all need the same ones")
    for models, of in roles.items():
        if of not in ({Role.BOTH}, {Role.PREFILL, Role.DECODE}):
            raise ValueError(
                f"autoscale: of the pools with {', '.join(sorted(models))} some need role: prefill and all others"
                " role: decode, or none a role"
            )

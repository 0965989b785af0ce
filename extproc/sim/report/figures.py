"""The figures that a run is judged by."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from extproc.sim.capacity import power_shares
from extproc.sim.report.balance import fairness, imbalance
from extproc.sim.report.groups import (
    GroupFigures,
    but_the_flood,
    by_class,
    by_priority,
    by_tenant,
    count,
    durations,
    tpots,
    ttfts,
)
from extproc.sim.report.models import changes, quality_met, tokens_money
from extproc.sim.report.oscillation import oscillation
from extproc.sim.report.run import Fate, Run, Served
from extproc.sim.report.scaling import ScalingFigures, scaling_figures
from extproc.sim.report.slo import DEFAULT_SLOS, Slos
from extproc.sim.report.spread import spread
from extproc.sim.report.unloaded import fastest_pace, mean_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One run. Times are of served requests, so goodput is what a policy that refuses must answer for.

    What cannot be said is None: times if nothing was served, money without prices, fairness with one tenant.
    """

    requests: int
    served: int
    refused: int
    failed: int
    goodput: float  # share of all requests, those refused and failed included, that met the SLO of their class
    goodput_rps: float | None  # the same per second of the run
    ttft_mean_s: float | None
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    ttft_p99_s: float | None
    tpot_mean_s: float | None  # over requests: of each its mean time between two tokens
    tpot_p50_s: float | None
    tpot_p90_s: float | None
    tpot_p99_s: float | None
    e2e_mean_s: float | None
    e2e_p50_s: float | None
    e2e_p90_s: float | None
    e2e_p99_s: float | None
    cached_token_share: float | None  # prompt tokens of served requests that came from a prefix cache
    preemptions: int
    queue_mean: float | None  # requests that wait in engines, the whole fleet's
    queue_max: int | None
    gpu_s_per_1k: float | None  # GPU-seconds of computing per 1,000 served requests
    cost_per_1k: float | None  # price of all instances while they were up, per 1,000 served requests
    fairness: float | None  # between tenants: 1 is even
    imbalance: float | None  # between instances: 0 is even
    oscillation: float | None  # swings between instances: 0 is steady
    by_class: dict[str, GroupFigures]
    by_tenant: dict[str, GroupFigures]  # empty where there is one
    by_priority: dict[str, GroupFigures]  # likewise; the most urgent first
    but_the_flood: GroupFigures | None  # all tenants but the one named `flood`, where there are several
    quality_met: float | None = None  # of requests that need a quality, those that were served with it
    tokens_cost_per_1k: float | None = None  # price of the tokens of 1,000 served requests, by the models' prices
    model_changes: float | None = None  # of later turns of sessions, those that another model served
    scaling: ScalingFigures | None = None  # None: no autoscaler was at work


def figures(run: Run, slos: Slos = DEFAULT_SLOS) -> Figures:
    """All figures of a run. A class without an SLO is good when served. Raises ValueError for a fleet of none."""
    good, paces = _judged(run, slos)
    served = [one for one in run.served if one.fate is Fate.SERVED]
    ttft, tpot, e2e = spread(ttfts(served)), spread(tpots(served)), spread(durations(served))
    power = power_shares(run.fleet, *mean_size([one.arrival for one in run.served]))
    waiting = [sum(sample.waiting) for sample in run.samples]
    return Figures(
        requests=len(run.served),
        served=len(served),
        refused=count(run.served, Fate.REFUSED),
        failed=count(run.served, Fate.FAILED),
        goodput=_share(good, len(run.served)),
        goodput_rps=sum(good) / run.lasted_s if run.lasted_s > 0.0 else None,
        ttft_mean_s=ttft.mean,
        ttft_p50_s=ttft.p50,
        ttft_p90_s=ttft.p90,
        ttft_p99_s=ttft.p99,
        tpot_mean_s=tpot.mean,
        tpot_p50_s=tpot.p50,
        tpot_p90_s=tpot.p90,
        tpot_p99_s=tpot.p99,
        e2e_mean_s=e2e.mean,
        e2e_p50_s=e2e.p50,
        e2e_p90_s=e2e.p90,
        e2e_p99_s=e2e.p99,
        cached_token_share=_cached_share(served),
        preemptions=sum(one.preemptions for one in run.served),
        queue_mean=sum(waiting) / len(waiting) if waiting else None,
        queue_max=max(waiting, default=None),
        gpu_s_per_1k=_per_1k(_gpu_s(run), len(served)),
        cost_per_1k=_per_1k(_price(run), len(served)),
        fairness=fairness(paces),
        imbalance=imbalance(run.samples, power),
        oscillation=oscillation(run.samples),
        by_class=by_class(run.served, good, run.lasted_s),
        by_tenant=by_tenant(run.served, good, run.lasted_s),
        by_priority=by_priority(run.served, good, run.lasted_s),
        but_the_flood=but_the_flood(run.served, good, run.lasted_s),
        quality_met=quality_met(run),
        tokens_cost_per_1k=_per_1k(tokens_money(run), len(served)),
        model_changes=changes(served, run.fleet),
        scaling=scaling_figures(run, good),
    )


def as_json(value: Figures) -> dict[str, Any]:
    """The figures for a JSON text, rounded to six digits; what is not a number is null. None of an absent scaler."""
    found = dataclasses.asdict(value)
    if value.scaling is None:
        del found["scaling"]
    return {name: _plain(item) for name, item in found.items()}


def _judged(run: Run, slos: Slos) -> tuple[list[bool], dict[str, list[float]]]:
    """For each request whether it was good, and for each tenant the pace of its requests."""
    good: list[bool] = []
    paces: dict[str, list[float]] = defaultdict(list)
    fastest = {model: fastest_pace(run.fleet, model) for model in {one.arrival.model for one in run.served}}
    for one in run.served:
        if one.fate is not Fate.SERVED or one.ttft_s is None or one.duration_s is None:
            good.append(False)
            paces[one.arrival.tenant].append(0.0)
            continue
        unloaded_s = fastest[one.arrival.model].unloaded_s(one.arrival)
        slo = slos.get(one.arrival.request_class)
        good.append(slo is None or slo.met(one.ttft_s, one.tpot_s, one.duration_s, unloaded_s))
        paces[one.arrival.tenant].append(min(1.0, unloaded_s / one.duration_s) if one.duration_s > 0.0 else 1.0)
    return good, paces


def _share(good: Sequence[bool], requests: int) -> float:
    return sum(good) / requests if requests else 0.0


def _cached_share(served: Sequence[Served]) -> float | None:
    prompt_tokens = sum(one.arrival.prompt_tokens for one in served)
    return sum(one.cached_tokens for one in served) / prompt_tokens if prompt_tokens else None


def _gpu_s(run: Run) -> float:
    return sum(run.busy_s.get(spec.id, 0.0) * spec.tensor_parallel for spec in run.fleet.instances)


def _price(run: Run) -> float | None:
    """Money for the fleet; None if any instance that was up has no price: half a bill would mislead."""
    total = 0.0
    for spec in run.fleet.instances:
        up_s = run.up_s.get(spec.id, 0.0)
        if up_s > 0.0 and spec.price_per_hour is None:
            return None
        total += up_s / 3600.0 * (spec.price_per_hour or 0.0)
    return total


def _per_1k(total: float | None, served: int) -> float | None:
    return total / served * 1000.0 if total is not None and served else None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value

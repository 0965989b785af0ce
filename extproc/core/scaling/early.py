"""Stand-ins for pools, demand, capacity, starts and forecasts until those are merged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from extproc.core.pricing.classes import ClassPolicy
from extproc.core.scaling.recommendation import Forecast
from extproc.core.scaling.rules import PoolRules, ScalingRules
from extproc.core.scaling.sight import Counts, Sight
from extproc.core.speeds.profile import profile_for
from extproc.core.speeds.speed import Speed
from extproc.core.values.instance import Instance


def groups(rules: ScalingRules) -> tuple[tuple[PoolRules, ...], ...]:
    found: dict[frozenset[str], list[PoolRules]] = {}
    for pool in rules.pools:
        found.setdefault(frozenset(pool.models), []).append(pool)
    return tuple(tuple(pools) for pools in found.values())


def members(pool: PoolRules, instances: Iterable[Instance]) -> tuple[Instance, ...]:
    wanted = set(pool.models)
    return tuple(
        each
        for each in instances
        if wanted <= {*each.models, *each.loadable}
        and (not pool.hardware or each.hardware == pool.hardware)
        and each.tensor_parallel == pool.tensor_parallel
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    requests_s: float
    prompt_tokens: float
    cached_tokens: float
    output_tokens: float
    judged: float = 0.0
    late: float = 0.0


class Rates:
    def __init__(self, window_s: float = 30.0) -> None:
        self._window_s = window_s
        self._seen: dict[tuple[str, ...], list[tuple[float, Counts]]] = {}

    def demand(self, models: Sequence[str], sight: Sight) -> Demand:
        seen = self._seen.setdefault(tuple(models), [])
        counts = [sight.counts.get(model, Counts()) for model in models]
        total = Counts(
            **{
                name: sum(getattr(each, name) for each in counts)
                for name in (
                    "requests",
                    "prompt_tokens",
                    "cached_tokens",
                    "answers",
                    "output_tokens",
                    "judged",
                    "late",
                    "slow",
                )
            }
        )
        seen.append((sight.at_s, total))
        while len(seen) > 2 and seen[1][0] <= sight.at_s - self._window_s:
            del seen[0]
        first, before = seen[0]
        covers_s = sight.at_s - first
        came = total.requests - before.requests
        answers = total.answers - before.answers
        return Demand(
            requests_s=came / covers_s if covers_s > 0 else 0.0,
            prompt_tokens=(total.prompt_tokens - before.prompt_tokens) / came if came else 500.0,
            cached_tokens=(total.cached_tokens - before.cached_tokens) / came if came else 0.0,
            output_tokens=(total.output_tokens - before.output_tokens) / answers if answers else 200.0,
            judged=total.judged - before.judged,
            late=total.late + total.slow - before.late - before.slow,
        )


def capacity_rps(pool: PoolRules, speed: Speed | None, demand: Demand, classes: ClassPolicy) -> float:
    speed = speed or Speed(profile_for(pool.models[0], pool.hardware, pool.tensor_parallel))
    limit_s = min((each.slo.tpot_s for each in classes.classes.values() if each.slo.tpot_s is not None), default=0.05)
    uncached = max(1.0, demand.prompt_tokens - demand.cached_tokens)
    output = max(1.0, demand.output_tokens)
    held = demand.prompt_tokens + output / 2
    best = 0.0
    for batch in range(1, 257):
        step_s = speed.decode_step_s(batch, batch * held)
        prefill_s = speed.prefill_s(uncached, demand.cached_tokens)
        rate = batch / (output * step_s + batch * prefill_s)
        if step_s + prefill_s * rate * step_s > limit_s:
            break
        best = max(best, rate)
    return max(best, 1e-3)


def cold_start_s(seen: tuple[float, ...], start_s: float, quantile: float = 0.9) -> float:
    return sorted(seen)[min(len(seen) - 1, int(quantile * len(seen)))] if seen else start_s


class Forecaster:
    def __init__(self, period_s: float) -> None:
        self.period_s = period_s
        self._load = 0.0

    def add(self, at_s: float, load: float, covers_s: float) -> None:
        self._load += (load - self._load) * min(1.0, covers_s / 60.0)

    def forecast(self, at_s: float, horizon_s: float, quantile: float) -> Forecast:
        return Forecast(
            now=self._load, horizon_s=horizon_s, expected=self._load, planned=self._load * (1.0 + 0.3 * quantile)
        )

    def dump(self) -> bytes:
        return b""

    def load(self, data: bytes, at_s: float) -> None:
        del data, at_s

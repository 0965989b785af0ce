"""Our autoscaler in the simulator: the very `core.scaling.Scaler` that `extproc autoscale` runs, with its own ids."""

from __future__ import annotations

from collections.abc import Mapping

from extproc.core.scaling.rules import PoolRules, ScalingRules
from extproc.core.scaling.scaler import Scaler as Core
from extproc.sim.fleet.spec import FleetSpec, InstanceSpec
from extproc.sim.scaling.scaler import Autoscaling, Bounds, View, Wanted


class Ours:
    """One leader, with the operator's rules; what a start takes it has to find out."""

    window_s = 0.0  # it reads no scraped gauges

    def __init__(
        self,
        autoscaling: Autoscaling,
        pools: Mapping[str, Bounds],
        fleet: FleetSpec,
        quantile: float | None = None,
        busiest: float | None = None,
        spare: float = 0.0,
    ) -> None:
        usual = ScalingRules()
        specs = {spec.pool: spec for spec in reversed(fleet.instances)}
        rules = ScalingRules(
            pools=tuple(_pool_rules(name, specs[name], bounds, round(spare)) for name, bounds in pools.items()),
            period_s=autoscaling.period_s,
            quantile=usual.quantile if quantile is None else quantile,
            busiest=usual.busiest if busiest is None else busiest,
            drain_s=autoscaling.drain_s,
        )
        self.tick_s = rules.tick_s
        self._core = Core(rules, fleet.classes)

    def look(self, view: View) -> Wanted:
        """What it recommends, as whoever carries it out would do it."""
        found = self._core.look(view.sight())
        return Wanted(
            counts={one.pool: one.desired for one in found},
            drain=tuple(name for one in found for name in one.drain),
            resume=tuple(name for one in found for name in one.resume),
            stop=tuple(name for one in found for name in one.stop),
        )


def _pool_rules(name: str, spec: InstanceSpec, bounds: Bounds, spare: int) -> PoolRules:
    return PoolRules(
        name=name,
        models=spec.models,
        hardware=spec.hardware,
        tensor_parallel=spec.tensor_parallel,
        role=spec.role,
        least=bounds.least,
        most=bounds.most,
        spare=spare,
        price_per_hour=bounds.price_per_hour,
    )

"""KEDA with a Prometheus trigger on requests in flight: an external metric of an HPA, and the step from and to zero.

KEDA hands the sum over all pods to the HPA, which divides it by the target (`AverageValue`, the trigger's `threshold`):
pods that start count as if they served already. From zero and to zero KEDA scales by itself: it asks every
`pollingInterval` (30 s), and after `cooldownPeriod` (300 s) without activity nothing is left (keda.sh, "Scaling
Deployments", "ScaledObject specification"). Requests in flight are 0 where no pod is, so that activity is what the
proxy before the fleet has counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from extproc.sim.scaling.hpa import SYNC_S, TOLERANCE, Behaviour
from extproc.sim.scaling.scaler import Autoscaling, Bounds, Pod, View, Wanted

POLLING_S = 30.0
COOLDOWN_S = 300.0


class Keda:
    """One ScaledObject a pool; one that may be empty has no pods while nobody asks."""

    def __init__(self, autoscaling: Autoscaling, pools: Mapping[str, Bounds], target: float = 16.0) -> None:
        self.tick_s, self.window_s = SYNC_S, 0.0
        self._target = target
        self._may_be_empty = autoscaling.least == 0
        kept = {name: Bounds(max(1, bounds.least), bounds.most) for name, bounds in pools.items()}
        self._behaviours = {name: Behaviour(bounds) for name, bounds in kept.items()}
        self._active_s = 0.0
        self._polled_s = float("-inf")

    def look(self, view: View) -> Wanted:
        """Counts alone."""
        if view.now_s >= self._polled_s + POLLING_S:
            self._polled_s = view.now_s
            if view.asked > view.asked_before or any(_in_flight(pods) for pods in view.pools.values()):
                self._active_s = view.now_s
        idle = self._may_be_empty and view.now_s >= self._active_s + COOLDOWN_S
        return Wanted(counts={name: 0 if idle else self._count(name, pods, view) for name, pods in view.pools.items()})

    def _count(self, name: str, pods: tuple[Pod, ...], view: View) -> int:
        if not pods:
            return 1 if self._active_s == view.now_s or not self._may_be_empty else 0
        wanted, replicas = _in_flight(pods) / self._target, len(pods)
        if abs(1.0 - wanted / replicas) > TOLERANCE:
            replicas = math.ceil(wanted)
        return self._behaviours[name].settle(replicas, len(pods), view.now_s)


def _in_flight(pods: tuple[Pod, ...]) -> float:
    return sum(pod.gauges.running + pod.gauges.waiting for pod in pods if pod.gauges is not None)

"""Kubernetes' HorizontalPodAutoscaler: its rule, its tolerance, and its default behaviour.

The rule is that of pkg/controller/podautoscaler/replica_calculator.go, the numbers are the controller's defaults
(kubernetes.io, "Horizontal Pod Autoscaling", "Algorithm details" and "Default behavior"): a look every 15 s, nothing
within 10 % of the target, up at once by 100 % or 4 pods in 15 s, whatever is more, down to the most that was
recommended within 300 s. Pods that are not Ready count as 0 on the way up and are left out on the way down; Ready ones
without a metric count as 0 on the way up and as the target on the way down. No change of mind about the direction by
such assumptions.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from extproc.sim.scaling.scaler import Autoscaling, Bounds, Gauges, Pod, View, Wanted

TOLERANCE = 0.1
SYNC_S = 15.0
STABLE_DOWN_S = 300.0
UP_SHARE, UP_PODS, UP_PERIOD_S = 1.0, 4, 15.0
DOWN_PERIOD_S = 60.0  # of the policy that operators write where the default takes too many at once


class Hpa:
    """One autoscaler a pool, all with one target for the mean of a metric over its pods."""

    def __init__(
        self,
        pools: Mapping[str, Bounds],
        metric: Callable[[Gauges], float],
        target: float,
        *,
        window_s: float = 0.0,
        down_pods: int | None = None,
    ) -> None:
        self.tick_s, self.window_s = SYNC_S, window_s
        self._metric, self._target = metric, target
        self._behaviours = {name: Behaviour(bounds, down_pods) for name, bounds in pools.items()}

    def look(self, view: View) -> Wanted:
        """Counts alone: which pods go is the ReplicaSet's business."""
        return Wanted(
            counts={
                name: self._behaviours[name].settle(self._replicas(pods), len(pods), view.now_s)
                for name, pods in view.pools.items()
            }
        )

    def _replicas(self, pods: Sequence[Pod]) -> int:
        ready = [pod for pod in pods if pod.ready]
        known = [self._metric(pod.gauges) for pod in ready if pod.gauges is not None]
        if not known:
            return len(pods)
        missing, unready = len(ready) - len(known), len(pods) - len(ready)
        ratio = sum(known) / len(known) / self._target
        if not missing and (not unready or ratio <= 1.0):
            return len(pods) if abs(1.0 - ratio) <= TOLERANCE else math.ceil(ratio * len(ready))
        assumed = [0.0] * (missing + unready) if ratio > 1.0 else [self._target] * missing
        counted = [*known, *assumed]
        again = sum(counted) / len(counted) / self._target
        if abs(1.0 - again) <= TOLERANCE or (again > 1.0) is not (ratio > 1.0):
            return len(pods)
        replicas = math.ceil(again * len(counted))
        return len(pods) if (replicas > len(pods)) is not (again > 1.0) else replicas


class Behaviour:
    """What is recommended, within the limits on changes; `down_pods` go in a minute at the most, None: all at once."""

    def __init__(self, bounds: Bounds, down_pods: int | None = None) -> None:
        self._bounds, self._down_pods = bounds, down_pods
        self._recommended: deque[tuple[float, int]] = deque()
        self._counts: deque[tuple[float, int]] = deque()  # that there were, for the limit on the way up

    def settle(self, replicas: int, current: int, now: float) -> int:
        """How many there shall be, of a pool that has `current`; those of the first look count as recommended."""
        if not self._recommended:
            self._recommended.append((now, current))
        self._recommended.append((now, replicas))
        while self._recommended[0][0] <= now - STABLE_DOWN_S:
            self._recommended.popleft()
        if replicas < current:
            replicas = min(current, max(count for _, count in self._recommended))
        self._counts.append((now, current))
        while self._counts[0][0] <= now - DOWN_PERIOD_S:
            self._counts.popleft()
        if self._down_pods is not None:
            replicas = max(replicas, min(current, max(count for _, count in self._counts) - self._down_pods))
        began = min(count for at_s, count in self._counts if at_s > now - UP_PERIOD_S)
        allowed = max(math.ceil(began * (1.0 + UP_SHARE)), began + UP_PODS)
        return max(self._bounds.least, min(self._bounds.most, replicas, max(allowed, current)))


def hpa_gpu(autoscaling: Autoscaling, pools: Mapping[str, Bounds], target: float = 0.8, window_s: float = 60.0) -> Hpa:
    """On DCGM's GPU utilisation: the share of time in which a kernel ran, whatever it did."""
    return Hpa(pools, lambda gauges: gauges.gpu_busy, target, window_s=window_s)


def hpa_queue(autoscaling: Autoscaling, pools: Mapping[str, Bounds], target: float = 3.0, window_s: float = 0.0) -> Hpa:
    """On vLLM's `num_requests_waiting`."""
    return Hpa(pools, lambda gauges: gauges.waiting, target, window_s=window_s)


def hpa_queue_slow(autoscaling: Autoscaling, pools: Mapping[str, Bounds], target: float = 3.0) -> Hpa:
    """The same with one pod a minute on the way down, since no queue at all says nothing of how many are too many."""
    return Hpa(pools, lambda gauges: gauges.waiting, target, down_pods=1)

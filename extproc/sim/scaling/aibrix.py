"""AIBrix's PodAutoscaler with its strategies APA and KPA (vllm-project/aibrix, pkg/controller/podautoscaler).

APA (algorithm/apa.go) multiplies the pods by the metric's mean over its target as soon as they are more than 10 %
apart, up to twice, down to half as many. KPA (kpa.go, after Knative) divides the sum of the metric by the target, over
a stable window of 60 s; where the panic window of 10 s asks for twice the pods that are Ready it panics, and scales up
only until a stable window has passed without a reason to. Of both, the controller settles on the most within 300 s on
the way down (context.go: cooldown of scale-down), and counts pods that are pending as metric 0 on the way up and as at
the target on the way down (autoscaler.go). It looks every 10 s.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from extproc.sim.scaling.scaler import Autoscaling, Bounds, Gauges, Pod, View, Wanted

SYNC_S = 10.0
TOLERANCE_UP, TOLERANCE_DOWN = 0.1, 0.1
UP_RATE, DOWN_RATE = 2.0, 2.0
COOLDOWN_DOWN_S = 300.0
STABLE_S, PANIC_S = 60.0, 10.0
PANIC_THRESHOLD = 2.0


class Apa:
    """One PodAutoscaler a pool."""

    def __init__(self, pools: Mapping[str, Bounds], metric: Callable[[Gauges], float], target: float) -> None:
        self.tick_s, self.window_s = SYNC_S, STABLE_S
        self._metric, self._target = metric, target
        self._cooldowns = {name: _Cooldown(bounds) for name, bounds in pools.items()}

    def look(self, view: View) -> Wanted:
        """Counts alone."""
        return Wanted(
            counts={
                name: self._cooldowns[name].settle(self._replicas(pods), len(pods), view.now_s)
                for name, pods in view.pools.items()
            }
        )

    def _replicas(self, pods: Sequence[Pod]) -> int:
        known = [self._metric(pod.gauges) for pod in pods if pod.gauges is not None]
        current = len(pods)
        if not known:
            return current
        value = sum(known) / len(known)
        ratio = value / self._target
        if ratio > 1.0 + TOLERANCE_UP:
            wanted = min(math.ceil(UP_RATE * current), math.ceil(current * ratio))
        elif ratio < 1.0 - TOLERANCE_DOWN:
            wanted = max(math.floor(current / DOWN_RATE), math.ceil(current * ratio))
        else:
            return current
        return _guarded(wanted, current, len(known), ratio)


class Kpa:
    """The same in Knative's manner."""

    def __init__(self, pools: Mapping[str, Bounds], metric: Callable[[Gauges], float], target: float) -> None:
        self.tick_s, self.window_s = SYNC_S, 0.0
        self._metric, self._target = metric, target
        self._sums: dict[str, deque[tuple[float, float]]] = {name: deque() for name in pools}
        self._panics: dict[str, tuple[float, int]] = {}  # since when there was a reason last, and the most pods since
        self._cooldowns = {name: _Cooldown(bounds) for name, bounds in pools.items()}

    def look(self, view: View) -> Wanted:
        """Counts alone."""
        return Wanted(
            counts={
                name: self._cooldowns[name].settle(self._replicas(name, pods, view.now_s), len(pods), view.now_s)
                for name, pods in view.pools.items()
            }
        )

    def _replicas(self, name: str, pods: Sequence[Pod], now: float) -> int:
        known = [self._metric(pod.gauges) for pod in pods if pod.gauges is not None]
        current = len(pods)
        if not known:
            return current
        sums = self._sums[name]
        sums.append((now, sum(known)))
        while sums[0][0] <= now - STABLE_S:
            sums.popleft()
        stable = _mean(sums, now - STABLE_S) / self._target
        panic = _mean(sums, now - PANIC_S) / self._target
        top, bottom = max(1, math.ceil(UP_RATE * current)), math.floor(current / DOWN_RATE)
        wanted = min(max(math.ceil(stable), bottom), top)
        pressed = min(max(math.ceil(panic), bottom), top)
        since_s, most = self._panics.get(name, (float("-inf"), 0))
        if math.ceil(panic) / max(1, len(known)) >= PANIC_THRESHOLD:
            since_s = now
        if now < since_s + STABLE_S:
            wanted = max(wanted, pressed, most, current)
            self._panics[name] = since_s, wanted
        else:
            self._panics.pop(name, None)
        return _guarded(wanted, current, len(known), stable / current)


class _Cooldown:
    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._recommended: deque[tuple[float, int]] = deque()

    def settle(self, replicas: int, current: int, now: float) -> int:
        self._recommended.append((now, replicas))
        while self._recommended[0][0] <= now - COOLDOWN_DOWN_S:
            self._recommended.popleft()
        if replicas < current:
            replicas = min(current, max(count for _, count in self._recommended))
        return max(self._bounds.least, min(self._bounds.most, replicas))


def _guarded(wanted: int, current: int, ready: int, ratio: float) -> int:
    """The same where pods are pending: they count as metric 0 on the way up, as at the target on the way down."""
    if wanted == current or ready >= current:
        return wanted
    if wanted > current:
        return min(wanted, max(current, math.ceil(ready * ratio)))
    return max(wanted, min(current, math.ceil(ready * ratio + (current - ready))))


def _mean(sums: Sequence[tuple[float, float]], after_s: float) -> float:
    values = [value for at_s, value in sums if at_s > after_s] or [sums[-1][1]]
    return sum(values) / len(values)


def aibrix_apa(autoscaling: Autoscaling, pools: Mapping[str, Bounds], target: float = 0.5) -> Apa:
    """APA on `gpu_cache_usage_perc`, as in its own examples."""
    return Apa(pools, lambda gauges: gauges.kv_usage, target)


def aibrix_kpa(autoscaling: Autoscaling, pools: Mapping[str, Bounds], target: float = 16.0) -> Kpa:
    """KPA on requests, running and waiting."""
    return Kpa(pools, lambda gauges: gauges.running + gauges.waiting, target)

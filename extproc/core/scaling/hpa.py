"""Which number makes a Kubernetes HorizontalPodAutoscaler (HPA) end at the desired instances, tolerance and all.

With a target of type AverageValue the HPA, at N replicas and a metric of v per target, takes ceil(v) replicas if v / N
lies outside 1 ± tolerance, and N otherwise (`GetExternalPerPodMetricReplicas` in Kubernetes'
pkg/controller/podautoscaler/replica_calculator.go). So every v in (desired - 1, desired] ends at `desired` or changes
nothing, whatever N is, and what can be chosen is where in that range v lies:

* down: the least of them, which leaves the tolerance soonest: with 0.1, all steps by one from up to 19 replicas;
* up: the most of them. It is lost in a tolerance of 0.1 for one more than 10 or above (11 / 10 is not more than 1.1),
  and no number ends exactly there. Too few break SLOs while one too many only costs, so then the least count that is
  obeyed is told, and held for as long as the same is desired.

With a tolerance of 0 (`behavior.scaleUp.tolerance`, KEP-4951) all steps are exact. A target of type Value would
multiply by the pods that are Ready: while instances load for minutes, each look would want more of them.
"""

from __future__ import annotations

import math

INSTANCE = 100
"""Of the metric, one instance: the target per replica. Whole, as KEDA before 2.17 reads no fractions."""

TOLERANCE = 0.1
"""`--horizontal-pod-autoscaler-tolerance` of kube-controller-manager, unless it was set."""

_HAIR = 1e-9  # versions of the HPA differ in whether a ratio of exactly 1 + tolerance is within it


class Steering:
    """What one HPA has been told of one pool: the way up depends on where it was led to before."""

    __slots__ = ("_desired", "_down", "_led", "_tolerance")

    def __init__(self, tolerance: float = TOLERANCE) -> None:
        self._tolerance = tolerance
        self._desired: int | None = None  # when last asked
        self._led = 0  # instances that the HPA has or will have from what it was told
        self._down = False

    def metric(self, desired: int, seen: int) -> int:
        """The metric's value, in hundredths of an instance. `seen`: instances that are there, draining ones included.

        Fewer may be seen than the HPA counts, as pods register only when they run.
        """
        if desired != self._desired:
            self._turn(desired, seen)
        if desired > 0 and (self._down or seen > self._led):
            return INSTANCE * (desired - 1) + 1
        return INSTANCE * self._led

    def _turn(self, desired: int, seen: int) -> None:
        before = max(seen, self._led)
        self._down = self._desired is not None and desired < self._desired
        self._desired = self._led = desired
        if 0 < before < desired and desired / before <= 1 + self._tolerance + _HAIR:
            self._led = math.floor(before * (1 + self._tolerance) + _HAIR) + 1

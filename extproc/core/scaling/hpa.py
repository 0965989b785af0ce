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
_SETTLED = 4  # times that a number was asked for, after which the HPA itself was among those who asked


class Steering:
    """What one HPA has been told of one pool, and which replicas it may have by that: the way up depends on them.

    Not all who ask are the HPA (KEDA looks by itself, too), and pods register only when they run.
    """

    __slots__ = ("_asked", "_desired", "_maybe", "_tolerance", "_value")

    def __init__(self, tolerance: float = TOLERANCE) -> None:
        self._tolerance = tolerance
        self._desired: int | None = None  # when last asked
        self._maybe: frozenset[int] = frozenset()  # replicas that the HPA may have
        self._value = 0
        self._asked = 0  # times, since that is the value

    def metric(self, desired: int, seen: int) -> int:
        """The metric's value, in hundredths of an instance.

        `desired` are replicas, `seen` instances there, draining and broken ones included.
        """
        more = seen > max(self._maybe, default=0)
        if more:
            self._maybe = frozenset((seen,))
        if more or desired != self._desired:
            self._desired, self._value, self._asked = desired, self._towards(desired), 0
        self._asked += 1
        led = frozenset(after for replicas in self._maybe for after in self._led(replicas))
        self._maybe = led if self._asked >= _SETTLED else self._maybe | led
        return self._value

    def _towards(self, desired: int) -> int:
        fewer = max((replicas for replicas in self._maybe if 0 < replicas < desired), default=0)
        if fewer:
            lost = desired <= fewer * (1 + self._tolerance) + _HAIR
            return INSTANCE * (math.floor(fewer * (1 + self._tolerance) + _HAIR) + 1 if lost else desired)
        if desired > 0 and any(replicas > desired for replicas in self._maybe):
            return INSTANCE * (desired - 1) + 1
        return INSTANCE * desired

    def _led(self, replicas: int) -> tuple[int, ...]:
        """Where the HPA goes from so many: both ways if versions of it differ. KEDA alone leads from and to zero."""
        goal = max(1, math.ceil(self._value / INSTANCE))
        if replicas == 0:
            return (goal,) if self._value else (0,)
        beyond = abs(self._value / INSTANCE / replicas - 1) - self._tolerance
        if abs(beyond) < _HAIR:
            return replicas, goal
        return (goal,) if beyond > 0 else (replicas,)

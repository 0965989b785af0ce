"""Metrics of requests in shadow: what would have become of them, and how far Envoy's own choice is from ours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from extproc.core.reasons.measured import measured_s
from extproc.core.rollout import Went
from extproc.core.values.outcome import Outcome
from extproc.observe.counts import Count, Spread
from extproc.stream.shadow import Shadow

_REGRETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_GAINS_S = (-10.0, -2.5, -1.0, -0.5, -0.1, -0.025, 0.0, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0)


class ShadowMetrics(Collector):
    """Those of one process."""

    def __init__(self) -> None:
        text = "Requests in shadow by what would have become of them."
        self._requests = Count("extproc_shadow_requests", text, "would", "reason")
        text = "Requests in shadow by whether Envoy sent them where we would have."
        self._agreement = Count("extproc_shadow_agreement", text, "agreed")
        text = "Requests in shadow that Envoy sent where we never would, by the constraint that they failed there."
        self._unfit = Count("extproc_shadow_unfit", text, "reason")
        text = "Seconds that requests in shadow cost more where Envoy sent them than at the cheapest, as predicted."
        self._regret = Spread("extproc_shadow_regret_seconds", text, _REGRETS_S)
        text = "Actual TTFT of requests in shadow, less that predicted where we would have sent them."
        self._gain = Spread("extproc_shadow_ttft_gain_seconds", text, _GAINS_S)

    def decided(self, shadow: Shadow) -> None:
        """It is known what would become of a request."""
        self._requests.add((shadow.would, shadow.reason))

    def seen(self, went: Went) -> None:
        """It is known where Envoy sent one."""
        self._agreement.add(("yes" if went.agrees else "no",))
        if went.unfit is not None:
            self._unfit.add((went.unfit,))
        if went.regret_s is not None:
            self._regret.observe((), went.regret_s)

    def finished(self, outcome: Outcome) -> None:
        """A request has ended, perhaps one in shadow; only an answer that was streamed at once tells a TTFT."""
        features, ttft_s = outcome.features, measured_s(outcome)[0]
        if features is None or ttft_s is None or outcome.attempts > 1 or not 200 <= outcome.status < 300:
            return
        self._gain.observe((), ttft_s - features.shadow_ttft_s)

    def collect(self) -> Iterator[Metric]:
        """What was counted."""
        parts: Iterable[Count | Spread] = (self._requests, self._agreement, self._unfit, self._regret, self._gain)
        for part in parts:
            yield from part.collect()

"""Metrics of predictions beside what came. Labels are bounded: models, kinds of instances, terms of the cost."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import msgspec
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc.core.reasons.measured import Served, measured_s, prediction_errors
from extproc.core.values.decision import Cost
from extproc.core.values.outcome import Features, Outcome
from extproc.observe.counts import Count, Spread

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TPOT_SECONDS = (0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.2, 0.5)
_RATIOS = (0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0)  # actual over predicted
_SHARES = (-0.5, -0.2, -0.1, -0.05, -0.01, 0.01, 0.05, 0.1, 0.2, 0.5)  # of a prompt, cached more than believed
_MOST_KINDS = 64  # pairs of model and instance kind that have histograms of their own at a time


class PredictionMetrics:
    """Counts what was predicted when requests were sent, and what came when they ended."""

    def __init__(self) -> None:
        self._costs = _Costs()
        self._believed = Count("extproc_believed_cached_tokens", "Prompt tokens believed to be cached.", "model")
        self._expected = Count(
            "extproc_expected_output_tokens", "Output tokens expected of requests whose engine told theirs.", "model"
        )
        self._ttft = Spread("extproc_ttft_seconds", "Time to the first body byte.", SECONDS, "model")
        self._predicted_ttft = Spread("extproc_predicted_ttft_seconds", "TTFT as predicted.", SECONDS, "model")
        self._tpot = Spread("extproc_tpot_seconds", "Time per output token.", _TPOT_SECONDS, "model")
        text = "TPOT as predicted, of the same requests."
        self._predicted_tpot = Spread("extproc_predicted_tpot_seconds", text, _TPOT_SECONDS, "model")
        of = ("model", "kind")
        self._ttft_ratio = Spread("extproc_ttft_ratio", "Actual over predicted TTFT.", _RATIOS, *of, most=_MOST_KINDS)
        self._tpot_ratio = Spread("extproc_tpot_ratio", "Actual over predicted TPOT.", _RATIOS, *of, most=_MOST_KINDS)
        text = "Share of the prompt that was cached beyond what was believed."
        self._cached_error = Spread("extproc_cached_share_error", text, _SHARES, *of, most=_MOST_KINDS)

    def collectors(self) -> tuple[Collector, ...]:
        """What a registry is to show."""
        return (
            self._costs, self._believed, self._expected, self._ttft, self._predicted_ttft, self._tpot,
            self._predicted_tpot, self._ttft_ratio, self._tpot_ratio, self._cached_error,
        )  # fmt: skip

    def routed(self, features: Features) -> None:
        """A request was sent to an instance."""
        self._believed.add((features.model,), features.cached_tokens)
        self._predicted_ttft.observe((features.model,), features.ttft_s)

    def priced(self, cost: Cost) -> None:
        """That is what it costs there."""
        self._costs.add(cost)

    def finished(self, features: Features, outcome: Outcome, served: Served | None) -> None:
        """A request that was decided upon has ended. `served`: the instance that answered, None if it is not known."""
        model = (features.model,)
        if outcome.completion_tokens is not None:
            self._expected.add(model, features.output_tokens)
        if outcome.ttft_s is not None:
            self._ttft.observe(model, outcome.ttft_s)
        if (tpot_s := measured_s(outcome)[1]) is not None:
            self._tpot.observe(model, tpot_s)
            self._predicted_tpot.observe(model, features.tpot_s)
        if served is not None:
            self._compare(features, outcome, served)

    def _compare(self, features: Features, outcome: Outcome, served: Served) -> None:
        """What was predicted against what was measured, as far as they can be compared."""
        errors = prediction_errors(outcome, served.key)
        labels = (features.model, served.kind)
        for histogram, value in (
            (self._ttft_ratio, errors.ttft_ratio),
            (self._tpot_ratio, errors.tpot_ratio),
            (self._cached_error, errors.cached_share),
        ):
            if value is not None:
                histogram.observe(labels, value)


_TERMS = tuple(name.removesuffix("_s") for name in Cost.__struct_fields__ if name != "total_s")


class _Costs(Collector):
    """Sums of each term of the cost, over all requests that were sent to an instance."""

    def __init__(self) -> None:
        self._sums_s = dict.fromkeys(_TERMS, 0.0)

    def add(self, cost: Cost) -> None:
        """Count one more; a term that is no finite number would hide all that came before."""
        sums_s = self._sums_s
        for term, seconds in zip(_TERMS, msgspec.structs.astuple(cost)[1:], strict=True):
            if 0.0 < seconds < inf:
                sums_s[term] += seconds

    def collect(self) -> Iterator[Metric]:
        text = "Seconds that decisions took their instances to cost, before the weights of classes."
        family = CounterMetricFamily("extproc_cost_seconds", text, labels=["term"])
        for term, seconds in self._sums_s.items():
            family.add_metric([term], seconds)
        yield family

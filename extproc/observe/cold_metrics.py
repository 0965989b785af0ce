"""Metrics of models that are wanted and loaded nowhere. Labels are bounded: known models, results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


@dataclass(frozen=True, slots=True)
class ColdCounts:
    """What is read at the moment of a scrape; all by model but the last."""

    asked: Mapping[str, int]  # requests that came while it was cold, since the start
    waiting: Mapping[str, int]  # of those, held now
    wanted: frozenset[str]  # load intents, of all routers
    start_s: Mapping[str, float]  # what is believed that a start takes
    told: Mapping[str, int]  # messages to the webhook, by what became of them


class ColdCollector(Collector):
    """Reads the counts when it is asked."""

    def __init__(self, read: Callable[[], ColdCounts]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """All families."""
        counts = self._read()
        text = "Requests for models that were known and loaded nowhere."
        asked = CounterMetricFamily("extproc_cold_requests", text, labels=["model"])
        waiting = GaugeMetricFamily(
            "extproc_cold_waiting", "Requests held until their model is served.", labels=["model"]
        )
        wanted = GaugeMetricFamily(
            "extproc_load_intents", "1 for each model that is wanted and cold.", labels=["model"]
        )
        start = GaugeMetricFamily("extproc_cold_start_seconds", "What a start is believed to take.", labels=["model"])
        text = "Messages on load intents, by what became of them."
        told = CounterMetricFamily("extproc_intent_webhooks", text, labels=["result"])
        for family, values in (
            (asked, counts.asked),
            (waiting, counts.waiting),
            (wanted, dict.fromkeys(counts.wanted, 1)),
            (start, counts.start_s),
            (told, counts.told),
        ):
            for label, value in values.items():
                family.add_metric([label], value)
            yield family

"""Metrics of the configuration: when it was last taken, and what became of attempts to take another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

DONE, FAILED = "done", "failed"


@dataclass(slots=True)
class ReloadCounts:
    """What is read at the moment of a scrape."""

    loaded_at_s: float  # Unix time at which the settings in force were taken
    reloads: Counter[str] = field(default_factory=Counter)  # by what became of them


class ConfigCollector(Collector):
    """Reads the counts when it is asked."""

    def __init__(self, counts: ReloadCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """All families."""
        text = "Attempts to take settings that changed while the service ran; failed: the old ones stay in force."
        reloads = CounterMetricFamily("extproc_config_reloads", text, labels=["result"])
        for result in (DONE, FAILED):
            reloads.add_metric([result], self._counts.reloads[result])
        yield reloads
        text = "Unix time at which the settings in force were taken."
        yield GaugeMetricFamily("extproc_config_loaded_timestamp_seconds", text, value=self._counts.loaded_at_s)

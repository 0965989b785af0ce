"""Metrics of the configuration: when it was last taken, and what became of attempts to take another."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc.config_file.reload import DONE, FAILED, ReloadCounts


class ConfigCollector(Collector):
    """Reads the counts when it is asked."""

    def __init__(self, counts: ReloadCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """All families."""
        text = "Attempts to take settings that changed while the command ran; failed: the old ones stay in force."
        reloads = CounterMetricFamily("extproc_config_reloads", text, labels=["result"])
        for result in (DONE, FAILED):
            reloads.add_metric([result], self._counts.reloads[result])
        yield reloads
        text = "Unix time at which the settings in force were taken."
        yield GaugeMetricFamily("extproc_config_loaded_timestamp_seconds", text, value=self._counts.loaded_at_s)

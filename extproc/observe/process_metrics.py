"""Metrics of a process itself: its version, its memory, CPU time and open files as Linux tells them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc import __version__


def add_process(registry: CollectorRegistry) -> None:
    """Show them on the page of `registry`. Elsewhere than on Linux the version alone is there."""
    registry.register(_Version())
    ProcessCollector(registry=registry)


class _Version(Collector):
    def collect(self) -> Iterator[Metric]:
        text = "1, with the version of the program."
        told = GaugeMetricFamily("extproc_build_info", text, labels=["version"])
        told.add_metric([__version__], 1.0)
        yield told

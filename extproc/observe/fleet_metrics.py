"""Metrics of the fleet as a router sees it. Labels are bounded: lifecycles, and instances up to `MOST_INSTANCES`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc.core.values.instance import Lifecycle

MOST_INSTANCES = 2000
"""Of a larger fleet the first ones by id have series of their own; counts by lifecycle are of all."""


@dataclass(frozen=True, slots=True)
class FleetGauges:
    """What is read at the moment of a scrape. What an engine does not tell is absent."""

    lifecycles: Mapping[Lifecycle, int]
    running: Mapping[str, int] = field(default_factory=dict)  # requests by instance, as the three below
    waiting: Mapping[str, int] = field(default_factory=dict)
    kv_usage: Mapping[str, float] = field(default_factory=dict)  # 0 to 1
    backlog_s: Mapping[str, float] = field(default_factory=dict)


class FleetCollector(Collector):
    """Reads the gauges when it is asked."""

    def __init__(self, read: Callable[[], FleetGauges]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """All families."""
        gauges = self._read()
        number = GaugeMetricFamily("extproc_instances", "Instances by lifecycle.", labels=["lifecycle"])
        for lifecycle in Lifecycle:
            number.add_metric([lifecycle], gauges.lifecycles.get(lifecycle, 0))
        yield number
        for name, text, values in (
            ("running_requests", "Requests in the engine's batch, as it told last.", gauges.running),
            ("waiting_requests", "Requests in the engine's own queue, as it told last.", gauges.waiting),
            ("kv_usage_share", "Share of KV blocks that running requests hold, as it told last.", gauges.kv_usage),
            ("prefill_backlog_seconds", "Prompts that were sent and are not computed yet.", gauges.backlog_s),
        ):
            family = GaugeMetricFamily(f"extproc_instance_{name}", text, labels=["instance"])
            for instance, value in values.items():
                family.add_metric([instance], value)
            yield family

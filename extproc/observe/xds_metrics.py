"""Prometheus metrics of the control plane. Labels are bounded: types and kinds of streams, never Envoys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from extproc.observe.process_metrics import add_process

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


@dataclass(frozen=True, slots=True)
class XdsGauges:
    """What is read at the moment of a scrape."""

    streams: Mapping[tuple[str, str], int]  # open ones, by transport and protocol
    unanswered: Mapping[str, int]  # pushes that no Envoy has answered yet, by type
    resources: Mapping[str, int]  # by type
    endpoints: Mapping[str, int]  # by health
    registry_silence_s: float


class XdsMetrics:
    """All metrics of one control plane, in a registry of their own."""

    def __init__(self, read_gauges: Callable[[], XdsGauges]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_LiveGauges(read_gauges))
        add_process(self._registry)
        self._pushes = self._counter("pushes", "Responses sent to Envoys.", "type")
        self._acks = self._counter("acks", "Responses that an Envoy has taken over.", "type")
        self._nacks = self._counter("nacks", "Responses that an Envoy has refused, in whole or in part.", "type")
        self._publications = self._counter("publications", "Changes of what is published.")
        self._build = Histogram(
            "extproc_xds_build_seconds",
            "Time from a look at the fleet to the resources.",
            buckets=_SECONDS,
            registry=self._registry,
        )

    def pushed(self, kind: str) -> None:
        """A response was sent."""
        self._pushes.labels(kind).inc()

    def acked(self, kind: str) -> None:
        """An Envoy has taken a response over."""
        self._acks.labels(kind).inc()

    def nacked(self, kind: str) -> None:
        """An Envoy has refused a response."""
        self._nacks.labels(kind).inc()

    def published(self, took_s: float) -> None:
        """There are new resources, which took this long to build."""
        self._publications.inc()
        self._build.observe(took_s)

    def page(self) -> bytes:
        """The page that Prometheus scrapes, in its text format."""
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        counter = Counter(f"extproc_xds_{name}", text, labels, registry=self._registry)
        if labels:
            for kind in ("cluster", "endpoint"):
                counter.labels(kind)  # shown as 0 from the start: a rate needs to see the first one
        return counter


class _LiveGauges(Collector):
    def __init__(self, read: Callable[[], XdsGauges]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        gauges = self._read()
        streams = GaugeMetricFamily("extproc_xds_streams", "Open streams.", labels=["transport", "protocol"])
        for labels, number in gauges.streams.items():
            streams.add_metric(list(labels), number)
        yield streams
        for name, text, label, values in (
            ("unanswered", "Pushes that have not been answered yet.", "type", gauges.unanswered),
            ("resources", "Resources that are published.", "type", gauges.resources),
            ("endpoints", "Instances that are published.", "health", gauges.endpoints),
        ):
            family = GaugeMetricFamily(f"extproc_xds_{name}", text, labels=[label])
            for value, number in values.items():
                family.add_metric([value], number)
            yield family
        text = "Since Redis was last heard."
        yield GaugeMetricFamily("extproc_registry_silence_seconds", text, gauges.registry_silence_s)

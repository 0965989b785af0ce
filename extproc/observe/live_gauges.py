"""Metrics that are read from the router's state at the moment of a scrape, so that the request path never sets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isnan

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc.core.fleet.degradation import Rung
from extproc.core.limits.counts import LimitCounts
from extproc.core.tokens.output_lengths import Calibration
from extproc.core.values.instance import Totals
from extproc.core.values.request import RequestClass
from extproc.observe.limit_metrics import limit_metrics

TOKEN_KINDS = ("prompt", "completion", "cached")
"""Labels of tokens that were counted."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """What is known of the other routers of the fleet."""

    peers: int = 0
    requests: int = 0  # that they have open
    lost_batches: int = 0
    expired: int = 0
    unusable: int = 0  # messages


@dataclass(frozen=True, slots=True)
class Rungs:
    """Where the router stands on the degrade ladder."""

    held: frozenset[Rung] = frozenset()
    entered: Mapping[Rung, int] = field(default_factory=dict)  # how often


@dataclass(frozen=True, slots=True)
class Guards:
    """What was kept out, and until when the service's certificate lets it in at Envoy's."""

    streams_refused: int = 0
    rollout_share: float = 1.0  # of requests; the others are looked at in shadow alone
    records_refused: Mapping[str, int] = field(default_factory=dict)  # of the registry, by reason
    certificate_expires_at_s: float | None = None  # of the epoch; None without TLS
    certificates_refused: int = 0  # new files that could not be used


@dataclass(frozen=True, slots=True)
class Gauges:
    """What is read at the moment of a scrape."""

    in_flight: Mapping[str, int]  # by instance id
    ages_s: Mapping[str, float]  # by instance id
    registry_silence_s: float
    calibration: Mapping[tuple[str, str], Calibration]  # of output lengths, by model and API
    prefix_entries: Mapping[str, int] = field(default_factory=dict)  # by how they are known
    kv_refused: int = 0  # blocks that engines told of and that found no room
    prefix_agreement: Mapping[tuple[str, str, str], float] = field(default_factory=dict)  # instance, model, source
    exact_counts: Mapping[str, int] = field(default_factory=dict)  # wishes for one, by what became of them
    bodies_apart: Mapping[str, int] = field(default_factory=dict)  # large ones, by what became of reading them
    replicas: Replicas = field(default_factory=Replicas)
    rungs: Rungs = field(default_factory=Rungs)
    guards: Guards = field(default_factory=Guards)
    totals: Mapping[str, Totals] = field(default_factory=dict)  # by instance id, of engines that tell theirs
    strict_unsettled: int | None = None  # requests that Redis did not settle in time; None without strict mode
    held: Mapping[RequestClass, int] | None = None  # requests, by class; None without admission
    left: Mapping[RequestClass, int] = field(default_factory=dict)  # whose stream ended while they were held
    limits: LimitCounts | None = None  # None without limits


class LiveGauges(Collector):
    """The metrics of what `read` tells."""

    def __init__(self, read: Callable[[], Gauges]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """All families."""
        gauges = self._read()
        yield _gauge("in_flight", "Our open requests.", "instance", gauges.in_flight)
        yield _gauge("instance_age_seconds", "Age of the last report.", "instance", gauges.ages_s)
        within = GaugeMetricFamily(
            "extproc_output_within_share",
            "Share of answers within the length stated for this share of them.",
            labels=["model", "api", "quantile"],
        )
        for (model, api), held in gauges.calibration.items():
            for quantile, share in (("0.5", held.under_p50), ("0.9", held.under_p90)):
                if not isnan(share):
                    within.add_metric([model, api, quantile], share)
        yield within
        yield from _prefix_gauges(gauges)
        yield _count("exact_counts", "Exact token counts wished for.", "outcome", gauges.exact_counts)
        text = "Large bodies read off the event loop; decided upon by their size if not in time."
        yield _count("bodies_apart", text, "outcome", gauges.bodies_apart)
        silence = GaugeMetricFamily("extproc_registry_silence_seconds", "Since Redis was last heard.")
        silence.add_metric([], gauges.registry_silence_s)
        yield silence
        yield from _of_engines(gauges.totals)
        yield from _of_replicas(gauges.replicas)
        yield from _of_rungs(gauges.rungs)
        yield from _of_guards(gauges.guards)
        if gauges.held is not None:
            yield from _of_holding(gauges.held, gauges.left)
        if gauges.limits is not None:
            yield from limit_metrics(gauges.limits)
        if gauges.strict_unsettled is not None:
            text = "Requests that Redis did not settle within the budget."
            yield CounterMetricFamily("extproc_strict_unsettled", text, gauges.strict_unsettled)


def _of_holding(held: Mapping[RequestClass, int], left: Mapping[RequestClass, int]) -> Iterator[Metric]:
    waiting = GaugeMetricFamily("extproc_held", "Requests that are held.", labels=["class"])
    gone = CounterMetricFamily(
        "extproc_held_left", "Requests whose stream ended while they were held.", labels=["class"]
    )
    for kind in RequestClass:
        waiting.add_metric([kind], held.get(kind, 0))
        gone.add_metric([kind], left.get(kind, 0))
    yield waiting
    yield gone


def _of_guards(guards: Guards) -> Iterator[Metric]:
    text = "Requests beyond --max-streams, left to Envoy, or refused where there is admission."
    yield CounterMetricFamily("extproc_streams_refused", text, guards.streams_refused)
    text = "Share of requests that are routed; the others are in shadow."
    yield GaugeMetricFamily("extproc_rollout_share", text, guards.rollout_share)
    text = "Records of the registry that are not allowed, each time that they came."
    yield _count("records_refused", text, "reason", guards.records_refused)
    if guards.certificate_expires_at_s is not None:
        text = "End of the service's certificate, in seconds of the epoch."
        yield GaugeMetricFamily("extproc_certificate_expiry_seconds", text, guards.certificate_expires_at_s)
        text = "New certificate files that could not be used."
        yield CounterMetricFamily("extproc_certificates_refused", text, guards.certificates_refused)


def _of_engines(totals: Mapping[str, Totals]) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "extproc_engine_requests", "Requests ended, by an engine's count.", labels=["instance"]
    )
    tokens = CounterMetricFamily("extproc_engine_tokens", "Tokens, by an engine's count.", labels=["instance", "kind"])
    for instance, counted in totals.items():
        if counted.requests is not None:
            requests.add_metric([instance], counted.requests)
        counts = (counted.prompt_tokens, counted.output_tokens, counted.cached_tokens)
        for kind, count in zip(TOKEN_KINDS, counts, strict=True):
            if count is not None:
                tokens.add_metric([instance, kind], count)
    yield requests
    yield tokens


def _of_rungs(rungs: Rungs) -> Iterator[Metric]:
    held = GaugeMetricFamily("extproc_degraded", "1 while the router is degraded in this way.", labels=["rung"])
    entered = CounterMetricFamily("extproc_degradations", "Times that this began.", labels=["rung"])
    for rung in Rung:
        held.add_metric([rung], float(rung in rungs.held))
        entered.add_metric([rung], rungs.entered.get(rung, 0))
    yield held
    yield entered


def _of_replicas(known: Replicas) -> Iterator[Metric]:
    yield GaugeMetricFamily("extproc_peers", "Other routers of the fleet that are heard.", known.peers)
    yield GaugeMetricFamily("extproc_peer_requests", "Open requests of other routers.", known.requests)
    yield CounterMetricFamily("extproc_peers_expired", "Routers whose lease ran out.", known.expired)
    yield CounterMetricFamily("extproc_peer_batches_lost", "Lost messages of routers.", known.lost_batches)
    yield CounterMetricFamily("extproc_peer_messages_unusable", "Messages that were no batch.", known.unusable)


def _prefix_gauges(gauges: Gauges) -> Iterator[Metric]:
    yield _gauge("prefix_entries", "Blocks believed to be held.", "source", gauges.prefix_entries)
    yield GaugeMetricFamily("extproc_kv_refused_blocks", "Told of, not taken in for want of room.", gauges.kv_refused)
    agreement = GaugeMetricFamily(
        "extproc_prefix_agreement_share",
        "How far engines' cached tokens bear out what was believed of them.",
        labels=["instance", "model", "source"],
    )
    for labels, share in gauges.prefix_agreement.items():
        agreement.add_metric(list(labels), share)
    yield agreement


def _gauge(name: str, text: str, label: str, numbers: Mapping[str, float]) -> Metric:
    return _filled(GaugeMetricFamily(f"extproc_{name}", text, labels=[label]), numbers)


def _count(name: str, text: str, label: str, numbers: Mapping[str, float]) -> Metric:
    return _filled(CounterMetricFamily(f"extproc_{name}", text, labels=[label]), numbers)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, numbers: Mapping[str, float]) -> Metric:
    for value, number in numbers.items():
        family.add_metric([value], number)
    return family

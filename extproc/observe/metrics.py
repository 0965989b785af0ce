"""Prometheus metrics of the service. Labels are bounded: models, APIs, reasons and instances, never requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isnan

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from extproc.core.fleet.degradation import Rung
from extproc.core.limits.counts import LimitCounts
from extproc.core.reasons.measured import Served
from extproc.core.tokens.output_lengths import Calibration
from extproc.core.values.decision import Cost, Reason
from extproc.core.values.instance import Totals, id_of
from extproc.core.values.outcome import Features, Outcome
from extproc.core.values.request import RequestClass
from extproc.observe.counts import Count, Spread
from extproc.observe.limit_metrics import limit_metrics
from extproc.observe.prediction_metrics import SECONDS, PredictionMetrics
from extproc.observe.process_metrics import add_process
from extproc.observe.shadow_metrics import ShadowMetrics

_DECIDE_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1)
_ROUTING_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)
_TOKENS = ("prompt", "completion", "cached")


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


class Metrics:
    """All metrics of one process, in a registry of their own."""

    def __init__(self, read_gauges: Callable[[], Gauges]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_LiveGauges(read_gauges))
        self._requests = self._counter("requests", "Requests by what was done with them.", "action", "reason")
        self._routed = self._counter("routed_requests", "Requests routed to each instance.", "instance", "model")
        of_name = "Requests for a name that the operator lets stand for models, by the model that was chosen."
        self._chosen_models = self._counter("model_choices", of_name, "asked", "model")
        self._outcomes = self._counter("outcomes", "Finished requests by HTTP status.", "status", "routed")
        self._retries = self._counter("retries", "Further attempts that Envoy made.")
        self._tokens = self._counter("tokens", "Tokens that engines reported.", "kind", "model")
        self._decide = self._histogram("reply_seconds", "Time to answer the request's body.", _DECIDE_SECONDS)
        text = "Until Envoy began to send requests to an engine, what deciding and holding took included."
        self._routing = self._histogram("routing_seconds", text, _ROUTING_SECONDS, "model")
        self._duration = self._histogram("request_seconds", "Duration of requests.", SECONDS, "model")
        self._held = self._histogram("held_seconds", "Time for which requests were held.", SECONDS, "class", "end")
        self._shed = self._counter("shed", "Requests refused for want of room, or of time.", "class", "reason")
        self.shadow = ShadowMetrics()
        self._registry.register(self.shadow)
        self._predictions = PredictionMetrics()
        for collector in self._predictions.collectors():
            self._registry.register(collector)
        add_process(self._registry)

    def add(self, collector: Collector) -> None:
        """Show metrics of another file on the same page."""
        self._registry.register(collector)

    def routed(self, features: Features, took_s: float) -> None:
        """A request was sent to an instance; answering took `took_s`."""
        self._requests.add(("routed", ""))
        self._routed.add((id_of(features.instance_key), features.model))
        self._predictions.routed(features)
        self._decide.observe((), took_s)

    def priced(self, cost: Cost) -> None:
        """That is what a request costs where it was sent."""
        self._predictions.priced(cost)

    def chose_model(self, asked: str, model: str) -> None:
        """A request was sent to another model than the one that it names: a name of the operator's, or a fallback."""
        self._chosen_models.add((asked, model))

    def answered(self, reason: str) -> None:
        """A request was answered in the engine's place: refused, or told what the router knows itself."""
        self._requests.add(("answered", reason))

    def held(self, request_class: RequestClass, held_s: float, end: str) -> None:
        """A request was held for so long, and then let go or shed (`end`)."""
        self._held.observe((request_class, end), held_s)

    def shed(self, request_class: RequestClass, reason: Reason) -> None:
        """A request was refused since it would not have been served well."""
        self._shed.add((request_class, reason))

    def passed_on(self, reason: str) -> None:
        """A request was left to Envoy's own balancing."""
        self._requests.add(("passed_on", reason))

    def finished(self, outcome: Outcome, served: Served | None) -> None:
        """A request has ended. `served`: the instance that answered, None if that is not known."""
        features = outcome.features
        in_shadow = features is not None and bool(features.shadow_key)
        self._outcomes.add((str(outcome.status), _routed(outcome)))
        if in_shadow:
            self.shadow.finished(outcome)
        if outcome.attempts > 1:
            self._retries.add((), outcome.attempts - 1)
        if features is None:
            return
        counts = (outcome.prompt_tokens, outcome.completion_tokens, outcome.cached_tokens)
        for kind, count in zip(_TOKENS, counts, strict=True):
            if count is not None:
                self._tokens.add((kind, features.model), count)
        if outcome.routing_s is not None:
            self._routing.observe((features.model,), outcome.routing_s)
        self._duration.observe((features.model,), outcome.duration_s)
        self._predictions.finished(features, outcome, served)

    def page(self) -> bytes:
        """The page that Prometheus scrapes, in its text format."""
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Count:
        count = Count(f"extproc_{name}", text, *labels)
        self._registry.register(count)
        return count

    def _histogram(self, name: str, text: str, bounds: Iterable[float], *labels: str) -> Spread:
        spread = Spread(f"extproc_{name}", text, bounds, *labels)
        self._registry.register(spread)
        return spread


def _routed(outcome: Outcome) -> str:
    """Whether Envoy was told where the request goes; what a router of another version told it is not known."""
    if outcome.features is None:
        return "unknown" if outcome.features_unread else "false"
    return "false" if outcome.features.shadow_key else "true"


class _LiveGauges(Collector):
    """Gauges that are read from the state when asked, so that the request path never sets them."""

    def __init__(self, read: Callable[[], Gauges]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        gauges = self._read()
        in_flight = GaugeMetricFamily("extproc_in_flight", "Our open requests.", labels=["instance"])
        for instance_id, count in gauges.in_flight.items():
            in_flight.add_metric([instance_id], count)
        yield in_flight
        ages = GaugeMetricFamily("extproc_instance_age_seconds", "Age of the last report.", labels=["instance"])
        for instance_id, age_s in gauges.ages_s.items():
            ages.add_metric([instance_id], age_s)
        yield ages
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
        yield _by_outcome("extproc_exact_counts", "Exact token counts wished for.", gauges.exact_counts)
        text = "Large bodies read off the event loop; decided upon by their size if not in time."
        yield _by_outcome("extproc_bodies_apart", text, gauges.bodies_apart)
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
    text = "Records of the registry that are not allowed, each time that they came."
    text_of_share = "Share of requests that are routed; the others are in shadow."
    yield GaugeMetricFamily("extproc_rollout_share", text_of_share, guards.rollout_share)
    refused = CounterMetricFamily("extproc_records_refused", text, labels=["reason"])
    for reason, number in guards.records_refused.items():
        refused.add_metric([reason], number)
    yield refused
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
        for kind, count in zip(_TOKENS, counts, strict=True):
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


def _by_outcome(name: str, text: str, numbers: Mapping[str, int]) -> Metric:
    counts = CounterMetricFamily(name, text, labels=["outcome"])
    for outcome, number in numbers.items():
        counts.add_metric([outcome], number)
    return counts


def _prefix_gauges(gauges: Gauges) -> Iterator[Metric]:
    entries = GaugeMetricFamily("extproc_prefix_entries", "Blocks believed to be held.", labels=["source"])
    for source, number in gauges.prefix_entries.items():
        entries.add_metric([source], number)
    yield entries
    yield GaugeMetricFamily("extproc_kv_refused_blocks", "Told of, not taken in for want of room.", gauges.kv_refused)
    agreement = GaugeMetricFamily(
        "extproc_prefix_agreement_share",
        "How far engines' cached tokens bear out what was believed of them.",
        labels=["instance", "model", "source"],
    )
    for labels, share in gauges.prefix_agreement.items():
        agreement.add_metric(list(labels), share)
    yield agreement

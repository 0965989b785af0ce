"""Prometheus metrics of the service. Labels are bounded: models, APIs, reasons and instances, never requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from extproc.core.reasons.measured import Served
from extproc.core.values.decision import Cost, Reason
from extproc.core.values.instance import id_of
from extproc.core.values.outcome import Features, Outcome
from extproc.core.values.request import RequestClass
from extproc.observe.counts import Count, Spread
from extproc.observe.live_gauges import TOKEN_KINDS, Gauges, LiveGauges
from extproc.observe.prediction_metrics import SECONDS, PredictionMetrics
from extproc.observe.process_metrics import add_process
from extproc.observe.shadow_metrics import ShadowMetrics

_DECIDE_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1)
_ROUTING_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)


class Metrics:
    """All metrics of one process, in a registry of their own."""

    def __init__(self, read_gauges: Callable[[], Gauges]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(LiveGauges(read_gauges))
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
        for kind, count in zip(TOKEN_KINDS, counts, strict=True):
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

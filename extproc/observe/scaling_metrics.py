"""Prometheus metrics of the autoscaler. Labels are bounded: the operator's pools, and signals; never instances."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from extproc.core.scaling.recommendation import Recommendation
from extproc.core.scaling.replicas import replicas
from extproc.observe.process_metrics import add_process

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingGauges:
    """What is read at the moment of a scrape."""

    recommendations: Sequence[Recommendation]
    fresh: bool  # else they are too old to be told: an old number is no number
    age_s: float | None  # of the recommendations; None: there are none
    pending: Mapping[str, int] = field(default_factory=dict)  # starts asked for and not told of, by pool
    outside: int = 0  # instances that belong to no pool
    leads: bool = False
    actions: Mapping[tuple[str, str, str], int] = field(default_factory=dict)  # by kind, pool and result
    messages: Mapping[str, int] = field(default_factory=dict)  # to the webhook, by what became of them
    registry_silence_s: float = 0.0


class ScalingMetrics:
    """All metrics of one autoscaler, in a registry of their own."""

    def __init__(self, read_gauges: Callable[[], ScalingGauges]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Live(read_gauges))
        add_process(self._registry)
        self._look = Histogram(
            "extproc_autoscale_look_seconds",
            "Time that a look took, what it reads from Redis included.",
            buckets=_SECONDS,
            registry=self._registry,
        )

    def add(self, collector: Collector) -> None:
        """Show more on the page."""
        self._registry.register(collector)

    def looked(self, took_s: float) -> None:
        """A look was made, which took this long."""
        self._look.observe(took_s)

    def page(self) -> bytes:
        """The page that Prometheus scrapes, in its text format."""
        return generate_latest(self._registry)


class _Live(Collector):
    def __init__(self, read: Callable[[], ScalingGauges]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        gauges = self._read()
        if gauges.fresh:
            yield from _instances(gauges)
            yield from _forecasts(gauges.recommendations)
            text = "Instances that belong to no pool: nobody counts on them."
            yield GaugeMetricFamily("extproc_instances_outside_pools", text, gauges.outside)
        if gauges.age_s is not None:
            text = "Since what is recommended was worked out."
            yield GaugeMetricFamily("extproc_recommendation_age_seconds", text, gauges.age_s)
        yield GaugeMetricFamily("extproc_autoscale_leader", "Whether this replica leads.", float(gauges.leads))
        text = "Starts, stops and orders, by what became of them."
        actions = CounterMetricFamily("extproc_autoscale_actions", text, labels=["action", "pool", "result"])
        for labels, number in gauges.actions.items():
            actions.add_metric(list(labels), number)
        yield actions
        text = "Messages to the webhook, by what became of them."
        messages = CounterMetricFamily("extproc_autoscale_webhook_messages", text, labels=["result"])
        for result, number in gauges.messages.items():
            messages.add_metric([result], number)
        yield messages
        text = "Since Redis was last heard."
        yield GaugeMetricFamily("extproc_registry_silence_seconds", text, gauges.registry_silence_s)


def _instances(gauges: ScalingGauges) -> Iterator[Metric]:
    made = gauges.recommendations
    for name, text, values in (
        ("desired", "That the pool should have, Ready or on their way.", {each.pool: each.desired for each in made}),
        ("ready", "That are Ready.", {each.pool: each.ready for each in made}),
        ("coming", "That are Starting or Loading, or were asked for.", {each.pool: each.coming for each in made}),
        ("leaving", "That are Draining.", {each.pool: each.leaving for each in made}),
        (
            "broken",
            "That are Unhealthy, or on their way for far too long: nobody counts on them.",
            {each.pool: each.broken for each in made},
        ),
        ("pending", "That were asked for and that no agent has told of yet.", gauges.pending),
    ):
        family = GaugeMetricFamily(f"extproc_{name}_instances", f"Instances: {text}", labels=["pool"])
        for pool, number in values.items():
            family.add_metric([pool], number)
        yield family
    yield _replicas(made)
    text = "Instances that one signal alone calls for."
    drivers = GaugeMetricFamily("extproc_desired_instances_by_signal", text, labels=["pool", "signal"])
    text = "The signal that decided (1); the instances that would be desired without it are the other metric."
    driver = GaugeMetricFamily("extproc_desired_instances_driver", text, labels=["pool", "signal"])
    text = "Instances that would be desired if the signal that decided had said nothing."
    without = GaugeMetricFamily("extproc_desired_instances_without_driver", text, labels=["pool"])
    for each in made:
        for signal, number in _by_signal(each).items():
            drivers.add_metric([each.pool, signal], number)
        if each.drivers:
            driver.add_metric([each.pool, each.drivers[0].signal.value], 1.0)
        without.add_metric([each.pool], each.without)
    yield from (drivers, driver, without)


def _replicas(made: Sequence[Recommendation]) -> Metric:
    text = "Replicas with which as many serve as are desired: broken ones are among them, up to the pool's most."
    wanted = GaugeMetricFamily("extproc_wanted_replicas", text, labels=["pool"])
    for each in made:
        wanted.add_metric([each.pool], replicas(each))
    return wanted


def _by_signal(recommendation: Recommendation) -> dict[str, int]:
    """The most that each signal calls for: a series is there once."""
    numbers: dict[str, int] = {}
    for driver in recommendation.drivers:
        numbers[driver.signal.value] = max(driver.instances, numbers.get(driver.signal.value, 0))
    return numbers


def _forecasts(made: Sequence[Recommendation]) -> Iterator[Metric]:
    text = "Load of the pool's models, in instances that it would fill within their SLOs."
    load = GaugeMetricFamily("extproc_pool_load_instances", text, labels=["pool", "of"])
    text = "How far ahead the forecast looks: a cold start."
    horizon = GaugeMetricFamily("extproc_forecast_horizon_seconds", text, labels=["pool"])
    for each in made:
        if each.forecast is not None:
            load.add_metric([each.pool, "now"], each.forecast.now)
            load.add_metric([each.pool, "expected"], each.forecast.expected)
            load.add_metric([each.pool, "planned"], each.forecast.planned)
            horizon.add_metric([each.pool], each.forecast.horizon_s)
    yield from (load, horizon)

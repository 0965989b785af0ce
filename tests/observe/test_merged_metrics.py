"""The pages of several workers as one."""

from __future__ import annotations

from math import inf, isnan, nan

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from extproc.observe.merged_metrics import MergedMetrics

TRICKY = 'a "b" {c} \\ d \u2028 e \x85 f'


def page(routed: float, open_requests: float, engine: float = 0.0) -> bytes:
    """As one worker shows it."""
    registry = CollectorRegistry()
    Counter("extproc_routed", "Sent. A text with # TYPE in it.", ["instance"], registry=registry).labels(TRICKY).inc(
        routed
    )
    Gauge("extproc_in_flight", "Open.", ["instance"], registry=registry).labels(TRICKY).set(open_requests)
    Gauge("extproc_alone", "Has no label.", registry=registry).set(open_requests)
    Counter("extproc_engine_tokens", "An engine's own count.", registry=registry).inc(engine)
    Histogram("extproc_s", "Seconds.", buckets=(1.0, 2.0), registry=registry).observe(routed)
    return generate_latest(registry)


def samples(merged: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """As Prometheus reads them."""
    families = text_string_to_metric_families(merged.decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value for each in families for sample in each.samples
    }


def value(merged: bytes, name: str, **labels: str) -> float | None:
    return samples(merged).get((name, frozenset(labels.items())))


def test_counters_and_histograms_are_summed_and_gauges_are_each_workers_own() -> None:
    """Whatever stands in a label; and the page can be read by Prometheus."""
    merged = MergedMetrics()
    merged.take(0, page(1.0, 5.0))
    merged.take(1, page(1.5, 7.0))
    told = merged.page({0, 1})
    assert value(told, "extproc_routed_total", instance=TRICKY) == 2.5
    assert value(told, "extproc_in_flight", instance=TRICKY, worker="1") == 7.0
    assert value(told, "extproc_alone", worker="0") == 5.0
    assert value(told, "extproc_in_flight", instance=TRICKY) is None
    assert [value(told, "extproc_s_bucket", le=le) for le in ("1.0", "2.0", "+Inf")] == [1.0, 2.0, 2.0]
    assert value(told, "extproc_s_sum") == 2.5
    assert told.count(b"# TYPE extproc_routed_total counter\n") == 1


def test_what_an_engine_has_counted_is_not_counted_once_a_worker() -> None:
    """Each worker tells the same number, one perhaps a report later."""
    merged = MergedMetrics()
    merged.take(0, page(0.0, 0.0, engine=100.0))
    merged.take(1, page(0.0, 0.0, engine=110.0))
    assert value(merged.page({0, 1}), "extproc_engine_tokens_total") == 110.0


def test_a_sum_does_not_fall_when_a_worker_is_silent_or_dies_and_begins_anew() -> None:
    """Prometheus would take that for a restart, and count everything again."""
    merged = MergedMetrics()
    merged.take(0, page(10.0, 1.0))
    merged.take(1, page(20.0, 1.0))
    silent = merged.page({0})
    assert value(silent, "extproc_routed_total", instance=TRICKY) == 30.0
    assert value(silent, "extproc_alone", worker="1") is None
    merged.end(1)
    assert value(merged.page({0}), "extproc_routed_total", instance=TRICKY) == 30.0
    merged.take(1, page(2.0, 0.0))
    assert value(merged.page({0, 1}), "extproc_routed_total", instance=TRICKY) == 32.0
    merged.end(1)
    merged.end(1)
    assert value(merged.page({0}), "extproc_routed_total", instance=TRICKY) == 32.0


def test_odd_numbers_stay_what_they_are() -> None:
    """Prometheus writes them in its own way."""
    merged = MergedMetrics()
    merged.take(0, page(0.0, inf))
    assert value(merged.page({0}), "extproc_alone", worker="0") == inf
    merged.take(0, page(0.0, -inf))
    assert value(merged.page({0}), "extproc_alone", worker="0") == -inf
    merged.take(0, page(0.0, nan))
    assert isnan(value(merged.page({0}), "extproc_alone", worker="0") or 0.0)


def test_without_workers_the_page_is_empty() -> None:
    """Nobody has answered yet."""
    assert MergedMetrics().page(()) == b""


def numbers(**of: float) -> bytes:
    """A page of requests by instance, as a counter and as a histogram."""
    registry = CollectorRegistry()
    counter = Counter("extproc_routed", "Sent.", ["instance"], registry=registry)
    histogram = Histogram("extproc_s", "Seconds.", ["instance"], buckets=(1.0, 2.0), registry=registry)
    for instance, number in of.items():
        counter.labels(instance).inc(number)
        for _ in range(int(number)):
            histogram.labels(instance).observe(1.5)
    return generate_latest(registry)


def test_a_sum_does_not_fall_when_a_worker_drops_a_series_that_another_tells() -> None:
    """Of an instance that got nothing from it for long; nor when the worker begins it anew."""
    merged = MergedMetrics()
    merged.take(0, numbers(a=10, b=1))
    merged.take(1, numbers(a=5, b=1))
    merged.take(0, numbers(b=1))
    told = merged.page({0, 1})
    assert value(told, "extproc_routed_total", instance="a") == 15.0
    assert value(told, "extproc_s_bucket", instance="a", le="2.0") == 15.0
    assert value(told, "extproc_s_count", instance="a") == 15.0
    merged.take(0, numbers(a=2, b=1))
    merged.take(0, numbers(a=1, b=1))
    told = merged.page({0, 1})
    assert value(told, "extproc_routed_total", instance="a") == 18.0
    assert value(told, "extproc_s_count", instance="a") == 18.0
    assert value(told, "extproc_routed_total", instance="b") == 2.0


def test_what_dead_workers_had_counted_of_instances_that_are_gone_is_bounded() -> None:
    """Those that went first go, whole histograms at once; what a living worker tells never falls."""
    most = 64
    merged = MergedMetrics(most)
    for number in range(3 * most // 16):
        merged.take(1, numbers(alive=1, first=1))
        merged.take(0, numbers(alive=1, **{f"pod-{number}-{each}": 1 for each in range(16)}))
        merged.end(0)
    told = samples(merged.page({1}))
    by_name: dict[str, set[str]] = {}
    for name, labels in told:
        by_name.setdefault(name, set()).add(dict(labels).get("instance", ""))
    assert {len(instances) for name, instances in by_name.items()} <= {most + 2, 2}
    assert len(by_name["extproc_s_bucket"]) == len(by_name["extproc_s_count"]) == most + 2
    assert by_name["extproc_s_sum"] == by_name["extproc_s_bucket"] == by_name["extproc_routed_total"]
    assert f"pod-{number}-15" in by_name["extproc_s_sum"]
    assert "pod-0-0" not in by_name["extproc_s_sum"]
    assert told["extproc_routed_total", frozenset({("instance", "alive")})] == number + 2.0

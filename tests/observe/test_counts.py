"""Counters and histograms in plain numbers: a scrape shows what Prometheus' own would have shown."""

from __future__ import annotations

import random
import re

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import generate_latest

from extproc.observe.counts import Count, Spread

BOUNDS = (-0.5, 0.0, 0.001, 1.0, 2.5)


def page(registry: CollectorRegistry) -> str:
    """What is scraped, but for the moments at which each series began."""
    return re.sub(r"(_created\S* ).*", r"\1now", generate_latest(registry).decode())


def test_a_scrape_shows_what_prometheus_own_counters_and_histograms_show() -> None:
    """Values on a bound belong to the bucket that it ends."""
    rng, ours, theirs = random.Random(7), CollectorRegistry(), CollectorRegistry()
    count, alone = Count("a", "Some.", "x", "y"), Count("b", "Others.")
    spread, single = Spread("c", "Seconds.", BOUNDS, "x"), Spread("d", "Shares.", BOUNDS)
    for each in (count, alone, spread, single):
        ours.register(each)
    counter, only = Counter("a", "Some.", ("x", "y"), registry=theirs), Counter("b", "Others.", registry=theirs)
    histogram = Histogram("c", "Seconds.", ("x",), buckets=BOUNDS, registry=theirs)
    sole = Histogram("d", "Shares.", buckets=BOUNDS, registry=theirs)
    assert page(ours) == page(theirs)
    for _ in range(200):
        labels, value = (rng.choice("pq"), rng.choice('r"\n')), rng.choice((*BOUNDS, rng.uniform(-1.0, 4.0)))
        count.add(labels)
        counter.labels(*labels).inc()
        alone.add((), 2)
        only.inc(2)
        spread.observe(labels[:1], value)
        histogram.labels(*labels[:1]).observe(value)
        single.observe((), value)
        sole.observe(value)
    assert page(ours) == page(theirs)


def test_a_counter_does_not_fall() -> None:
    count = Count("a", "Some.")
    with pytest.raises(ValueError, match="cannot fall"):
        count.add((), -1)

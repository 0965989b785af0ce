"""Counters and histograms whose increments cost a look into a dictionary; Prometheus' form is made at a scrape.

`prometheus_client` looks up a child under a lock and locks again to count: 2 µs for each of a dozen increments of a
request. The service counts in one thread, and scrapes are answered in the same.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

Labels = tuple[str, ...]

MOST_SERIES = 1024
"""Sets of labels of a counter. Models and instances come from a registry: all beyond are counted as "other"."""
MOST_SPREADS = 256
"""The same of a histogram, each of which is more than ten series."""
_OTHER = "other"


class Count(Collector):
    """A counter by the values of its labels; without labels it is 0 from the start."""

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self._family = (name, text, labels)
        self._values: dict[Labels, float] = {}
        self._created_s: dict[Labels, float] = {}
        if not labels:
            self.add((), 0)

    def add(self, labels: Labels, number: float = 1) -> None:
        """Count so many more. Raises ValueError below 0."""
        if number < 0:
            raise ValueError(f"{self._family[0]} cannot fall by {-number}")
        try:
            self._values[labels] += number
        except KeyError:
            if len(self._values) >= MOST_SERIES:
                labels = (_OTHER,) * len(labels)
            self._values[labels] = self._values.get(labels, 0) + number
            self._created_s.setdefault(labels, time.time())

    def collect(self) -> Iterator[Metric]:
        """What was counted."""
        name, text, labels = self._family
        family = CounterMetricFamily(name, text, labels=labels)
        for values, number in self._values.items():
            family.add_metric(values, number, created=self._created_s[values])
        yield family


class _Spread:
    """Values of one set of labels."""

    __slots__ = ("counts", "created_s", "total")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * buckets
        self.total = 0.0
        self.created_s = time.time()


class Spread(Collector):
    """A histogram by the values of its labels. `bounds` grow; each is the greatest value of its bucket."""

    def __init__(self, name: str, text: str, bounds: Iterable[float], *labels: str) -> None:
        self._family = (name, text, labels)
        self._bounds = tuple(bounds)
        self._spreads: dict[Labels, _Spread] = {}
        if not labels:
            self._of(())

    def observe(self, labels: Labels, value: float) -> None:
        """Count one value."""
        spread = self._spreads.get(labels) or self._of(labels)
        spread.counts[bisect_left(self._bounds, value)] += 1
        spread.total += value

    def collect(self) -> Iterator[Metric]:
        """What was counted."""
        name, text, labels = self._family
        family = HistogramMetricFamily(name, text, labels=labels)
        bounds = (*map(repr, self._bounds), "+Inf")
        for values, spread in self._spreads.items():
            family.add_metric(values, list(zip(bounds, accumulate(spread.counts), strict=True)), spread.total)
            told = dict(zip(labels, values, strict=True))
            if self._bounds[0] < 0:  # a family leaves it out together with the sum, which then is no counter
                family.add_sample(f"{name}_count", told, sum(spread.counts))
            family.add_sample(f"{name}_created", told, spread.created_s)
        yield family

    def _of(self, labels: Labels) -> _Spread:
        if len(self._spreads) >= MOST_SPREADS:
            labels = (_OTHER,) * len(labels)
        return self._spreads.setdefault(labels, _Spread(len(self._bounds) + 1))

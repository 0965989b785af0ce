"""Counters and histograms whose increments cost a look into a dictionary; Prometheus' form is made at a scrape.

`prometheus_client` looks up a child under a lock and locks again to count: 2 µs for each of a dozen increments of a
request. The service counts in one thread, and scrapes are answered in the same.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

Labels = tuple[str, ...]

MOST_SERIES = 1024
"""Sets of labels of a counter. Models and instances come from a registry: beyond, see `_Room`."""
MOST_SPREADS = 256
"""The same of a histogram, each of which is more than ten series."""
QUIET_S = 900.0
"""Without a count, before a series makes room: Prometheus looks back 300 s, so that it has seen the last count."""
_OTHER = "other"


class _Room:
    """Room for so many sets of labels: a new one takes that of one which was not counted for `QUIET_S`, or has none.

    What was counted is compared with what it was, at most once in `QUIET_S` and only when a new set comes: an increment
    costs no look at a clock. So of a fleet that is replaced all day those leave that are gone, the oldest first.
    """

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self._most, self._clock = most, clock
        self._looked_s = float("-inf")
        self._levels: dict[Labels, float] = {}  # as of the latest look
        self._quiet: deque[Labels] = deque()

    def make(self, series: Collection[Labels], level: Callable[[Labels], float | None]) -> tuple[bool, Labels | None]:
        """Whether there is room for one more beside `series`; and whose, if that has to go.

        `level` is what was counted of a set; it never falls, and is None without such a set.
        """
        now = self._clock()
        if now - self._looked_s >= QUIET_S:
            self._quiet = deque(labels for labels in series if self._levels.get(labels) == level(labels))
            self._levels = {labels: counted for labels in series if (counted := level(labels)) is not None}
            self._looked_s = now
        if len(series) < self._most:
            return True, None
        while self._quiet:
            labels = self._quiet.popleft()
            if labels != (_OTHER,) * len(labels) and level(labels) == self._levels[labels]:
                return True, labels
        return False, None


class Count(Collector):
    """A counter by the values of its labels; without labels it is 0 from the start."""

    def __init__(self, name: str, text: str, *labels: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._family = (name, text, labels)
        self._room = _Room(MOST_SERIES, clock)
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
            labels = self._placed(labels)
            self._values[labels] = self._values.get(labels, 0) + number
            self._created_s.setdefault(labels, time.time())

    def collect(self) -> Iterator[Metric]:
        """What was counted."""
        name, text, labels = self._family
        family = CounterMetricFamily(name, text, labels=labels)
        for values, number in self._values.items():
            family.add_metric(values, number, created=self._created_s[values])
        yield family

    def _placed(self, labels: Labels) -> Labels:
        fits, leaves = self._room.make(self._values, self._values.get)
        if leaves is not None:
            del self._values[leaves], self._created_s[leaves]
        return labels if fits else (_OTHER,) * len(labels)


class _Spread:
    """Values of one set of labels."""

    __slots__ = ("counts", "created_s", "total")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * buckets
        self.total = 0.0
        self.created_s = time.time()


class Spread(Collector):
    """A histogram by the values of its labels. `bounds` grow; each is the greatest value of its bucket."""

    def __init__(
        self,
        name: str,
        text: str,
        bounds: Iterable[float],
        *labels: str,
        most: int = MOST_SPREADS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._family = (name, text, labels)
        self._room = _Room(most, clock)
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
        """That of a set that has none, or of all others together."""
        fits, leaves = self._room.make(self._spreads, self._observed)
        if leaves is not None:
            del self._spreads[leaves]
        labels = labels if fits else (_OTHER,) * len(labels)
        spread = self._spreads.get(labels)
        if spread is None:
            spread = self._spreads[labels] = _Spread(len(self._bounds) + 1)
        return spread

    def _observed(self, labels: Labels) -> float | None:
        spread = self._spreads.get(labels)
        return None if spread is None else sum(spread.counts)

"""How often and how far load swings from instance to instance: the oscillation index of a run.

A router that acts on stale state sends all to the instance that looked emptiest, finds it full, and turns to the
next. Each instance's load then goes up and down although the fleet's does not. The index counts that, and leaves out
what an even-handed router shows too: a lasting difference between instances, the rise and fall of the whole traffic,
and the noise of small counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from extproc.sim.report.run import Sample

NOISE_BAND = 2.0  # in standard deviations of a Poisson count, which an even-handed router seldom reaches
MIN_REQUESTS_PER_INSTANCE = 1.0  # an emptier fleet's shares say nothing


def oscillation(samples: Sequence[Sample]) -> float | None:
    """Swings of load beyond noise, in fair shares per instance and minute; None if no two samples have enough load.

    At each sample an instance's load is its requests, running and waiting, over the mean of all ready instances: 1 is
    its fair share. In the series of each instance turning points are found as in a zigzag or rainflow count: a turn
    counts when the load has gone back by more than `NOISE_BAND` standard deviations of a count of that size. Of each
    swing between two turning points the part beyond the band is added up, and the sum divided by the minutes that
    the instances were observed. 0 is steady; 6 is, say, a swing of two fair shares beyond noise every 20 s.
    """
    swings = 0.0
    instance_minutes = 0.0
    trackers: dict[int, _Zigzag] = {}
    before: Sample | None = None
    members: tuple[int, ...] = ()
    for sample in samples:
        ready = ready_instances(sample)
        counts = [sample.running[i] + sample.waiting[i] for i in ready]
        mean = sum(counts) / len(counts) if counts else 0.0
        if mean < MIN_REQUESTS_PER_INSTANCE:
            before = None
            continue
        if ready != members:  # load moves where an instance comes or goes: no swing
            swings += sum(tracker.total() for tracker in trackers.values())
            trackers = {i: _Zigzag() for i in ready}
            members, before = ready, None
        noise = NOISE_BAND / sqrt(mean)
        for i, count in zip(ready, counts, strict=True):
            trackers[i].add(count / mean, noise)
        if before is not None:
            instance_minutes += (sample.at_s - before.at_s) * len(ready) / 60.0
        before = sample
    swings += sum(tracker.total() for tracker in trackers.values())
    return swings / instance_minutes if instance_minutes > 0.0 else None


def ready_instances(sample: Sample) -> tuple[int, ...]:
    """Indices of the instances that take new requests."""
    if not sample.ready:
        return tuple(range(len(sample.running)))
    return tuple(i for i, ready in enumerate(sample.ready) if ready)


class _Zigzag:
    """Turning points of one series: sums what its swings exceed the noise by."""

    def __init__(self) -> None:
        self._pivot: float | None = None  # where the swing under way began; before the first swing the lowest load
        self._extreme = 0.0  # how far it went; before the first swing the highest load
        self._direction = 0  # 1 up, -1 down, 0 before the first swing
        self._noise = 0.0
        self._sum = 0.0

    def add(self, load: float, noise: float) -> None:
        """Follow the series: its next load, in fair shares, and the band for a load of 1."""
        self._noise = noise
        if self._pivot is None:
            self._pivot = self._extreme = load
        elif self._direction == 0:
            self._begin(self._pivot, self._extreme, load)
        elif (load - self._extreme) * self._direction >= 0.0:
            self._extreme = load
        elif abs(load - self._extreme) > self._band(self._extreme, load):
            self._sum = self.total()
            self._pivot, self._extreme, self._direction = self._extreme, load, -self._direction

    def total(self) -> float:
        """All swings so far, the one under way included."""
        if self._pivot is None or self._direction == 0:
            return self._sum
        swing = abs(self._extreme - self._pivot) - self._band(self._pivot, self._extreme)
        return self._sum + max(swing, 0.0)

    def _begin(self, low: float, high: float, load: float) -> None:
        if load - low > self._band(low, load):
            self._pivot, self._extreme, self._direction = low, load, 1
        elif high - load > self._band(high, load):
            self._pivot, self._extreme, self._direction = high, load, -1
        else:
            self._pivot, self._extreme = min(low, load), max(high, load)

    def _band(self, one: float, other: float) -> float:
        return self._noise * sqrt(max(one, other, 1.0))

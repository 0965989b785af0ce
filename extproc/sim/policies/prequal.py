"""Prequal: probes of requests in flight and latency, the hot-cold rule.

Wydrowski, Kleinberg, Rumble, Archer, "Load is not what you should balance: Introducing Prequal" (NSDI 2024), with its
defaults: 3 probes a request to random instances, whose answers serve later requests; a pool of 16, probes older than
1 s are dropped, one is used once, and one is removed with each request, the oldest and the worst by turns. A probe is
hot if its requests in flight are above the 0.84 quantile (2^-0.25) of the last answers'. Any cold: the cold one of the
lowest latency; all hot: the fewest in flight. Fewer than two probes: a random instance. Latency is the median of
recent answers' times to first token at the same number of requests in flight, kept by the client here: the time of a
whole answer would tell of its length, which has nothing to do with its instance.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median

from extproc.sim.policies.desk import Desk, Seen, Trip
from extproc.sim.policies.policy import Ask, Ending, Policy, Probe, Setting

PROBES_A_REQUEST = 3
POOL = 16
OLDEST_S = 1.0
HOT_QUANTILE = 2**-0.25
RECENT = 16  # latencies kept of each number in flight
RECENT_PROBES = 100  # that the quantile is taken of


@dataclass(slots=True)
class _Answer:
    """A probe in the pool."""

    seen: Seen
    at_s: float
    in_flight: int
    latency_s: float


class Prequal:
    """The pool of probes, latencies of the past, and the rule on them."""

    def __init__(self, ask_for: Callable[[str], Probe | None], replicas: int) -> None:
        self._ask_for = ask_for
        self._replicas = max(1, replicas)
        self._pool: list[_Answer] = []
        self._told: deque[int] = deque(maxlen=RECENT_PROBES)  # requests in flight, of the last answers
        self._latencies: dict[int, dict[int, deque[float]]] = {}  # by number, by requests in flight
        self._turn = 0

    def __call__(self, ask: Ask, candidates: Sequence[Seen], random: Random, now: float) -> Seen:
        """The hot-cold rule on the pool; then ask for the next request."""
        able = {seen.number for seen in candidates}
        self._pool = [probe for probe in self._pool if probe.at_s > now - OLDEST_S and probe.seen.number in able]
        chosen = random.choice(candidates) if len(self._pool) < 2 else self._take()
        self._remove_one()
        for seen in random.sample(candidates, min(PROBES_A_REQUEST, len(candidates))):
            self._probe(seen, now)
        return chosen

    def latency_s(self, seen: Seen, in_flight: int) -> float:
        """Median of recent latencies at that many in flight, or at the nearest number known; 0 if none is."""
        levels = self._latencies.get(seen.number)
        if not levels:
            return 0.0
        nearest = min(levels, key=lambda level: (abs(level - in_flight), level))
        return median(levels[nearest])

    def over(self, trip: Trip, ending: Ending | None, now: float) -> None:
        """Remember a time to first token."""
        if ending is not None and ending.ttft_s is not None:
            levels = self._latencies.setdefault(trip.seen.number, {})
            levels.setdefault(trip.in_flight_before, deque(maxlen=RECENT)).append(ending.ttft_s)

    def _take(self) -> Seen:
        """Use up the best probe."""
        hot_above = self._hot_above()
        cold = [probe for probe in self._pool if probe.in_flight <= hot_above]
        if cold:
            best = min(cold, key=lambda probe: probe.latency_s)
        else:
            best = min(self._pool, key=lambda probe: probe.in_flight)
        self._pool.remove(best)
        for probe in self._pool:  # others of the same instance learn of this request
            if probe.seen is best.seen:
                probe.in_flight += 1
        return best.seen

    def _hot_above(self) -> int:
        """Requests in flight above which an instance is hot."""
        counts = sorted(self._told)
        return counts[min(len(counts) - 1, int(HOT_QUANTILE * len(counts)))]

    def _remove_one(self) -> None:
        """Drop the oldest probe, next time the worst: the fullest of the hot, else the slowest."""
        self._turn += 1
        if len(self._pool) < 2:
            return
        if self._turn % 2:
            worst = self._pool[0]
        else:
            hot_above = self._hot_above()
            hot = [probe for probe in self._pool if probe.in_flight > hot_above]
            worst = max(hot, key=lambda probe: probe.in_flight) if hot else max(self._pool, key=lambda p: p.latency_s)
        self._pool.remove(worst)

    def _probe(self, seen: Seen, now: float) -> None:
        answer = self._ask_for(seen.id)
        if answer is None:
            return
        self._told.append(answer.in_flight)
        own = answer.in_flight // self._replicas  # latencies are filed under this router's share
        self._pool.append(_Answer(seen, now, answer.in_flight, self.latency_s(seen, own)))
        if len(self._pool) > POOL:
            del self._pool[0]


def prequal(setting: Setting) -> Policy:
    """Prequal's hot-cold rule."""
    rule = Prequal(setting.probe, setting.replicas)
    return Desk(setting, rule, on_over=rule.over)

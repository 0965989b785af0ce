"""What the rounds of a cell come to: percentiles of a round, medians over rounds, differences pair by pair. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from extproc.bench.overhead.plan import Cell

ALONE, FLOOR, OURS = "envoy_alone", "floor", "extproc"
WAYS = (ALONE, FLOOR, OURS)
FEWEST_P99, FEWEST_P999 = 100, 1000  # of fewer answers such a percentile is the slowest of them, or its neighbour


@dataclass(frozen=True, slots=True)
class Spent:
    """A round of one way: what became of its requests, and the processor seconds that it cost."""

    sent: int
    elapsed_s: float
    latencies_s: Sequence[float]  # of what was answered well, ascending
    errors: dict[str, int]
    late_s: Sequence[float]  # how long after it was due each was sent, ascending; empty in a closed loop
    service_s: float
    envoy_s: float
    wall_s: float  # over which these were counted

    @property
    def service_us(self) -> float | None:
        """Processor time of the service for each request that was answered well; None without any."""
        return self.service_s / len(self.latencies_s) * 1e6 if self.latencies_s else None

    def own_us(self, background_share: float) -> float | None:
        """The same but for what the service uses while nobody asks, a share of a core."""
        spent_s = self.service_s - background_share * self.wall_s
        return spent_s / len(self.latencies_s) * 1e6 if self.latencies_s else None

    @property
    def envoy_us(self) -> float | None:
        """Processor time of Envoy for each request that was answered well; None without any."""
        return self.envoy_s / len(self.latencies_s) * 1e6 if self.latencies_s else None

    @property
    def p50_s(self) -> float | None:
        """Median latency."""
        return percentile(self.latencies_s, 0.5)

    @property
    def p99_s(self) -> float | None:
        """99th percentile of the latency; of few answers, the slowest of them."""
        return percentile(self.latencies_s, 0.99)

    @property
    def told_p99_s(self) -> float | None:
        """The same if there were answers enough to speak of one, else None."""
        return self.p99_s if len(self.latencies_s) >= FEWEST_P99 else None


@dataclass(slots=True)
class Found:
    """All rounds of a cell, by way; the rounds of equal number were made one right after another."""

    cell: Cell
    rounds: dict[str, list[Spent]]
    failed: list[str] = field(default_factory=list)  # rounds that could not be made at all, and why
    idle: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # seconds while others were asked, and CPU

    def background_share(self, name: str) -> float:
        """Share of a core that a service uses while nobody asks it: what follows the fleet's state, mostly."""
        spans = self.idle.get(name, ())
        wall_s = sum(span_s for span_s, _ in spans)
        return sum(used_s for _, used_s in spans) / wall_s if wall_s else 0.0

    def as_json(self) -> dict[str, Any]:
        """The cell as it is printed."""
        cell = self.cell
        return {
            "body_bytes": cell.body_bytes,
            "instances": cell.instances,
            "workers": cell.workers,
            "rate_rps": cell.rate_rps,
            **{name: self._summary(name) for name in WAYS},
            "over_floor": self._over_floor(),
            "over_envoy_alone": self._beyond(ALONE),
            "rounds": max(map(len, self.rounds.values()), default=0),
            "failed_rounds": self.failed,
        }

    def _summary(self, name: str) -> dict[str, Any]:
        rounds, background = self.rounds.get(name, []), self.background_share(name)
        errors = sum((Counter(spent.errors) for spent in rounds), Counter[str]())
        return {
            "cpu_us_per_request": middle([spent.service_us for spent in rounds]),
            "envoy_cpu_us_per_request": middle([spent.envoy_us for spent in rounds]),
            "p50_s": middle([spent.p50_s for spent in rounds]),
            "p99_s": middle([spent.p99_s for spent in rounds]),
            "p999_s": self._p999_s(name),
            "rps": middle([len(spent.latencies_s) / spent.elapsed_s for spent in rounds]) or 0.0,
            "answers_per_round": middle([len(spent.latencies_s) for spent in rounds]) or 0.0,  # that p99_s is taken of
            "errors": errors.total(),
            "errors_by_kind": dict(errors),
            "requests": sum(spent.sent for spent in rounds),
            "late_p99_s": percentile(sorted(late_s for spent in rounds for late_s in spent.late_s), 0.99),
            "background_cpu_us_per_s": background * 1e6,
            "own_cpu_us_per_request": middle([spent.own_us(background) for spent in rounds]),
        }

    def _over_floor(self) -> dict[str, float | None]:
        """What ours has beyond the floor, and how many times as much processor time."""
        pairs = self._pairs(FLOOR)
        own_us = self._own_us(FLOOR, pairs)
        return {
            "cpu_ratio": middle(_ratios([(low.service_us, high.service_us) for low, high in pairs])),
            "own_cpu_ratio": middle(_ratios(own_us)),
            "own_cpu_us_per_request": middle(_differences(own_us)),
            **self._beyond(FLOOR),
        }

    def _beyond(self, name: str) -> dict[str, float | None]:
        """Medians of what each round of ours has beyond that way's of the same number; p99.9 of all rounds together."""
        pairs = self._pairs(name)
        return {
            "cpu_us_per_request": middle(_differences([(low.service_us, high.service_us) for low, high in pairs])),
            "envoy_cpu_us_per_request": middle(_differences([(low.envoy_us, high.envoy_us) for low, high in pairs])),
            "p50_s": middle(_differences([(low.p50_s, high.p50_s) for low, high in pairs])),
            "p99_s": middle(_differences([(low.told_p99_s, high.told_p99_s) for low, high in pairs])),
            "p999_s": middle(_differences([(self._p999_s(name), self._p999_s(OURS))])),
        }

    def _pairs(self, name: str) -> list[tuple[Spent, Spent]]:
        return list(zip(self.rounds.get(name, ()), self.rounds.get(OURS, ()), strict=False))

    def _own_us(self, name: str, pairs: Sequence[tuple[Spent, Spent]]) -> list[tuple[float | None, float | None]]:
        their_share, our_share = self.background_share(name), self.background_share(OURS)
        return [(low.own_us(their_share), high.own_us(our_share)) for low, high in pairs]

    def _p999_s(self, name: str) -> float | None:
        """Of all rounds together, since one has too few requests for it; None if these have too few as well."""
        every = sorted(latency_s for spent in self.rounds.get(name, ()) for latency_s in spent.latencies_s)
        return percentile(every, 0.999) if len(every) >= FEWEST_P999 else None


def _ratios(pairs: Sequence[tuple[float | None, float | None]]) -> list[float | None]:
    return [high / low if low and high is not None else None for low, high in pairs]


def _differences(pairs: Sequence[tuple[float | None, float | None]]) -> list[float | None]:
    return [None if low is None or high is None else high - low for low, high in pairs]


def percentile(ranked: Sequence[float], share: float) -> float | None:
    """The smallest of the ranked values that is at least as large as so large a share of them; None of nothing."""
    if not ranked:
        return None
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


def middle(values: Sequence[float | None]) -> float | None:
    """Median of those that are known; None if none is."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    half = len(known) // 2
    return known[half] if len(known) % 2 else (known[half - 1] + known[half]) / 2

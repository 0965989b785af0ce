"""What Envoy does about overload by itself: a fixed limit on requests in flight, and the adaptive one; 503 beyond it.

Both balance by least request. Sources: Envoy's circuit breaker (`max_requests`, 1,024 of a cluster by default,
`api/envoy/config/cluster/v3/circuit_breaker.proto`), and its adaptive concurrency filter
(`docs/root/configuration/http/http_filters/adaptive_concurrency_filter.rst` and `adaptive_concurrency.proto`):

    gradient = (minRTT + 25 % of it) / sampleRTT, between 0.5 and 2
    limit    = gradient * limit + sqrt(limit), between the least and 1,000

sampleRTT is the 50th percentile (the default) of the whole requests that ended in the last 0.1 s; of a window without
any the limit stays. minRTT is that of 50 requests, measured anew every 60 s and when the limit was at its least for
five windows. Interval, period and least (25, with the measurement from live traffic) are those of the documentation's
example: with the default least of 3, which also holds while minRTT is measured, streams of ten seconds would have
nearly all requests refused for minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from random import Random

from extproc.sim.policies.desk import Desk, Seen, Trip
from extproc.sim.policies.picking import least
from extproc.sim.policies.policy import Ask, Ending, Policy, Setting
from extproc.sim.policies.textbook import in_flight
from extproc.sim.report.spread import quantile

MAX_REQUESTS = 1024
INTERVAL_S = 0.1
PERCENTILE = 0.5
BUFFER = 0.25
GRADIENT = (0.5, 2.0)
LIMITS = (25.0, 1000.0)
MIN_RTT_PERIOD_S = 60.0
MIN_RTT_REQUESTS = 50
LEAST_WINDOWS = 5  # so many at the least limit have minRTT measured anew


class Gradient:
    """Envoy's gradient controller."""

    def __init__(self) -> None:
        self.limit = LIMITS[0]
        self._min_rtt_s: float | None = None
        self._measuring = True
        self._measured: list[float] = []
        self._samples: list[float] = []
        self._window_ends_s = INTERVAL_S
        self._measures_at_s = MIN_RTT_PERIOD_S
        self._at_least = 0

    def ended(self, duration_s: float, now: float) -> None:
        """A request was answered."""
        self.tick(now)
        self._samples.append(duration_s)
        if not self._measuring:
            return
        self._measured.append(duration_s)
        if len(self._measured) >= MIN_RTT_REQUESTS:
            self._min_rtt_s = quantile(sorted(self._measured), PERCENTILE)
            self._measuring, self._measured = False, []
            self._measures_at_s = now + MIN_RTT_PERIOD_S

    def tick(self, now: float) -> None:
        """Close the window if it is over."""
        if now < self._window_ends_s:
            return
        self._window_ends_s = now + INTERVAL_S
        if now >= self._measures_at_s:
            self._measuring = True
        samples, self._samples = self._samples, []
        if not samples or self._min_rtt_s is None:
            return
        wanted = self._min_rtt_s * (1.0 + BUFFER) / max(1e-9, quantile(sorted(samples), PERCENTILE))
        gradient = min(GRADIENT[1], max(GRADIENT[0], wanted))
        self.limit = min(LIMITS[1], max(LIMITS[0], gradient * self.limit + sqrt(self.limit)))
        self._at_least = self._at_least + 1 if self.limit == LIMITS[0] else 0
        if self._at_least >= LEAST_WINDOWS:
            self._measuring, self._at_least = True, 0


def envoy_limit(setting: Setting) -> Policy:
    """Least request, and at most 1,024 requests of this router in flight."""

    def rule(ask: Ask, candidates: Sequence[Seen], random: Random, now: float) -> Seen | None:
        full = sum(map(in_flight, desk.seen.values())) >= MAX_REQUESTS
        return None if full else least(candidates, in_flight, random)

    desk = Desk(setting, rule)
    return desk


def envoy_adaptive(setting: Setting) -> Policy:
    """Least request, and as many in flight as the gradient controller has it."""
    controller = Gradient()

    def rule(ask: Ask, candidates: Sequence[Seen], random: Random, now: float) -> Seen | None:
        controller.tick(now)
        full = sum(map(in_flight, desk.seen.values())) >= int(controller.limit)
        return None if full else least(candidates, in_flight, random)

    def over(trip: Trip, ending: Ending | None, now: float) -> None:
        if ending is not None and ending.status == 200:
            controller.ended(now - trip.sent_at_s, now)

    desk = Desk(setting, rule, on_over=over)
    return desk

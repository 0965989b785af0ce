"""Peak EWMA: a latency average that jumps up at once and decays slowly, times the requests in flight.

As Finagle defined it and tower's `load::peak_ewma` (Linkerd 2) does it: cost = estimate x (in flight + 1), the lower
of two draws; a sample above the estimate replaces it, one below moves it by 1 - exp(-dt / decay); an estimate that
gets no samples decays the same way, towards 0. Latency is the time to first token: Linkerd 2 ends its clock at the
first data of an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from random import Random

from extproc.sim.policies.desk import Desk, Seen, Trip
from extproc.sim.policies.picking import least
from extproc.sim.policies.policy import Ask, Policy, Setting
from extproc.sim.policies.textbook import draw_two

DECAY_S = 10.0  # Linkerd 2's default
FIRST_GUESS_S = 1.0  # of an instance that has not answered yet: Linkerd 2's default round trip time


class PeakEwma:
    """Latency estimates of instances, and the rule on them."""

    def __init__(self) -> None:
        self._estimates: dict[int, tuple[float, float]] = {}  # by number: seconds, and as of when

    def __call__(self, ask: Ask, candidates: Sequence[Seen], random: Random, now: float) -> Seen:
        """The lower cost of two draws."""
        return least(
            draw_two(candidates, random), lambda seen: self.estimate_s(seen, now) * (seen.in_flight + 1), random
        )

    def estimate_s(self, seen: Seen, now: float) -> float:
        """Latency that is expected of an instance."""
        value_s, at_s = self._estimates.setdefault(seen.number, (FIRST_GUESS_S, now))
        return value_s * exp(-(now - at_s) / DECAY_S)

    def observed(self, trip: Trip, now: float) -> None:
        """A first token arrived."""
        sample_s = now - trip.sent_at_s
        value_s, at_s = self._estimates.setdefault(trip.seen.number, (FIRST_GUESS_S, now))
        keep = exp(-(now - at_s) / DECAY_S)
        if sample_s <= value_s:
            sample_s = value_s * keep + sample_s * (1 - keep)
        self._estimates[trip.seen.number] = (sample_s, now)


def peak_ewma(setting: Setting) -> Policy:
    """Peak EWMA with two draws."""
    rule = PeakEwma()
    return Desk(setting, rule, on_first_token=rule.observed)

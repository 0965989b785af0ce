"""How much work comes to an instance: a rate of requests and of prompt computation, with the past fading."""

from __future__ import annotations

import math
from dataclasses import dataclass

MEMORY_S = 20.0  # a request counts for 1/e as much when it is this old


@dataclass(slots=True)
class Pace:
    """Sums that fade with `MEMORY_S`; over that time they are rates."""

    requests: float = 0.0
    prefill_s: float = 0.0
    at_s: float = float("-inf")

    def add(self, prefill_s: float, now: float) -> None:
        """A request was sent whose prompt takes so long. Times may come in a slightly wrong order."""
        if now > self.at_s:
            keep = math.exp((self.at_s - now) / MEMORY_S)
            self.requests *= keep
            self.prefill_s *= keep
            self.at_s = now
        self.requests += 1.0
        self.prefill_s += prefill_s

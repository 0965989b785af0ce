"""What the clients of a load have seen: how many answers came within their SLO, of late and in all."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from extproc.core.pricing.classes import DEFAULT_CLASSES
from extproc.core.values.request import RequestClass
from extproc.demo.client import Measured

SLO = DEFAULT_CLASSES[RequestClass.INTERACTIVE].slo
LATELY_S = 30.0


class Answered:
    """Holds each answer against the SLO. One that failed was not within it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lately: deque[tuple[float, bool]] = deque()
        self._good = 0
        self.requests = 0
        self.failures: dict[str, int] = {}

    def done(self, measured: Measured) -> None:
        """Count one request that is over."""
        good = not measured.failure and SLO.met(measured.ttft_s, _tpot_s(measured), measured.e2e_s, 0.0)
        if measured.failure:
            self.failures[measured.failure] = self.failures.get(measured.failure, 0) + 1
        self.requests += 1
        self._good += good
        self._lately.append((self._clock(), good))

    @property
    def share(self) -> float | None:
        """Share of all that were within it; None before the first is over."""
        return self._good / self.requests if self.requests else None

    @property
    def share_lately(self) -> float | None:
        """The same of the last `LATELY_S` seconds."""
        while self._lately and self._lately[0][0] < self._clock() - LATELY_S:
            self._lately.popleft()
        return sum(good for _, good in self._lately) / len(self._lately) if self._lately else None


def _tpot_s(measured: Measured) -> float | None:
    gaps = measured.output_tokens - 1
    return (measured.e2e_s - measured.ttft_s) / gaps if gaps > 0 else None

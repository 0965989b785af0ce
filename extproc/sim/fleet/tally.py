"""What routers count of requests, by model: the numbers that our autoscaler is told.

The simulator's routers may be rivals that believe nothing of caches. What a router would have believed to be cached of
a prompt is taken to be the share that was cached of those before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from extproc.core.pricing.classes import ClassPolicy
from extproc.core.scaling.sight import Counts
from extproc.core.values.request import RequestClass
from extproc.sim.report.run import Fate, Served
from extproc.sim.traffic.arrival import Arrival

UNSERVED_S = 60.0  # for so long after a request for a model that nobody served, it counts as wanted


@dataclass(slots=True)
class _Sums:
    """Fields of `Counts`."""

    requests: int = 0
    shed: int = 0
    prompt_tokens: int = 0
    cached_tokens: float = 0.0
    computed_squares: float = 0.0
    answers: int = 0
    output_tokens: int = 0
    output_squares: int = 0
    judged: int = 0
    paced: int = 0
    late: int = 0
    slow: int = 0


@dataclass(slots=True)
class _Cached:
    """What was cached of the prompts of answers that are over."""

    prompt_tokens: int = 0
    cached_tokens: int = 0

    def add(self, one: Served) -> None:
        self.prompt_tokens += one.arrival.prompt_tokens
        self.cached_tokens += one.cached_tokens

    @property
    def share(self) -> float:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


_NOTHING = _Cached()


class Tally:
    """All routers' numbers together."""

    def __init__(self, classes: ClassPolicy) -> None:
        self._slos = {kind: weights.slo for kind, weights in classes.classes.items()}
        self._sums: dict[str, _Sums] = {}
        self._cached: dict[str, _Cached] = {}
        self._refused_s: dict[str, float] = {}
        self.asked = 0

    def arrived(self, arrival: Arrival) -> None:
        """A request comes in."""
        sums = self._sums.setdefault(arrival.model, _Sums())
        sums.requests += 1
        sums.prompt_tokens += arrival.prompt_tokens
        cached_tokens = self._cached.get(arrival.model, _NOTHING).share * arrival.prompt_tokens
        sums.cached_tokens += cached_tokens
        sums.computed_squares += (arrival.prompt_tokens - cached_tokens) ** 2
        self.asked += 1

    def over(self, one: Served, now: float) -> None:
        """A request is over."""
        sums = self._sums[one.arrival.model]
        if one.fate is Fate.REFUSED:
            sums.shed += 1
            self._refused_s[one.arrival.model] = now
        if one.fate is not Fate.SERVED or one.ttft_s is None:
            return
        sums.answers += 1
        self._cached.setdefault(one.arrival.model, _Cached()).add(one)
        sums.output_tokens += one.arrival.output_tokens
        sums.output_squares += one.arrival.output_tokens**2
        slo = self._slos.get(one.arrival.request_class)
        if slo is None or one.arrival.request_class is RequestClass.BATCH:
            return
        sums.judged += 1
        sums.late += slo.ttft_s is not None and one.ttft_s > slo.ttft_s
        sums.paced += slo.tpot_s is not None and one.tpot_s is not None
        sums.slow += slo.tpot_s is not None and one.tpot_s is not None and one.tpot_s > slo.tpot_s

    def counts(self) -> Mapping[str, Counts]:
        """The numbers as of now."""
        return {model: Counts(**asdict(sums)) for model, sums in self._sums.items()}

    def refused_lately(self, now: float) -> frozenset[str]:
        """Models of which a request was refused a short while ago."""
        return frozenset(model for model, at_s in self._refused_s.items() if now < at_s + UNSERVED_S)

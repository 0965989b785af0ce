"""How many tokens an answer is expected to have: quantiles of what like requests had, and how well they held.

Requests are alike by model, API, tenant, streaming and the power of two of their output cap. While too few of a kind
were seen, a coarser kind answers, at last a prior. A sample that ended at its cap says only that the answer would have
been at least so long; it counts as that long, which is right for requests with a like cap and low for others.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")

WINDOW_SAMPLES = 256
_ENOUGH_SAMPLES = 16  # with fewer, a coarser kind knows better
_MAX_KINDS = 4096


@dataclass(frozen=True, slots=True)
class Expected:
    """Output tokens of one answer: the mean, and what half and nine of ten answers stay under or at."""

    mean_tokens: float
    p50_tokens: float
    p90_tokens: float

    def capped(self, cap_tokens: int | None) -> Expected:
        """The same for a request that stops at `cap_tokens`; None is no cap."""
        if cap_tokens is None:
            return self
        return Expected(*(min(value, cap_tokens) for value in (self.mean_tokens, self.p50_tokens, self.p90_tokens)))


# Chat answers of current models: a few hundred tokens with a long tail.
PRIOR = Expected(mean_tokens=256.0, p50_tokens=180.0, p90_tokens=600.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What is known of a request before its answer, as far as it tells the answer's length."""

    model: str
    api: str
    tenant: str = ""
    stream: bool = False
    cap_tokens: int | None = None

    def coarser(self) -> Iterator[Hashable]:
        """Names of the kind, the finest first."""
        bucket = -1 if self.cap_tokens is None else max(0, self.cap_tokens - 1).bit_length()
        yield (self.model, self.api, self.tenant, self.stream, bucket)
        yield (self.model, self.api, bucket)
        yield (self.model, self.api)


@dataclass(slots=True)
class Calibration:
    """How often answers stayed under or at what was stated of them."""

    answers: int = 0
    within_p50: int = 0
    within_p90: int = 0


class OutputLengths:
    """Sliding windows of answer lengths. Bounded: the kinds used least recently are forgotten."""

    def __init__(self, max_kinds: int = _MAX_KINDS) -> None:
        self._max_kinds = max_kinds
        self._windows: OrderedDict[Hashable, _Window] = OrderedDict()
        self._calibration: OrderedDict[tuple[str, str], Calibration] = OrderedDict()

    def expect(self, kind: Kind) -> Expected:
        """Length of one answer to a request of this kind, within its cap."""
        for name in kind.coarser():
            window = self._windows.get(name)
            if window is not None and len(window.arrived) >= _ENOUGH_SAMPLES:
                return window.expected().capped(kind.cap_tokens)
        return PRIOR.capped(kind.cap_tokens)

    def learn(self, kind: Kind, tokens: int, stated: Expected) -> None:
        """Take in the length of one answer, and what had been stated of it."""
        for name in kind.coarser():
            _recent(self._windows, name, _Window, self._max_kinds).add(tokens)
        calibration = _recent(self._calibration, (kind.model, kind.api), Calibration, self._max_kinds)
        calibration.answers += 1
        calibration.within_p50 += tokens <= stated.p50_tokens
        calibration.within_p90 += tokens <= stated.p90_tokens

    def calibration(self) -> dict[tuple[str, str], Calibration]:
        """How well statements held, by model and API."""
        return dict(self._calibration)


@dataclass(slots=True)
class _Window:
    arrived: deque[int] = field(default_factory=deque)
    ordered: list[int] = field(default_factory=list)
    total: int = 0

    def add(self, tokens: int) -> None:
        self.arrived.append(tokens)
        insort(self.ordered, tokens)
        self.total += tokens
        if len(self.arrived) > WINDOW_SAMPLES:
            oldest = self.arrived.popleft()
            del self.ordered[bisect_left(self.ordered, oldest)]
            self.total -= oldest

    def expected(self) -> Expected:
        return Expected(self.total / len(self.ordered), self._quantile(0.5), self._quantile(0.9))

    def _quantile(self, share: float) -> float:
        """By linear interpolation between the samples around it."""
        place = share * (len(self.ordered) - 1)
        below = int(place)
        above = min(below + 1, len(self.ordered) - 1)
        return self.ordered[below] + (place - below) * (self.ordered[above] - self.ordered[below])


def _recent(store: OrderedDict[_K, _V], key: _K, make: type[_V], most: int) -> _V:
    """Value of a key, made if missing, and marked as the most recent; the oldest beyond `most` leaves."""
    value = store.get(key)
    if value is None:
        value = store[key] = make()
        if len(store) > most:
            store.popitem(last=False)
    store.move_to_end(key)
    return value

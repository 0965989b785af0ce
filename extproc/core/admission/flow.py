"""How fast held requests are let go, so that one can tell how long a queue of them takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

_MEMORY_S = 5.0
_FEWEST = 1.0  # that must have gone lately for a rate to say anything


@dataclass(slots=True)
class Flow:
    """A count that fades with `_MEMORY_S`; over that time it is a rate."""

    _gone: float = 0.0
    _at_s: float = 0.0
    _since_s: float | None = None

    def add(self, now: float) -> None:
        """One was let go."""
        if self._since_s is None:
            self._since_s = now
        self._gone = self._left(now) + 1.0
        self._at_s = max(self._at_s, now)

    def takes_s(self, requests: int, now: float) -> float:
        """Seconds until so many have gone at the pace of the last seconds; 0 where that is not known."""
        gone = self._left(now)
        if self._since_s is None or gone < _FEWEST:
            return 0.0
        # Since the first one no more than so much of the memory can have been filled.
        filled = 1.0 - math.exp(-max(now - self._since_s, 0.1) / _MEMORY_S)
        return requests * _MEMORY_S * filled / gone

    def _left(self, now: float) -> float:
        return self._gone * math.exp(min(0.0, self._at_s - now) / _MEMORY_S)

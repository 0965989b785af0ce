"""Whether a tenant has had more of the fleet lately than its weight's share: then its bounds are narrower.

Order alone does not keep tenants apart: what a flood has sent already is being computed when another tenant's request
comes. Narrower bounds for who is above its share leave room on every instance for who is not, who then needs not wait.
A tenant that is alone has the whole fleet, whatever it sends.
"""

from __future__ import annotations

import math
from collections.abc import Callable

MEMORY_S = 5.0
_LOOK_S = 0.25  # between two counts of who is there …
_NEWS = 0.25  # … unless so much of a fair share was served meanwhile: a flood fills a fleet within less
_FORGOTTEN = 0.01  # of the mean: who has had less lately is taken to be gone


class FairShare:
    """Weighted tokens of the last seconds, by tenant. `narrowest`: the least that is left of a bound."""

    def __init__(self, weight_of: Callable[[str], float], narrowest: float, ramp: float) -> None:
        self._weight_of, self._narrowest, self._ramp = weight_of, narrowest, ramp
        self._had: dict[str, float] = {}  # weighted tokens, as of `_at_s`
        self._at_s = 0.0
        self._looked_s = float("-inf")
        self._fair = 0.0  # what each would have had of the same sum
        self._weights = 0.0  # of all who are there
        self._news = 0.0  # weighted tokens since it was looked
        self.within = 1.0
        """Which part of what was served lately was that of tenants within their shares; 1 where nobody is narrowed."""

    def narrow(self, narrowest: float, ramp: float) -> None:
        """Leave more or less of a bound from now on."""
        self._narrowest, self._ramp = narrowest, ramp

    def charge(self, tenant: str, tokens: float, now: float) -> None:
        """A tenant is served so many tokens."""
        grown = math.exp((now - self._at_s) / MEMORY_S)
        weighted = tokens / self._weight_of(tenant)
        self._had[tenant] = self._had.get(tenant, 0.0) + weighted * grown
        self._news += weighted
        if self._fair:
            self._fair += tokens * grown / self._weights

    def take_back(self, tenant: str, tokens: float, charged_s: float) -> None:
        """A tenant was charged so many tokens at `charged_s` that it is not served."""
        if tenant in self._had:
            self.charge(tenant, -tokens, charged_s)
            self._had[tenant] = max(0.0, self._had[tenant])
            self._news, self._fair = max(0.0, self._news), max(0.0, self._fair)

    def look(self, now: float) -> bool:
        """A few times a second: see what the share is of those who are there. True if it was time to."""
        if now < self._looked_s + _LOOK_S and (not self._fair or self._news < _NEWS * self._fair):
            return False
        self._look(now)
        return True

    def is_above(self, tenant: str) -> bool:
        """Whether a tenant has had more than its share."""
        return self.left(tenant) < 1.0

    def left(self, tenant: str) -> float:
        """What is left of a tenant's bounds: 1 up to its share, and less the more it is above."""
        return 1.0 - (1.0 - self._narrowest) * self._above(tenant)

    def _above(self, tenant: str) -> float:
        """0 up to a tenant's share, and 1 from `ramp` beyond it on."""
        if not self._fair:
            return 0.0
        above = self._had.get(tenant, 0.0) / self._fair - 1.0
        return min(1.0, max(0.0, above / self._ramp))

    def _look(self, now: float) -> None:
        """Let the past fade, and forget who is gone."""
        keep = math.exp((self._at_s - now) / MEMORY_S)
        mean = sum(self._had.values()) / len(self._had) if self._had else 0.0
        self._had = {name: had * keep for name, had in self._had.items() if had >= _FORGOTTEN * mean}
        self._at_s = self._looked_s = now
        self._news = 0.0
        weights = {name: self._weight_of(name) for name in self._had}
        tokens = sum(had * weights[name] for name, had in self._had.items())
        # Alone, nobody is above a share.
        self._weights = sum(weights.values())
        self._fair = tokens / self._weights if len(weights) > 1 else 0.0
        above = sum(had * weights[name] * self._above(name) for name, had in self._had.items())
        self.within = 1.0 - above / tokens if self._fair and self._narrowest < 1.0 else 1.0

"""What each tenant has had of the fleet, by its weight: start-time fair queueing (Goyal, Vin and Cheng, 1996).

A tenant's *debt* is the tokens it was served over its weight, on a scale on which everybody who has just come stands at
the *level*: the debt of the last one that was let go. So nobody saves up while asking for nothing, and nobody is made
to pay for what was free when nobody else wanted it. Output tokens count double, as each takes a place in every step
(VTC: Sheng and others, "Fairness in serving large language models", OSDI 2024).
"""

from __future__ import annotations

from collections.abc import Callable

_OUTPUT_WEIGHT = 2.0
_MOST_TENANTS = 4096  # that are remembered; beyond, those that are not in debt are dropped


def service_tokens(uncached_tokens: int, output_tokens: int) -> float:
    """What serving a request takes, in prompt tokens."""
    return max(1.0, uncached_tokens + _OUTPUT_WEIGHT * output_tokens)


class Debts:
    """Of all tenants. `weight_of` says what share each may have."""

    def __init__(self, weight_of: Callable[[str], float]) -> None:
        self._weight_of = weight_of
        self._debts: dict[str, float] = {}
        self.level = 0.0

    def of(self, tenant: str) -> float:
        """Weighted tokens that a tenant has had, on the common scale."""
        return max(self.level, self._debts.get(tenant, 0.0))

    def above(self, tenant: str) -> float:
        """How far a tenant stands above the level: what it has had beyond those who are served now."""
        return self.of(tenant) - self.level

    def charge(self, tenant: str, tokens: float) -> None:
        """A tenant is served so many tokens."""
        self._debts[tenant] = self.of(tenant) + tokens / self._weight_of(tenant)
        if len(self._debts) > _MOST_TENANTS:
            self._debts = {name: debt for name, debt in self._debts.items() if debt > self.level}

    def take_back(self, tenant: str, tokens: float) -> None:
        """A tenant was charged so many tokens that it is not served. The level stays where its request stood."""
        self._debts[tenant] = max(self.level, self.of(tenant) - tokens / self._weight_of(tenant))

    def serve(self, tenant: str, tokens: float) -> None:
        """A tenant's request is let go: the level rises to where it stood, and it steps back."""
        self.level = self.of(tenant)
        self.charge(tenant, tokens)

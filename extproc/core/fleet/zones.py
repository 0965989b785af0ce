"""Zones: how far apart they are and what a byte between them costs, as the operator's table says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """The way between two zones."""

    rtt_s: float
    price_per_gb: float = 0.0  # of 10**9 bytes, in the operator's currency
    bytes_s: float | None = None  # what one transfer gets on it; None: no limit that matters


AT_HOME = Crossing(rtt_s=0.0)

# Zones of one region are a few milliseconds apart at the most ("single-digit millisecond latency": AWS, Regions and
# Availability Zones); 1 ms is taken where the operator gives no figure. No price is assumed.
UNLISTED = Crossing(rtt_s=0.001)


@dataclass(frozen=True, slots=True, kw_only=True)
class Zones:
    """The operator's table. `own` is the zone of Envoy and this router; pairs are read in both directions."""

    own: str = ""
    crossings: Mapping[tuple[str, str], Crossing] = field(default_factory=dict)
    unlisted: Crossing = UNLISTED  # between two different zones that the table does not name together

    def between(self, here: str, there: str) -> Crossing:
        """The way between two zones. Where one of them is not known, nothing can be said against it."""
        if here == there or not here or not there:
            return AT_HOME
        found = self.crossings.get((here, there)) or self.crossings.get((there, here))
        return found or self.unlisted

    def to(self, zone: str) -> Crossing:
        """The way from Envoy to an instance's zone."""
        return self.between(self.own, zone)

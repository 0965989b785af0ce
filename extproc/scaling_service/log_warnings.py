"""What the log is told once and not of each look: instances of no pool, and pools of which nobody knows the price."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from extproc.scaling_service.missing_prices import missing_prices

if TYPE_CHECKING:
    from extproc.core.scaling.rules import ScalingRules
    from extproc.scaling_service.sights import Seen

log = logging.getLogger("extproc.autoscale")


class LogWarnings:
    """Those of one replica."""

    def __init__(self) -> None:
        self._outside: frozenset[str] = frozenset()  # instances that belong to no pool
        self._priced = False  # whether prices that these rules lack were looked for

    def renew(self) -> None:
        """The rules are others: what they lack is told again."""
        self._priced = False

    def look(self, seen: Seen, rules: ScalingRules) -> None:
        """Tell what a look shows that was not told before."""
        self._tell_outside(seen)
        self._tell_prices(seen, rules)

    def _tell_outside(self, seen: Seen) -> None:
        """An instance that no pool counts is never stopped, and others are started in its place: likely a mistake."""
        for name in frozenset(seen.outside) - self._outside:
            log.warning("%s belongs to no pool: do its models, hardware and tensor parallelism match one?", name)
        self._outside = frozenset(seen.outside)

    def _tell_prices(self, seen: Seen, rules: ScalingRules) -> None:
        """Once for each set of rules: what agents tell later, or have told before, is nothing to warn of."""
        if self._priced:
            return
        self._priced = True
        names = missing_prices(rules, seen.members)
        if names:
            log.warning(
                "no price_per_hour of %s is known, neither from the file nor from an agent: until it is, all pools of"
                " those models are taken to cost the same",
                ", ".join(names),
            )

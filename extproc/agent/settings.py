"""How an agent goes about its work, whatever its backends are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from extproc.agent.pace import Periods
from extproc.core.fleet.events import DEFAULT_TTL_S
from extproc.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_PERIOD_S = 1.0
DEFAULT_GRACE_S = 10.0
_JITTER = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """What `extproc agent` needs to know beside its backends.

    Raises ConfigError, naming the flag, for numbers that cannot be meant.
    """

    period_s: float = DEFAULT_PERIOD_S  # between two looks at a ready backend that works
    min_period_s: float | None = None  # half of it if left out
    max_period_s: float | None = None  # twice as long if left out
    ttl_s: float = DEFAULT_TTL_S
    grace_s: float = DEFAULT_GRACE_S
    drain_on_stop: bool = True
    host_pressure: bool = False
    state_file: Path | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        periods = self.periods
        for flag, value in (
            ("--period-s", periods.usual_s),
            ("--min-period-s", periods.shortest_s),
            ("--max-period-s", periods.longest_s),
            ("--ttl-s", self.ttl_s),
        ):
            if not 0 < value < math.inf:
                raise ConfigError(f"{flag} must be more than 0 seconds and finite, not {value}")
        if not 0 <= self.grace_s < math.inf:
            raise ConfigError(f"--grace-s must be 0 seconds or more and finite, not {self.grace_s}")
        if not periods.shortest_s <= periods.usual_s <= periods.longest_s:
            raise ConfigError(
                f"--period-s {periods.usual_s:g} must lie between --min-period-s {periods.shortest_s:g} "
                f"and --max-period-s {periods.longest_s:g}"
            )
        if self.ttl_s <= periods.longest_s * (1 + _JITTER):
            raise ConfigError(
                f"--ttl-s {self.ttl_s:g} must be longer than --max-period-s {periods.longest_s:g} "
                "and its jitter, or records run out between two publishes"
            )

    @property
    def periods(self) -> Periods:
        """Bounds of the time between two looks."""
        return Periods(
            self.period_s / 2 if self.min_period_s is None else self.min_period_s,
            self.period_s,
            2 * self.period_s if self.max_period_s is None else self.max_period_s,
        )

    @property
    def patience_s(self) -> float:
        """What a backend may take to show a page."""
        return max(1.0, 2 * self.period_s)

    @property
    def jitter(self) -> float:
        """Share of a period that chance adds or takes, so that many agents do not fall into step."""
        return _JITTER

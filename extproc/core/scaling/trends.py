"""Level and slope of a load that is seen again and again, the older the less it counts."""

from __future__ import annotations

from math import exp

import msgspec

_DAMPED = 2.0  # times as long as a slope was seen, it is followed: loads turn
_CHANCE = 1.0  # squared standard errors at which half of a slope is believed


class Trend(msgspec.Struct, kw_only=True):
    """A straight line through what came, weighted by the seconds that it covers and exp(-age / memory_s).

    Sums are told from the latest time on, so that they neither grow nor lose digits.
    """

    memory_s: float
    seconds: float = 0.0
    time: float = 0.0  # seconds x s since the latest time (so: below 0)
    time_squared: float = 0.0
    load: float = 0.0  # seconds x load
    load_time: float = 0.0

    def move(self, passed_s: float) -> None:
        """Let time pass."""
        kept = exp(-passed_s / self.memory_s)
        self.time_squared = kept * (self.time_squared - 2 * passed_s * self.time + passed_s**2 * self.seconds)
        self.time = kept * (self.time - passed_s * self.seconds)
        self.load_time = kept * (self.load_time - passed_s * self.load)
        self.load *= kept
        self.seconds *= kept

    def add(self, load: float, covers_s: float) -> None:
        """The load of the last `covers_s` seconds."""
        middle_s = -covers_s / 2
        self.seconds += covers_s
        self.time += covers_s * middle_s
        self.time_squared += covers_s * (middle_s**2 + covers_s**2 / 12)
        self.load += covers_s * load
        self.load_time += covers_s * middle_s * load

    def begin(self, load: float, seconds: float) -> None:
        """Forget all but this: a mean over the last seconds, without a slope."""
        self.seconds = self.time = self.time_squared = self.load = self.load_time = 0.0
        self.add(load, seconds)

    @property
    def level(self) -> float:
        """The mean; 0 before anything was seen."""
        return self.load / self.seconds if self.seconds else 0.0

    def slope(self, grain: float) -> float:
        """Load per second, as far as it is beyond chance. `grain`: variance of a mean over one second per load."""
        spread = self.time_squared - self.time**2 / self.seconds if self.seconds else 0.0
        if spread <= 0:
            return 0.0
        slope = (self.load_time - self.time * self.load / self.seconds) / spread
        squared = slope**2 * spread  # over the variance: squared standard errors
        return slope * squared / (squared + _CHANCE * grain * self.level) if squared else 0.0

    def after(self, horizon_s: float, slope: float) -> float:
        """Load at the horizon if this slope wears off: it is followed about as far as it was seen."""
        if not self.seconds:
            return 0.0
        damped_s = _DAMPED * self.seconds
        ahead_s = damped_s * (1 - exp(-horizon_s / damped_s)) - self.time / self.seconds
        return max(0.0, self.level + slope * ahead_s)

"""How large a load is as a rule, and how grainy: what single requests make of it by chance."""

from __future__ import annotations

from math import exp, inf

import msgspec

_NOISE_SHARE = 1 / 12  # of a period, over which the noise is told


class Grain(msgspec.Struct, kw_only=True):
    """Mean load of about the last period, and the noise upon it by successive differences, which slopes leave alone.

    Source: von Neumann, "Distribution of the ratio of the mean square successive difference to the variance" (1941).
    """

    period_s: float
    load: float = 0.0  # load x seconds
    seconds: float = 0.0
    squares: float = 0.0  # squared differences between looks, as of means over one second, x seconds
    noisy_load: float = 0.0  # load x seconds, of the same looks
    last: float = 0.0
    last_s: float = 0.0  # seconds that the last look covered

    def add(self, load: float, covers_s: float) -> None:
        """The load of the last `covers_s` seconds; looks must not overlap, else they seem to be less noisy."""
        kept = exp(-covers_s / self.period_s)
        self.load = kept * self.load + load * covers_s
        self.seconds = kept * self.seconds + covers_s
        if self.last_s:
            kept = exp(-covers_s / (_NOISE_SHARE * self.period_s))
            squared = (load - self.last) ** 2 / (1 / covers_s + 1 / self.last_s)
            self.squares = kept * self.squares + squared * covers_s
            self.noisy_load = kept * self.noisy_load + (load + self.last) / 2 * covers_s
        self.last, self.last_s = load, covers_s

    @property
    def usual(self) -> float:
        """Mean load; 0 before anything was seen."""
        return self.load / self.seconds if self.seconds else 0.0

    @property
    def size(self) -> float:
        """Variance of a mean over one second for each unit of load, which is what one request adds; inf: not known."""
        return self.squares / self.noisy_load if self.noisy_load else inf

"""Pauses that grow each time there is need for another one, and shrink again with the time that went well."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long pauses are: `base_s`, doubled with each level up to `limit_s`; a level is forgiven every `ease_s`."""

    base_s: float
    limit_s: float
    ease_s: float

    def pause_s(self, level: int) -> float:
        """Length of a pause at a level, the first being 1."""
        return min(self.limit_s, self.base_s * 2.0 ** min(level - 1, 60))

    def eased(self, level: int, well_s: float) -> int:
        """What is left of a level after `well_s` seconds without trouble."""
        return max(0, level - int(max(0.0, well_s) / self.ease_s))

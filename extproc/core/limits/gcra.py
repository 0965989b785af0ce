"""The generic cell rate algorithm (ITU-T I.371, Annex A), as `redis/limits.lua` and `redis/settle.lua` compute it.

What a bucket holds is told as the time at which it will be empty again. It holds at most `capacity_us`: as long as
that takes to come back. What is charged makes it fuller; one request that is larger than the capacity is let through
when nothing else is in the bucket, and those after it wait until its excess has come back, too. All times in
microseconds, whatever the clock.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Level:
    """How full a bucket is. It was empty at `since_us` for the last time before now, and will be at `empty_us`."""

    empty_us: float
    since_us: float

    def left_us(self, now_us: float) -> float:
        """How long until it is empty."""
        return max(0.0, self.empty_us - now_us)


EMPTY = Level(0.0, 0.0)


def wait_us(level: Level, now_us: float, cost_us: float, capacity_us: float) -> float:
    """How long until there is room for a charge; 0 if there is room now."""
    return max(0.0, level.left_us(now_us) + min(cost_us, capacity_us) - capacity_us)


def charged(level: Level, now_us: float, cost_us: float) -> Level:
    """The level after a charge."""
    begun = level.empty_us > now_us
    return Level((level.empty_us if begun else now_us) + cost_us, level.since_us if begun else now_us)


def settled(level: Level, now_us: float, change_us: float, charged_at_us: float) -> Level:
    """The level once a charge of `charged_at_us` turned out to be `change_us` too little; negative: too much.

    What was too much is given back only to a bucket that has not been empty meanwhile: else it has come back already.
    """
    if change_us >= 0.0:
        return charged(level, now_us, change_us)
    if level.empty_us <= now_us or charged_at_us < level.since_us:
        return level
    return Level(level.empty_us + change_us, level.since_us)

"""Prompts that were sent a moment ago: what instances will soon hold, before any engine can tell.

Two generations of an index, the older one dropped as a whole: an entry lives for one to two of `GENERATION_S`.
"""

from __future__ import annotations

from collections.abc import Sequence

from extproc.core.prefix import PrefixIndex

GENERATION_S = 5.0  # a queue, a prefill and an event's way to us together seldom take longer
_MAX_ENTRIES = 500_000


class RecentPrefixes:
    """By instance key, in the same blocks as the learned index. Every `now` is the caller's clock, in seconds."""

    def __init__(self) -> None:
        self._young = PrefixIndex(_MAX_ENTRIES)
        self._old = PrefixIndex(_MAX_ENTRIES)
        self._turn_at_s = float("-inf")

    def insert(self, key: str, prefix: Sequence[int], now: float) -> None:
        """A prompt is on its way to an instance."""
        self._turn(now)
        self._young.insert(key, prefix, _MAX_ENTRIES)

    def matches(self, prefix: Sequence[int], now: float) -> dict[str, int]:
        """Blocks of `prefix`, from its start, that were sent to each instance lately; those of none are absent."""
        if now >= self._turn_at_s + GENERATION_S:
            return {}
        found = self._young.matches(prefix)
        if now < self._turn_at_s:
            for key, blocks in self._old.matches(prefix).items():
                found[key] = max(blocks, found.get(key, 0))
        return found

    def forget(self, key: str) -> None:
        """Drop an instance that has ended."""
        self._young.forget(key)
        self._old.forget(key)

    def _turn(self, now: float) -> None:
        if now < self._turn_at_s:
            return
        idle = now >= self._turn_at_s + GENERATION_S
        self._old = PrefixIndex(_MAX_ENTRIES) if idle else self._young
        self._young = PrefixIndex(_MAX_ENTRIES)
        self._turn_at_s = now + GENERATION_S

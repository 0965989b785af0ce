"""Which instances' KV logs have stopped, or are read too late: what they told is not to be believed any more.

An agent that follows its engine writes an entry to its log every few seconds, an empty one if there is nothing to tell,
and none when it has reason to think that its engine's word no longer reaches it. So a log whose end was not read for
longer has stopped somewhere between engine and router, wherever that is.
"""

from __future__ import annotations

from collections.abc import Set

BEAT_EVERY_S = 3.0
"""How often an agent writes an entry at least."""
FROZEN_AFTER_S = 10.0
"""Three entries are missing then."""

_PAUSE_S = 2.0  # between two looks; longer, and it was we or the registry who stood still


class KvFreshness:
    """By instance key. Times are on the clock of the fleet, in seconds."""

    def __init__(self, frozen_after_s: float = FROZEN_AFTER_S) -> None:
        self._frozen_after_s = frozen_after_s
        self._heard_at_s: dict[str, float] = {}
        self._looked_at_s = float("-inf")

    def heard(self, key: str, at_s: float) -> None:
        """All that an instance's log had at this moment was taken in."""
        if key in self._heard_at_s:
            self._heard_at_s[key] = max(at_s, self._heard_at_s[key])

    def look(self, tellers: Set[str], now: float) -> frozenset[str]:
        """Those of `tellers` whose logs are frozen; to be called again and again.

        `tellers` are the instances whose agents live and follow their engines; one that is new here has its time to
        begin. `now` is up to when the registry was heard: while that stands still nobody ages, and after a jump of it
        all are given the time of the outage.
        """
        pause_s = now - self._looked_at_s
        self._looked_at_s = now
        shift_s = pause_s if pause_s > _PAUSE_S else 0.0
        heard_at_s = self._heard_at_s
        self._heard_at_s = {key: min(now, heard_at_s.get(key, now) + shift_s) for key in tellers}
        return frozenset(key for key, at_s in self._heard_at_s.items() if now - at_s > self._frozen_after_s)

"""Instances that just failed are left alone for a while, longer each time they fail again, and tried with care after.

    well ── failure ──► resting ── the rest is over ──► on probation ── a success ──► well
                           ▲                                 │
                           └────────── a failure ────────────┘

On probation one request goes first; the others follow when it was answered, or one more each `base_s` until then.
What was sent before a rest began tells nothing of the time after: its success does not end the rest, and all such
failures count as one. Requests that go to a resting instance because all rest are a last resort: their success ends
the rest, their failure does not lengthen it, else an outage of the network would make all rest for long.
"""

from __future__ import annotations

from dataclasses import dataclass

from extproc.core.health.backoff import Backoff

_EASE_S = 10.0  # time without failure that forgives one


@dataclass(slots=True)
class _Rest:
    since_s: float
    until_s: float
    failures: int
    probed_at_s: float = float("-inf")  # when a request was let through on probation
    well_at_s: float | None = None  # when it was seen to be well again


class Cooldowns:
    """Rests by instance key: `base_s` after the first failure, doubled by each further one up to `limit_s`.

    Every `sent_s` is when the request in question was sent, on the clock of `now`.
    """

    def __init__(self, base_s: float, limit_s: float) -> None:
        self.pace(base_s, limit_s)
        self._rests: dict[str, _Rest] = {}

    def pace(self, base_s: float, limit_s: float) -> None:
        """Rest for other times from the next failure on."""
        self._backoff = Backoff(base_s=base_s, limit_s=limit_s, ease_s=_EASE_S)

    def fail(self, key: str, now: float, sent_s: float) -> None:
        """Begin a rest, unless this failure tells nothing new."""
        rest = self._rests.get(key)
        failures = 1
        if rest is not None:
            news_from_s = rest.until_s if rest.well_at_s is None else rest.since_s
            if sent_s < news_from_s:
                return
            well_s = 0.0 if rest.well_at_s is None else now - rest.well_at_s
            failures += self._backoff.eased(rest.failures, well_s)
        self._rests[key] = _Rest(now, now + self._backoff.pause_s(failures), failures)

    def succeed(self, key: str, now: float, sent_s: float) -> None:
        """End a rest or a probation: the instance answered. Its failures are forgiven one by one with time."""
        rest = self._rests.get(key)
        if rest is None or sent_s < rest.since_s:
            return
        if rest.well_at_s is None:
            rest.well_at_s = now
        elif not self._backoff.eased(rest.failures, now - rest.well_at_s):
            del self._rests[key]

    def sent(self, key: str, now: float) -> None:
        """Note that a request goes to an instance: if that is on probation, the others wait for this one."""
        rest = self._rests.get(key)
        if rest is not None and rest.well_at_s is None and now >= rest.until_s:
            rest.probed_at_s = now

    def remaining_s(self, key: str, now: float) -> float:
        """Seconds until the instance takes its next request, 0 if it does now."""
        rest = self._rests.get(key)
        if rest is None or rest.well_at_s is not None:
            return 0.0
        return max(0.0, max(rest.until_s, rest.probed_at_s + self._backoff.base_s) - now)

    def resting(self, now: float) -> list[str]:
        """Keys of the instances that are to be left alone."""
        return [key for key in self._rests if self.remaining_s(key, now)]

    def forget(self, key: str) -> None:
        """Drop what is known of an incarnation that has ended."""
        self._rests.pop(key, None)

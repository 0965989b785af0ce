"""Instances that just answered "too much" are taken to be full for a moment: alive, and to be asked again soon.

This is no failure: there is no probation, pauses stay short, and where all are full each is asked all the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from extproc.core.health.backoff import Backoff

_BACKOFF = Backoff(base_s=1.0, limit_s=8.0, ease_s=5.0)
_LONGEST_S = 30.0  # of what an engine may wish for with Retry-After: until then its load is reported many times


@dataclass(frozen=True, slots=True)
class _Pause:
    since_s: float
    until_s: float
    level: int


class Backpressure:
    """Pauses by instance key: 1 s, doubled up to 8 s while it goes on, or what the engine's Retry-After says."""

    def __init__(self) -> None:
        self._pauses: dict[str, _Pause] = {}

    def push_back(self, key: str, now: float, sent_s: float, retry_after_s: float | None = None) -> None:
        """An instance turned down a request that was sent at `sent_s`; those sent before the pause count as one."""
        before = self._pauses.get(key)
        level = 1
        if before is not None:
            if sent_s < before.since_s:
                if retry_after_s is not None:  # the word of another log on the same answer
                    until_s = max(before.until_s, now + _wish_s(retry_after_s))
                    self._pauses[key] = _Pause(before.since_s, until_s, before.level)
                return
            if now < before.until_s:  # all are full: it was asked although it had said so
                level = before.level
            else:
                level += _BACKOFF.eased(before.level, now - before.until_s)
        pause_s = _BACKOFF.pause_s(level) if retry_after_s is None else _wish_s(retry_after_s)
        self._pauses[key] = _Pause(now, now + pause_s, level)

    def remaining_s(self, key: str, now: float) -> float:
        """Seconds for which an instance is still taken to be full, 0 if it is not."""
        pause = self._pauses.get(key)
        return max(0.0, pause.until_s - now) if pause else 0.0

    def succeed(self, key: str, now: float, sent_s: float) -> None:
        """It took a request that was sent after it had turned one down: it has room again."""
        pause = self._pauses.get(key)
        if pause is None or sent_s < pause.since_s:
            return
        if now < pause.until_s:
            self._pauses[key] = _Pause(pause.since_s, now, pause.level)
        elif not _BACKOFF.eased(pause.level, now - pause.until_s):
            del self._pauses[key]

    def paused(self, now: float) -> list[str]:
        """Keys of the instances that are still taken to be full."""
        return [key for key in self._pauses if self.remaining_s(key, now)]

    def forget(self, key: str) -> None:
        """Drop what is known of an incarnation that has ended."""
        self._pauses.pop(key, None)


def _wish_s(retry_after_s: float) -> float:
    return min(max(0.0, retry_after_s), _LONGEST_S)

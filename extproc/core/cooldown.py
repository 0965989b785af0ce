"""Instances that just failed are left alone for a while, longer each time they fail again."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.core.model import Outcome

# Envoy's response flags that blame the instance. A client that hung up or a local timeout is not among them.
_BROKEN_FLAGS = frozenset(
    {
        "upstream_connection_failure",
        "upstream_connection_termination",
        "upstream_remote_reset",
        "upstream_protocol_error",
    }
)
# 429 and 503 are backpressure of a living engine, 500 may be one odd prompt, any 4xx is the client's own.
_BROKEN_STATUSES = frozenset({502, 504})


@dataclass(slots=True)
class _Rest:
    until_s: float
    failures: int


class Cooldowns:
    """Rests by instance key: `base_s` after the first failure, doubled by each further one up to `limit_s`."""

    def __init__(self, base_s: float, limit_s: float) -> None:
        self._base_s = base_s
        self._limit_s = limit_s
        self._rests: dict[str, _Rest] = {}

    def fail(self, key: str, now: float) -> None:
        """Begin or extend a rest. Failures of requests sent before the rest began count as one."""
        rest = self._rests.get(key)
        if rest is None:
            self._rests[key] = _Rest(now + self._base_s, 1)
        elif now >= rest.until_s:
            rest.failures += 1
            rest.until_s = now + min(self._limit_s, self._base_s * 2.0 ** (rest.failures - 1))

    def succeed(self, key: str) -> None:
        """Forget the failures of an instance that answered."""
        self._rests.pop(key, None)

    def remaining_s(self, key: str, now: float) -> float:
        """Seconds of rest that are left, 0 if none."""
        rest = self._rests.get(key)
        return max(0.0, rest.until_s - now) if rest else 0.0

    forget = succeed


def blames_instance(outcome: Outcome) -> bool:
    """Whether an outcome shows that the instance itself failed."""
    return outcome.status in _BROKEN_STATUSES or not _BROKEN_FLAGS.isdisjoint(outcome.flags)

"""How long a start takes, from the decision to Ready: what was measured, and what the operator says until then."""

from __future__ import annotations

from collections.abc import Sequence

LATEST = 50  # starts that count
_KNOWN = 5  # starts after which the operator's word counts no more


def cold_start_s(seen: Sequence[float], start_s: float, quantile: float = 0.9) -> float:
    """Return the seconds within which that share of starts is over; `seen` in the order in which they were.

    As long as there are few, what the operator says is one more of them: one quick start promises nothing.
    """
    latest = [each for each in seen[-LATEST:] if each >= 0.0]
    if len(latest) < _KNOWN:
        latest.append(start_s)
    latest.sort()
    place = quantile * (len(latest) - 1)
    below = int(place)
    above = min(below + 1, len(latest) - 1)
    return latest[below] + (place - below) * (latest[above] - latest[below])

"""Draws one of the candidates that the prediction cannot tell apart, the cheaper the likelier.

A soft minimum: the weight of a candidate is exp(-(cost - best) / temperature). The temperature is the prediction's own
error in seconds, so that a difference of one error is drawn about every fourth time, one of five hardly ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

_CUT = 5.0  # errors beyond which a candidate is not drawn at all: less than one time in 150


def draw_near_tie(costs_s: Sequence[float], temperature_s: float, draw: float) -> int:
    """Place of the one drawn among costs in ascending order; `draw` in [0, 1). 0 seconds draw equal ones only."""
    best_s = costs_s[0]
    limit_s = best_s + _CUT * temperature_s
    weights: list[float] = []
    for cost_s in costs_s:
        if cost_s > limit_s:
            break
        weights.append(exp((best_s - cost_s) / temperature_s) if temperature_s > 0.0 else 1.0)
    left = draw * sum(weights)
    for place, weight in enumerate(weights):
        left -= weight
        if left < 0.0:
            return place
    return len(weights) - 1

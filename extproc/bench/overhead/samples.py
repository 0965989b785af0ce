"""Figures of rounds: percentiles of one, medians over several. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(ranked: Sequence[float], share: float) -> float | None:
    """The smallest of the ranked values that so large a share does not exceed; None of nothing."""
    if not ranked:
        return None
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


def middle(values: Sequence[float | None]) -> float | None:
    """Median of those that are known; None if none is."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    half = len(known) // 2
    return known[half] if len(known) % 2 else (known[half - 1] + known[half]) / 2

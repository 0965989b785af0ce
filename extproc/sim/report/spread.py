"""Mean and quantiles of a set of times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import fsum


@dataclass(frozen=True, slots=True)
class Spread:
    """Of an empty set all is None."""

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None


def spread(values: Iterable[float]) -> Spread:
    """Mean, median, 90th and 99th percentile."""
    ordered = sorted(values)
    if not ordered:
        return Spread(None, None, None, None)
    return Spread(fsum(ordered) / len(ordered), *(quantile(ordered, q) for q in (0.5, 0.9, 0.99)))


def quantile(ordered: list[float], q: float) -> float:
    """Quantile 0 <= q <= 1 of sorted values, with linear interpolation between the two nearest.

    Type 7 of Hyndman and Fan, "Sample Quantiles in Statistical Packages" (1996). Raises IndexError if there are none.
    """
    position = q * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])

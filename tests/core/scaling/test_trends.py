"""A trend is a straight line through what came of late, as far as it is beyond chance, and it wears off."""

from __future__ import annotations

from math import inf

import pytest

from extproc.core.scaling.grain import Grain
from extproc.core.scaling.trends import Trend


def line(slope: float, looks: int = 200, memory_s: float = 300.0) -> Trend:
    """A load that is 100 at the end."""
    trend = Trend(memory_s=memory_s)
    for look in range(looks):
        trend.move(10.0)
        trend.add(100.0 + slope * (look - looks + 0.5) * 10.0, 10.0)
    return trend


@pytest.mark.parametrize("slope", [0.0, 0.05, -0.2])
def test_a_straight_line_without_noise_is_found(slope: float) -> None:
    """Level and slope at the end, and the way on for a little while."""
    trend = line(slope)
    assert trend.slope(0.0) == pytest.approx(slope, rel=1e-3)
    assert trend.after(0.0, slope) == pytest.approx(100.0)
    assert trend.after(10.0, slope) == pytest.approx(100.0 + 10.0 * slope, abs=0.05)


def test_a_slope_wears_off() -> None:
    """However long the horizon, it is followed about twice as far as it was seen."""
    trend = line(0.1)
    assert trend.after(1e6, 0.1) < 100.0 + 2.1 * 300.0 * 0.1


def test_a_falling_load_stays_above_nothing() -> None:
    """There are no negative loads."""
    assert line(-1.0).after(3600.0, -1.0) == 0.0


def test_a_slope_that_may_be_chance_is_believed_in_part() -> None:
    """The grainier the load, the less; of unknown grain, none."""
    trend = line(0.05)
    believed = [trend.slope(grain) for grain in (0.0, 1.0, 100.0, inf)]
    assert believed == sorted(believed, reverse=True)
    assert believed[0] > believed[2] > believed[3] == 0.0


def test_the_grain_of_chance_arrivals_is_one_request() -> None:
    """Looks that are one request off the mean up and down: von Neumann's differences see it, and no slope."""
    up, flat = Grain(period_s=7200.0), Grain(period_s=7200.0)
    assert flat.size == inf
    for look in range(500):
        off = 0.1 if look % 2 else -0.1
        flat.add(4.0 + off, 10.0)
        up.add(4.0 + 0.001 * look, 10.0)
    assert flat.size == pytest.approx((0.2**2 / 0.2) / 4.0, rel=0.02)
    assert up.size < 1e-3 * flat.size

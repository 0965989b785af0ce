"""Daily load as a warp of time."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.sim.traffic.arrival import Traffic
from extproc.sim.traffic.day import DayShape, in_days
from tests.sim.traffic.workloads import plain, sound, workloads

STEADY = plain(*range(4001))


def per_part(traffic: Traffic, parts: int) -> list[int]:
    """Requests in each of equal parts of the time."""
    span_s = traffic.arrivals[-1].at_s
    counts = Counter(min(parts - 1, int(parts * arrival.at_s / span_s)) for arrival in traffic.arrivals)
    return [counts[part] for part in range(parts)]


@given(workloads(), st.integers(0, 3), st.integers(1, 3))
def test_order_and_span_stay_as_they_are(traffic: Traffic, seed: int, days: int) -> None:
    """Only the time in between is another, and the first request may wait for the quiet hours to pass."""
    warped = sound(in_days(traffic, seed, days))
    assert [a.blocks for a in warped.arrivals] == [a.blocks for a in traffic.arrivals]
    assert [(a.follows, a.think_s) for a in warped.arrivals] == [(a.follows, a.think_s) for a in traffic.arrivals]
    assert warped.arrivals[-1].at_s == pytest.approx(traffic.arrivals[-1].at_s)


def test_a_day_is_as_much_busier_at_its_peak_as_its_shape_says() -> None:
    """Without bursts: 4 times as busy at noon as at midnight, within what a 24th of a day averages out."""
    hours = per_part(in_days(STEADY, shape=DayShape(bursts=0)), 24)
    assert max(hours[11:13]) / min(hours) == pytest.approx(4, rel=0.1)
    assert hours[6] == pytest.approx(4000 / 24, rel=0.15)


def test_days_repeat_with_other_bursts() -> None:
    """As quiet in between as at both ends."""
    hours = per_part(in_days(STEADY, days=2, shape=DayShape(bursts=0)), 48)
    assert hours[:24] == pytest.approx(hours[24:], abs=2)
    assert hours[24] < hours[12] / 3


def test_a_burst_is_more_than_the_load_around_it() -> None:
    """On a flat day it is all that there is to see."""
    flat = DayShape(peak_to_trough=1.0, bursts=1, burst_share=0.05, burst_factor=5.0)
    parts = sorted(per_part(in_days(STEADY, seed=1, shape=flat), 100))
    assert parts[-3] / parts[50] == pytest.approx(5, rel=0.1)
    assert parts[0] == pytest.approx(parts[90], abs=2)


def test_bursts_are_by_seed() -> None:
    """At other times of the day."""
    assert in_days(STEADY, seed=1) == in_days(STEADY, seed=1) != in_days(STEADY, seed=2)


def test_requests_at_one_moment_stay_there() -> None:
    """A workload without length has no day."""
    assert [arrival.at_s for arrival in in_days(plain(0, 0)).arrivals] == [0, 0]

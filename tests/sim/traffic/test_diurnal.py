"""Days with noise, nights and bursts."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from extproc.sim.traffic.diurnal import diurnal
from extproc.sim.traffic.sources import traffic_of


def by_hour(hours: int = 6, **options: float) -> list[int]:
    """Requests of each of the parts of one day of an hour each."""
    traffic = diurnal(18_000, days=1, requests_s=18_000 / (3600 * hours), **options)
    counts = Counter(int(arrival.at_s // 3600) for arrival in traffic.arrivals)
    return [counts[hour] for hour in range(hours)]


def test_a_day_is_quiet_at_its_ends_and_busy_in_its_middle() -> None:
    """Four times as busy, at the extremes; over an hour of six less."""
    counts = by_hour(noise=0.0)
    assert sum(counts) == 18_000
    assert counts[0] < counts[1] < counts[2]
    assert counts[3] > counts[4] > counts[5]
    assert counts[2] / counts[0] == pytest.approx(2.97, rel=0.1)  # means over an hour of the cosine


def test_load_without_a_swing_is_steady() -> None:
    """Within what chance does."""
    counts = by_hour(noise=0.0, peak_to_trough=1.0)
    assert max(counts) < 1.1 * min(counts)


def test_nobody_asks_at_night() -> None:
    """The first and the last quarter of the day of half a night."""
    arrivals = diurnal(2000, days=2, requests_s=2000 / 7200, night=0.5).arrivals
    parts = {int(arrival.at_s // 900) % 4 for arrival in arrivals}
    assert parts == {1, 2}


def test_bursts_come_at_moments_of_their_own() -> None:
    """The busiest minute is much busier with them than without, and other ones with another seed."""

    def busiest(**options: float) -> tuple[int, int]:
        arrivals = diurnal(20_000, days=1, requests_s=20_000 / 7200, noise=0.0, peak_to_trough=1.0, **options).arrivals
        minute, count = Counter(int(arrival.at_s // 60) for arrival in arrivals).most_common(1)[0]
        return minute, count

    calm, burst, other = busiest(), busiest(bursts=2, burst_factor=3), busiest(bursts=2, burst_factor=3, seed=1)
    assert burst[1] > 1.8 * calm[1]
    assert burst[0] != other[0]


def test_the_same_seed_is_the_same_traffic_in_the_order_of_time() -> None:
    """And it is named in a text with all its options."""
    text = (
        "diurnal?requests=300&seed=4&requests_s=0.5&days=2&peak_to_trough=3&noise=0&bursts=1&burst_factor=2&night=0.2"
    )
    found = traffic_of(text)
    assert found == traffic_of(text) != traffic_of(text.replace("seed=4", "seed=5"))
    assert len(found.arrivals) == 300
    assert all(before.at_s <= after.at_s for before, after in pairwise(found.arrivals))
    assert found.arrivals[-1].at_s < 600.0
    shared = Counter(arrival.blocks[0] for arrival in found.arrivals)
    assert len(shared) <= 8  # applications

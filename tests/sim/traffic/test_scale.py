"""Other pace, other window, other chance."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.errors import ConfigError
from extproc.sim.traffic.arrival import Arrival, Traffic
from extproc.sim.traffic.scale import at_rate, rate, seeded, take
from tests.sim.traffic.workloads import plain, sound, workloads


def contents(traffic: Traffic) -> list[Arrival]:
    """Requests without what tells when they come, in an order of their own."""
    bare = [replace(arrival, at_s=0, follows=None, think_s=0) for arrival in traffic.arrivals]
    return sorted(bare, key=repr)


def test_a_rate_is_requests_by_the_time_between_the_first_and_the_last() -> None:
    """However many come at once."""
    assert rate(plain(10, 10, 12, 14)) == 0.75


def test_another_rate_stretches_all_times_alike() -> None:
    """Those between the first and the last request as well."""
    fast = sound(at_rate(plain(0, 2, 8), 2.5))
    assert [arrival.at_s for arrival in fast.arrivals] == pytest.approx([0, 0.2, 0.8])
    assert rate(fast) == pytest.approx(2.5)


@pytest.mark.parametrize(("requests_s", "think_s"), [(0.2, 5), (0.1, 11), (0.4, 2), (1.0, 0.2), (5.0, 0)])
def test_of_a_turn_it_is_the_thinking_that_is_stretched(requests_s: float, think_s: float) -> None:
    """The answer of 100 tokens takes its second at any rate."""
    first = Arrival(at_s=0, prompt_tokens=10, output_tokens=100, session="s")
    second = replace(first, at_s=6, follows=0, think_s=5)
    third = replace(first, at_s=10)
    changed = sound(at_rate(Traffic(name="t", arrivals=(first, second, third), block_size_tokens=64), requests_s))
    assert [arrival.think_s for arrival in changed.arrivals] == pytest.approx([0, think_s, 0])


@pytest.mark.parametrize(("traffic", "requests_s"), [(plain(0, 1), 0), (plain(0, 1), -1), (plain(3, 3), 1)])
def test_a_rate_that_cannot_be_is_refused(traffic: Traffic, requests_s: float) -> None:
    """Nothing comes at no rate, and what comes all at once cannot be stretched."""
    with pytest.raises(ConfigError):
        at_rate(traffic, requests_s)


def test_a_window_begins_at_nought() -> None:
    """Whenever its first request came."""
    window = take(plain(1, 2, 4, 8), requests=2, offset=2)
    assert [(arrival.at_s, arrival.blocks) for arrival in window.arrivals] == [(0, (0, 3)), (4, (0, 4))]


def test_a_window_beyond_the_end_has_what_is_there() -> None:
    """As many requests as there are, but never none."""
    assert len(take(plain(0, 1, 2), requests=9, offset=1).arrivals) == 2
    for requests, offset in ((1, 3), (0, 0), (1, -1), (-1, 0)):
        with pytest.raises(ConfigError, match="plain has 3 requests"):
            take(plain(0, 1, 2), requests, offset)


@given(workloads(), st.integers(0, 29), st.integers(1, 30))
def test_what_followed_a_request_outside_its_window_simply_arrives(
    traffic: Traffic, offset: int, requests: int
) -> None:
    """And what follows one inside still does."""
    offset %= len(traffic.arrivals)
    window = sound(take(traffic, requests, offset))
    for index, arrival in enumerate(window.arrivals):
        old = traffic.arrivals[offset + index]
        inside = old.follows is not None and old.follows >= offset
        assert arrival.follows == (old.follows - offset if inside and old.follows is not None else None)
        assert arrival.think_s == (old.think_s if inside else 0)


@given(workloads(), st.integers(1, 5))
def test_a_seeded_variant_has_the_same_requests_over_the_same_time(traffic: Traffic, seed: int) -> None:
    """In another order and with other gaps; a follower that now comes first waits for nobody."""
    variant = sound(seeded(traffic, seed))
    assert contents(variant) == contents(traffic)
    assert variant == seeded(traffic, seed)
    span_s = traffic.arrivals[-1].at_s - traffic.arrivals[0].at_s
    whole_s = variant.arrivals[-1].at_s
    assert whole_s <= span_s * (1 + 1 / max(1, len(traffic.arrivals) - 1)) + 1e-6
    kept = sum(arrival.follows is not None for arrival in variant.arrivals)
    sessions = len({arrival.session for arrival in traffic.arrivals})
    assert kept >= sum(arrival.follows is not None for arrival in traffic.arrivals) - sessions


def test_seeds_are_different_and_nought_is_the_recording() -> None:
    """So that results with seed 0 can be compared with those of others."""
    recording = plain(*range(50))
    assert seeded(recording, 0) == recording
    variants = [seeded(recording, seed) for seed in (1, 2)]
    assert len({variant.arrivals for variant in [recording, *variants]}) == 3
    assert len({variant.arrivals[0].blocks for variant in [recording, *variants]}) == 3
    assert rate(variants[0]) == pytest.approx(rate(recording), rel=0.05)


def test_bursts_stay_bursts() -> None:
    """Requests that came together still do."""
    gaps = [b.at_s - a.at_s for a, b in pairs(seeded(plain(0, 0, 0, 9, 9, 9, 18, 18, 18), 3))]
    assert sum(gap == 0 for gap in gaps) >= 5


def pairs(traffic: Traffic) -> list[tuple[Arrival, Arrival]]:
    """Each request and the next."""
    return list(pairwise(traffic.arrivals))

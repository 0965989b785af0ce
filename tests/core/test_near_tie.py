"""Draws among near-ties: evenly among those that the prediction cannot tell apart, and never one that is worse."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from extproc.core.pricing.near_tie import draw_near_tie
from extproc.core.snapshot import Policy

DRAWS = [(number + 0.5) / 2000 for number in range(2000)]
POLICY = Policy(near_tie_share=0.02, near_tie_s=0.005)


def shares(costs_s: list[float], policy: Policy = POLICY) -> list[float]:
    drawn = Counter(draw_near_tie(np.array(costs_s), policy, draw) for draw in DRAWS)
    return [drawn[place] / len(DRAWS) for place in range(len(costs_s))]


def test_equal_costs_are_equally_likely() -> None:
    """Four idle instances share a burst of routers that do not see each other."""
    assert shares([1.0] * 4) == pytest.approx([0.25] * 4, abs=0.01)


@pytest.mark.parametrize(
    ("costs_s", "drawn"),
    [
        ([1.0, 1.004, 1.006], 2),  # 5 ms
        ([0.1, 0.1019, 0.1021], 2),  # 2 %
        ([1.0, float("inf")], 1),
        ([1.0], 1),
    ],
)
def test_only_those_within_both_bounds_are_drawn(costs_s: list[float], drawn: int) -> None:
    """The share of the best cost binds where it is small, the seconds where it is large."""
    assert [share > 0.0 for share in shares(costs_s)] == [place < drawn for place in range(len(costs_s))]


def test_without_tolerance_only_equal_ones_are_drawn() -> None:
    """The cheapest, otherwise."""
    assert shares([1.0, 1.0, 1.001], Policy(near_tie_s=0.0)) == [0.5, 0.5, 0.0]


@pytest.mark.parametrize("draw", [0.0, 0.999999999999])
def test_extreme_draws_stay_within_the_candidates(draw: float) -> None:
    """Whatever rounding does."""
    assert draw_near_tie(np.array([0.1, 0.1, 0.1]), POLICY, draw) in (0, 2)

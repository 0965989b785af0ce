"""Draws among near-ties: the cheaper the likelier, and never one that is worse beyond doubt."""

from __future__ import annotations

from collections import Counter

import pytest

from extproc.core.pricing.near_tie import draw_near_tie

DRAWS = [(number + 0.5) / 2000 for number in range(2000)]


def shares(costs_s: list[float], temperature_s: float) -> list[float]:
    drawn = Counter(draw_near_tie(costs_s, temperature_s, draw) for draw in DRAWS)
    return [drawn[place] / len(DRAWS) for place in range(len(costs_s))]


def test_equal_costs_are_equally_likely() -> None:
    """Four idle instances share a burst of routers that do not see each other."""
    assert shares([1.0] * 4, 0.01) == pytest.approx([0.25] * 4, abs=0.01)


def test_the_cheaper_is_the_likelier() -> None:
    """By e for each temperature of difference."""
    first, second, third = shares([1.00, 1.01, 1.02], 0.01)
    assert first / second == pytest.approx(2.718, rel=0.03)
    assert second / third == pytest.approx(2.718, rel=0.05)


def test_one_that_is_worse_beyond_doubt_is_never_drawn() -> None:
    """Five errors of the prediction away."""
    assert shares([1.0, 1.051], 0.01) == [1.0, 0.0]


def test_without_error_only_equal_ones_are_drawn() -> None:
    """The cheapest, otherwise."""
    assert shares([1.0, 1.0, 1.001], 0.0) == [0.5, 0.5, 0.0]


@pytest.mark.parametrize("draw", [0.0, 0.999999999999])
def test_extreme_draws_stay_within_the_candidates(draw: float) -> None:
    """Whatever rounding does."""
    assert draw_near_tie([0.1, 0.1, 0.1], 0.003, draw) in (0, 2)


def test_costs_that_are_infinite_are_not_drawn() -> None:
    """Nor is one alone a problem."""
    assert draw_near_tie([1.0, float("inf")], 0.1, 0.99) == 0
    assert draw_near_tie([1.0], 0.0, 0.99) == 0

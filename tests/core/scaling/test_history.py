"""Loads are cut into steps and buckets by the seconds that they cover, and what is old is forgotten."""

from __future__ import annotations

import numpy as np
import pytest

from extproc.core.scaling.history import PERIODS, History, Step, grid


@pytest.mark.parametrize(
    ("period_s", "step_s", "bucket_s"),
    [
        (86_400.0, 60.0, 300.0),
        (7200.0, 50.0, 50.0),
        (3600.0, 25.0, 25.0),
        (60.0, 1.0, 1.0),
        (7 * 86_400.0, 60.0, 2100.0),
    ],
)
def test_time_is_cut_by_the_period(period_s: float, step_s: float, bucket_s: float) -> None:
    """Steps of a second to a minute, and buckets of whole steps, at most 288 in a period."""
    cut = grid(period_s)
    assert cut.step_s == pytest.approx(step_s)
    assert cut.bucket_s == pytest.approx(bucket_s)
    assert cut.buckets <= 288


def test_a_look_over_two_steps_counts_in_both() -> None:
    """By how many of its seconds were in each."""
    history = History(grid(7200.0))  # steps of 50 s
    assert history.add(40.0, 1.0, 40.0) == []
    assert history.add(70.0, 4.0, 30.0) == [Step(0, pytest.approx((40 * 1.0 + 10 * 4.0) / 50))]
    assert history.add(100.0, 2.0, 30.0) == [Step(1, pytest.approx((20 * 4.0 + 30 * 2.0) / 50))]


def test_a_step_that_was_hardly_covered_is_unknown() -> None:
    """A few of its seconds do not tell what its mean was."""
    history = History(grid(7200.0))
    history.add(10.0, 1.0, 10.0)
    assert history.add(60.0, 1.0, 5.0) == []


def test_one_look_after_a_long_gap_closes_all_steps_that_it_covers() -> None:
    """Counters go on while nobody looks; their mean is all that is known of that time."""
    history = History(grid(7200.0))
    assert history.add(200.0, 3.0, 200.0) == [Step(number, pytest.approx(3.0)) for number in range(4)]


def test_what_is_older_than_two_weeks_of_periods_is_forgotten() -> None:
    """A bucket is there for so many periods, and then unknown, whether looks came or not."""
    history = History(grid(60.0))
    for second in range(1, 121):
        history.add(float(second), 5.0, 1.0)
    assert history.loads(np.array([0, 60])).tolist() == [5.0, 5.0]
    history.add(60.0 * (PERIODS + 1) + 30.0, 7.0, 1.0)
    assert np.isnan(history.loads(np.array([0, 29]))).all()
    assert history.loads(np.array([30, 60, 119])).tolist() == [5.0, 5.0, 5.0]
    assert np.isnan(history.loads(np.array([500, 10**6]))).all()


def test_what_is_remembered_can_be_taken_over() -> None:
    """By another one of the same grid, and by no other."""
    history, other = History(grid(60.0)), History(grid(60.0))
    for second in range(1, 200):
        history.add(float(second), float(second % 7), 1.0)
    other.restore(history.newest, history.all_loads())
    np.testing.assert_allclose(other.all_loads(), history.all_loads())
    with pytest.raises(ValueError, match="buckets"):
        other.restore(5, np.zeros(3))

"""A season is the shape of earlier periods, and the peaks upon it that came more than once."""

from __future__ import annotations

from math import isnan

import pytest

from extproc.core.scaling.history import History, grid
from extproc.core.scaling.seasons import WEEK, Season

PERIOD_S = 288.0


def seen(days: list[dict[int, float]], usual: float = 10.0) -> History:
    """Days of a usual load with peaks, by the bucket of the day at which they are."""
    history = History(grid(PERIOD_S))
    per_day = history.grid.buckets
    for number, peaks in enumerate(days):
        for bucket in range(per_day):
            end_s = (number * per_day + bucket + 1) * history.grid.bucket_s
            history.add(end_s, usual * peaks.get(bucket, 1.0), history.grid.bucket_s)
    return history


def expected(days: list[dict[int, float]], bucket: int = 72) -> float:
    """Of the bucket's middle on the day after."""
    history = seen(days)
    return Season(history).at([len(days) * PERIOD_S + (bucket + 0.5) * history.grid.bucket_s])[0]


@pytest.mark.parametrize(
    ("days", "load"),
    [
        ([{}], 10.0),
        ([{72: 3.0}], 10.0),  # once is no season
        ([{72: 3.0}, {72: 2.0}], 20.0),  # twice: as high as the lower of the two
        ([{72: 3.0}, {}], 10.0),
        ([{72: 3.0}, {72: 2.0}, {}, {}], 10.0),  # most days are without
        ([{72: 0.2}], 10.0),  # a gap likewise
        ([{72: 0.2}, {72: 0.5}], 5.0),
    ],
)
def test_a_peak_counts_as_far_as_it_came_again(days: list[dict[int, float]], load: float) -> None:
    """Of the days and one more without it, the middle."""
    assert expected(days) == pytest.approx(load)


def test_before_a_period_has_passed_nothing_is_known() -> None:
    """Nothing at the same time of an earlier day: NaN, which is no load of 0."""
    history = seen([{}])
    first, later = Season(history).at([0.5 * PERIOD_S, 1.5 * PERIOD_S])
    assert isnan(first)
    assert later == pytest.approx(10.0)


def test_between_buckets_the_season_goes_straight() -> None:
    """Else a plan would go up in stairs."""
    history = seen([dict.fromkeys(range(72, 144), 2.0)])
    width_s = history.grid.bucket_s
    edge_s = PERIOD_S + 72 * width_s
    loads = Season(history).at([edge_s - width_s / 2, edge_s, edge_s + width_s / 2])
    assert loads == pytest.approx([10.0, 15.0, 20.0])


def test_newer_days_count_for_more() -> None:
    """A new customer is in the season soon."""
    history = History(grid(PERIOD_S))
    for number, load in enumerate([10.0, 10.0, 30.0]):
        history.add((number + 1) * PERIOD_S, load, PERIOD_S)
    assert Season(history).at([3.5 * PERIOD_S])[0] > 20.0


def test_a_week_is_told_by_the_same_day_of_earlier_ones() -> None:
    """Sundays are told by Sundays, when one has been seen."""
    history = History(grid(PERIOD_S))
    for number in range(WEEK):
        history.add((number + 1) * PERIOD_S, 10.0 + number, PERIOD_S)
    [load] = Season(history, (WEEK, 2 * WEEK)).at([(WEEK + 0.5) * PERIOD_S])
    assert load == pytest.approx(10.0)

"""What much was learned of already is learned from up to a rate, each model for itself."""

from __future__ import annotations

import pytest

from extproc.core.tokens.lessons import LESSONS_PER_S, Lessons


@pytest.mark.parametrize(("rate_per_s", "taught_per_s"), [(1, 1), (90, 90), (500, 100), (3000, 100)])
def test_all_outcomes_teach_up_to_a_rate(rate_per_s: int, taught_per_s: int) -> None:
    """The first second's worth is there at the beginning."""
    lessons, seconds = Lessons(), 20
    taken = sum(lessons.take("m", number / rate_per_s) for number in range(rate_per_s * seconds))
    assert taken == pytest.approx(taught_per_s * seconds, abs=LESSONS_PER_S + 1)
    assert taken <= rate_per_s * seconds


def test_models_do_not_take_from_each_other() -> None:
    """A rare model learns beside one that is asked all the time."""
    lessons = Lessons(2.0)
    assert [lessons.take("much", 0.0) for _ in range(4)] == [True, True, False, False]
    assert lessons.take("rare", 0.0)


def test_a_clock_that_goes_back_gives_nothing_and_takes_nothing() -> None:
    """Time that has not passed refills nothing."""
    lessons = Lessons(1.0)
    assert lessons.take("m", 10.0)
    assert not lessons.take("m", 5.0)
    assert lessons.take("m", 6.5)


def test_many_models_need_no_more_room_than_some() -> None:
    """The oldest begin anew."""
    lessons = Lessons(1.0)
    for number in range(1000):
        assert lessons.take(f"m{number}", 0.0)
    assert lessons.take("m0", 0.0)
    assert not lessons.take("m999", 0.0)

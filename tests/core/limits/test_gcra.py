"""The algorithm's promises, over random courses of events."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.limits.gcra import EMPTY, Level, charged, settled, wait_us

CAPACITY_US = 60e6
STEPS = st.lists(st.tuples(st.integers(0, 30_000_000), st.integers(1, 90_000_000)), max_size=60)
BEGAN_US = 1.8e15


def test_a_bucket_takes_what_it_holds_and_then_what_comes_back() -> None:
    """Sixty a minute: sixty at once, then one each second."""
    level, now_us, second_us = EMPTY, BEGAN_US, 1e6
    for _ in range(60):
        assert wait_us(level, now_us, second_us, CAPACITY_US) == 0
        level = charged(level, now_us, second_us)
    assert wait_us(level, now_us, second_us, CAPACITY_US) == second_us
    assert wait_us(level, now_us + second_us, second_us, CAPACITY_US) == 0


def test_what_is_larger_than_the_bucket_passes_when_it_is_empty_and_others_wait_for_it() -> None:
    """It would be refused for ever otherwise."""
    huge_us = 3 * CAPACITY_US
    assert wait_us(EMPTY, BEGAN_US, huge_us, CAPACITY_US) == 0
    level = charged(EMPTY, BEGAN_US, huge_us)
    assert wait_us(level, BEGAN_US, 1e6, CAPACITY_US) == 2 * CAPACITY_US + 1e6
    assert wait_us(level, BEGAN_US, huge_us, CAPACITY_US) == huge_us


@given(STEPS)
def test_no_window_lets_more_through_than_a_full_bucket_and_what_comes_back(steps: list[tuple[int, int]]) -> None:
    """But for the excess of one request that is larger than the bucket."""
    level, now_us, passed = EMPTY, BEGAN_US, list[tuple[float, float]]()
    for pause_us, cost_us in steps:
        now_us += pause_us
        if not wait_us(level, now_us, cost_us, CAPACITY_US):
            level = charged(level, now_us, cost_us)
            passed.append((now_us, cost_us))
    for first, (began_us, _) in enumerate(passed):
        total_us = excess_us = 0.0
        for at_us, cost_us in passed[first:]:
            total_us += cost_us
            excess_us = max(excess_us, cost_us - CAPACITY_US)
            assert total_us <= CAPACITY_US + at_us - began_us + excess_us


@given(STEPS)
def test_whoever_waits_as_long_as_told_is_let_through_and_not_sooner(steps: list[tuple[int, int]]) -> None:
    """If nobody else comes meanwhile."""
    level, now_us = EMPTY, BEGAN_US
    for pause_us, cost_us in steps:
        now_us += pause_us
        wait = wait_us(level, now_us, cost_us, CAPACITY_US)
        if wait >= 2:
            assert wait_us(level, now_us + wait - 1, cost_us, CAPACITY_US) > 0
        now_us += wait
        assert wait_us(level, now_us, cost_us, CAPACITY_US) == 0
        level = charged(level, now_us, cost_us)


@given(STEPS, st.integers(0, 30_000_000))
def test_a_charge_that_is_mended_while_the_bucket_is_in_use_is_as_if_it_had_been_right(
    steps: list[tuple[int, int]], pause_us: int
) -> None:
    """Too little or too much: in one stretch of use, what counts in the end is what was used."""
    level = right = charged(EMPTY, BEGAN_US, 1e12)  # so that it does not empty meanwhile
    now_us, open_charges = BEGAN_US, list[tuple[float, float]]()
    for _, cost_us in steps:
        now_us += 1000
        level = charged(level, now_us, cost_us)
        right = charged(right, now_us, cost_us / 2)
        open_charges.append((now_us, -cost_us / 2))
    now_us += pause_us
    for at_us, change_us in open_charges:
        level = settled(level, now_us, change_us, at_us)
    assert abs(level.empty_us - right.empty_us) < 1  # sums of 1e15 round to quarters


def test_what_has_come_back_by_itself_is_not_given_back_again() -> None:
    """The bucket was empty after the charge: nothing of it is left in there."""
    first = charged(EMPTY, BEGAN_US, 10e6)
    later = charged(first, BEGAN_US + 12e6, 10e6)
    assert settled(later, BEGAN_US + 13e6, -10e6, BEGAN_US) == later
    assert settled(later, BEGAN_US + 13e6, -10e6, BEGAN_US + 12e6).left_us(BEGAN_US + 13e6) == 0
    assert settled(first, BEGAN_US + 11e6, -10e6, BEGAN_US) == first


def test_what_was_charged_too_little_counts_even_after_the_bucket_was_empty() -> None:
    """It was used, whenever it is told."""
    first = charged(EMPTY, BEGAN_US, 1e6)
    assert settled(first, BEGAN_US + 5e6, 3e6, BEGAN_US) == Level(BEGAN_US + 8e6, BEGAN_US + 5e6)

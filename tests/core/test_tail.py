"""The slowest twentieth: where it begins, and what a second in it counts."""

from __future__ import annotations

import pytest

from extproc.core.pricing.tail import WEIGHT, TtftTail


def after(ttfts_s: list[float], times: int) -> TtftTail:
    tail = TtftTail()
    for _ in range(times):
        for ttft_s in ttfts_s:
            tail.add(ttft_s)
    return tail


def test_the_tail_begins_where_one_in_twenty_waits_longer() -> None:
    """Up to the step by which each word moves it."""
    assert after([1.0 + number / 10 for number in range(100)], 30).begins_s == pytest.approx(10.5, rel=0.15)


def test_what_everybody_calls_quick_is_no_tail() -> None:
    """Where all wait 50 ms nothing is won by making it 40 at the expense of others' answers."""
    assert after([0.05], 1000).begins_s == 0.1


def test_the_longer_the_tail_the_less_its_seconds_count() -> None:
    """A fleet that is too small is not mended by placing for the tail, but its slowest are not forgotten."""
    assert TtftTail(0.5).weight == pytest.approx(WEIGHT / 1.5)
    assert TtftTail(1.0).weight == pytest.approx(WEIGHT / 2)
    assert TtftTail(9.0).weight == pytest.approx(WEIGHT / 10)

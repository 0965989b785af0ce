"""Pauses after 429 and 503: short, growing while it goes on, and soon forgotten."""

from __future__ import annotations

import pytest

from extproc.core.health.backpressure import Backpressure

A = "a@1"


def test_a_turned_down_request_pauses_for_a_second() -> None:
    """The instance counts as full, no other does."""
    full = Backpressure()
    full.push_back(A, now=5.0, sent_s=4.9)
    assert full.remaining_s(A, 5.0) == 1.0
    assert full.remaining_s(A, 6.0) == 0.0
    assert full.remaining_s("b@1", 5.0) == 0.0


def test_pauses_grow_while_it_goes_on_up_to_eight_seconds() -> None:
    """Each time the pause is over and the next request is turned down again."""
    full, now, lengths_s = Backpressure(), 0.0, []
    for _ in range(6):
        full.push_back(A, now, sent_s=now)
        lengths_s.append(full.remaining_s(A, now))
        now += lengths_s[-1]
    assert lengths_s == [1, 2, 4, 8, 8, 8]


def test_those_turned_down_together_count_as_one() -> None:
    """They were sent before anybody knew."""
    full = Backpressure()
    for number in range(50):
        full.push_back(A, now=number / 100, sent_s=-0.1)
    assert full.remaining_s(A, 0.0) == 1.0


def test_asking_an_instance_that_said_it_is_full_keeps_the_pause_and_does_not_double_it() -> None:
    """That happens where all are full."""
    full = Backpressure()
    full.push_back(A, now=0.0, sent_s=0.0)
    full.push_back(A, now=0.5, sent_s=0.4)
    assert full.remaining_s(A, 0.5) == 1.0


@pytest.mark.parametrize(("wish_s", "pause_s"), [(3.0, 3.0), (0.0, 0.0), (-1.0, 0.0), (3600.0, 30.0)])
def test_retry_after_is_heeded_within_reason(wish_s: float, pause_s: float) -> None:
    """An hour would leave the instance idle: its load is reported every second."""
    full = Backpressure()
    full.push_back(A, now=0.0, sent_s=0.0, retry_after_s=wish_s)
    assert full.remaining_s(A, 0.0) == pause_s


def test_a_request_that_it_took_since_ends_the_pause() -> None:
    """One that it took before does not."""
    full = Backpressure()
    full.push_back(A, now=10.0, sent_s=10.0)
    full.succeed(A, now=10.1, sent_s=9.0)
    assert full.remaining_s(A, 10.1) == pytest.approx(0.9)
    full.succeed(A, now=10.3, sent_s=10.2)
    assert full.remaining_s(A, 10.3) == 0.0


def test_it_is_forgotten_after_a_while() -> None:
    """The next time it is the first time again."""
    full = Backpressure()
    full.push_back(A, now=0.0, sent_s=0.0)
    full.push_back(A, now=1.0, sent_s=1.0)
    full.push_back(A, now=60.0, sent_s=60.0)
    assert full.remaining_s(A, 60.0) == 1.0


def test_a_wish_that_comes_late_is_heeded_too() -> None:
    """Envoy's log of the attempt may come after that of the request."""
    full = Backpressure()
    full.push_back(A, now=10.0, sent_s=9.9)
    full.push_back(A, now=10.02, sent_s=9.9, retry_after_s=5.0)
    assert full.remaining_s(A, 10.02) == pytest.approx(5.0)

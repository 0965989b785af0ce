"""What stands against an instance, in words that need no table beside them."""

from __future__ import annotations

import pytest

from extproc.core.reasons.nearest_miss import distance
from extproc.core.reasons.rejection_text import said
from extproc.core.values.decision import Reason, Rejection


@pytest.mark.parametrize(
    ("rejection", "words"),
    [
        (
            Rejection("a", Reason.PUSHED_BACK, 0.0, 3.25),
            "answered 429 or 503 a moment ago and is left out for 3.2 s",
        ),
    ],
)
def test_reasons_are_told_in_words(rejection: Rejection, words: str) -> None:
    """With the numbers that clash."""
    assert said(rejection) == words


@pytest.mark.parametrize("reason", [Reason.STALE, Reason.COOLING_DOWN, Reason.PUSHED_BACK])
def test_of_those_that_are_left_out_for_a_time_the_one_with_the_least_is_nearest(reason: Reason) -> None:
    """Whatever the reason is."""
    assert distance(Rejection("a", reason, 0.0, 1.0)) < distance(Rejection("b", reason, 0.0, 2.0))

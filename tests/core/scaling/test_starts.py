"""What a start is planned to take."""

from __future__ import annotations

import pytest

from extproc.core.scaling.starts import LATEST, cold_start_s


@pytest.mark.parametrize(
    ("seen", "expected_s"),
    [
        ((), 180.0),  # the operator's word
        ((60.0,), 168.0),  # one quick start does not outweigh it
        ((60.0, 60.0, 60.0, 60.0), 132.0),
        ((60.0,) * 5, 60.0),  # now it counts no more
        ((50.0, 60.0, 70.0, 80.0, 90.0, 100.0), 95.0),
        ((900.0,) * 3 + (60.0,) * LATEST, 60.0),  # the latest count
        ((-1.0,) * 9, 180.0),  # of a clock that was set back
        ((400.0, 420.0), 416.0),  # slower than was said
    ],
)
def test_a_start_takes_what_most_took(seen: tuple[float, ...], expected_s: float) -> None:
    """Nine of ten are over by then."""
    assert cold_start_s(seen, 180.0) == pytest.approx(expected_s)


def test_a_higher_share_takes_longer() -> None:
    """The quantile is the caller's."""
    seen = tuple(float(number) for number in range(60, 80))
    assert cold_start_s(seen, 180.0, 0.5) < cold_start_s(seen, 180.0, 0.9) < cold_start_s(seen, 180.0, 1.0) == 79.0

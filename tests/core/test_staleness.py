"""What an old report costs: nothing for long, then more and more, without a jump."""

from __future__ import annotations

import itertools

import pytest

from extproc.core.health.staleness import doubt_s, doubt_share

STALE_AFTER_S = 5.0


@pytest.mark.parametrize(
    ("age_s", "share"),
    [
        (0.0, 0.0),
        (2.5, 0.0),  # an idle engine is looked at every two seconds
        (3.75, 0.5),
        (4.9, 0.95),
        (5.0, 0.95),
        (600.0, 0.95),  # where all are stale, one of them is still chosen by its cost
    ],
)
def test_a_report_is_as_good_as_new_for_half_its_time(age_s: float, share: float) -> None:
    """Each row: age, and what share of it is doubted."""
    assert doubt_share(age_s, STALE_AFTER_S) == pytest.approx(share)


def test_the_doubt_only_grows_with_age_and_makes_no_jump_before_it_is_complete() -> None:
    """Two routers that heard it a moment apart think nearly the same."""
    costs = [doubt_s(1.0, doubt_share(step / 1000, STALE_AFTER_S)) for step in range(6001)]
    assert costs == sorted(costs)
    assert max(after - before for before, after in itertools.pairwise(costs)) < 0.2
    assert costs[-1] == pytest.approx(19.0)


def test_an_instance_that_is_a_little_cheaper_loses_to_one_that_is_heard_and_a_much_cheaper_one_does_not() -> None:
    """The same request takes 1 s on the old one; on the fresh one 1.1 s, or 3 s for want of its prefix."""
    old_s = 1.0 + doubt_s(1.0, doubt_share(3.5, STALE_AFTER_S))
    assert 1.1 < old_s < 3.0
